"""An embedded server of a test's own, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.acceptance.test_embedded import Server

from bucketsched import Client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Not started yet. Its processes end with the test, and what they logged is printed for one that fails."""
    server = Server(tmp_path)
    yield server
    for process in server.processes:
        process.end()
        process.show()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    """Of a process that was started for it."""
    await server.start()
    async with Client(server.address) as client:
        yield client
