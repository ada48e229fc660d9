"""Ends a stack with the process that started it, however that process ends.

The guard is a small process in a session of its own that reads a pipe. Whoever starts it holds the other end, which
the kernel closes when that process dies, by kill -9 as well; then the guard stops the servers and removes their files.
(A parent-death signal would not do: it comes when the *thread* that started the server ends.)
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .layout import Layout
from .stack import ONE_OF_EACH, ROOT, Stack

GOODBYE_S_MAX = 90


class Guard:
    """Watches over a stack's folder for as long as this process lives, or until `close`."""

    def __init__(self, folder: Path, layout: Layout = ONE_OF_EACH) -> None:
        counts = (
            f"--cassandra-nodes={layout.cassandra_nodes}",
            f"--kafka-brokers={layout.kafka_brokers}",
            *(("--fronted",) if layout.fronted else ()),
        )
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tools.stack", "--dir", str(folder), *counts, "guard"],
            stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True,
        )  # fmt: skip

    def close(self) -> None:
        """Lets the guard stop and remove what is left of the stack; returns when it has."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(GOODBYE_S_MAX)


def watch(stack: Stack) -> None:
    """The guard's own work: waits for the end of its input, then removes the stack."""
    sys.stdin.buffer.read()
    for server in stack.known:
        server.kill()
    stack.wipe()
