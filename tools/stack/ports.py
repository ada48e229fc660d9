"""Loopback ports for servers."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

LOW, HIGH = 12_000, 32_000
"""Below the ports that the kernel gives to outgoing connections, which could take a restarting server's port away."""


def is_free(port: int) -> bool:
    """Whether a server could bind it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(names: Iterable[str], last: dict[str, int], taken: set[int]) -> dict[str, int]:
    """A free port for each name, none of those taken: the last one where it is still free."""
    chosen: dict[str, int] = {}
    for name in names:
        port = last.get(name, 0)
        while not port or port in taken or port in chosen.values() or not is_free(port):
            port = random.randrange(LOW, HIGH)
        chosen[name] = port
    return chosen
