"""A TCP proxy before a ZooKeeper server, which can be unreachable, hold back, or lose the answer to a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MULTI = 14


class ZooKeeperProxy:
    """Forwards frames (4 bytes of length, then the frame) between kazoo and a server."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._lose = 0
        self.refusing = False
        self.lost_answers = 0
        self.multis_seen = 0

    async def start(self) -> str:
        """Listens; its host:port."""
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self._flowing.set()
        self._drop()

    def cut(self) -> None:
        """Every connection is reset and no new one is served."""
        self.refusing = True
        self._drop()

    def restore(self) -> None:
        self.refusing = False

    def hold(self) -> None:
        """Nothing passes, either way, but connections stay."""
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    def lose_answers(self, multis: int) -> None:
        """The next multis reach the server, and their connections are reset before the answers come back."""
        self._lose = multis

    def _drop(self) -> None:
        for pair in self._pairs:
            for writer in pair:
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection(*self._server)
        pair = (writer, to_server)
        self._pairs.add(pair)
        doomed = asyncio.Event()
        flows = [
            asyncio.create_task(self._requests(reader, to_server, doomed)),
            asyncio.create_task(self._answers(from_server, writer, doomed)),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for flow in flows:
                flow.cancel()
            self._pairs.discard(pair)
            for one in pair:
                one.transport.abort()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event
    ) -> None:
        async for frame in _frames(reader):
            await self._flowing.wait()
            if int.from_bytes(frame[8:12]) == MULTI:
                self.multis_seen += 1
                if self._lose:
                    self._lose -= 1
                    doomed.set()
            writer.write(frame)

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: asyncio.Event) -> None:
        async for frame in _frames(reader):
            await self._flowing.wait()
            if doomed.is_set() and int.from_bytes(frame[4:8], signed=True) > 0:
                self.lost_answers += 1
                return
            writer.write(frame)


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    try:
        while True:
            head = await reader.readexactly(4)
            yield head + await reader.readexactly(int.from_bytes(head))
    except (asyncio.IncompleteReadError, OSError):
        return


@asynccontextmanager
async def zookeeper_proxy(server: str) -> AsyncIterator[tuple[ZooKeeperProxy, str]]:
    """A running proxy and its address."""
    proxy = ZooKeeperProxy(server)
    address = await proxy.start()
    try:
        yield proxy, address
    finally:
        await proxy.stop()
