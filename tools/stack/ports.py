"""Loopback ports for servers."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable, Sequence

LOW, HIGH = 12_000, 32_000
"""Below the ports that the kernel gives to outgoing connections, which could take a restarting server's port away."""


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose(
    names: Iterable[str], last: dict[str, int], taken: set[int], hosts: Sequence[str] = ("127.0.0.1",)
) -> dict[str, int]:
    """A port for each name, free on all hosts, none of those taken: the last one where it is still free."""
    chosen: dict[str, int] = {}
    for name in names:
        port = last.get(name, 0)
        while not port or port in taken or port in chosen.values() or not all(is_free(port, host) for host in hosts):
            port = random.randrange(LOW, HIGH)
        chosen[name] = port
    return chosen


def free_port(host: str = "127.0.0.1") -> int:
    """One that a server can bind, now and after a restart: no outgoing connection is ever given it."""
    return choose(["port"], {}, set(), (host,))["port"]
