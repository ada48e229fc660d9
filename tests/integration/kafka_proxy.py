"""A TCP proxy before one Kafka broker that knows which request is which, and can lose or hold back any of them.

Brokers name their own address in answers; the proxy puts its own port there, so that clients stay with it.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

PRODUCE, FETCH, ADD_PARTITIONS, END_TXN = 0, 1, 24, 26

Verdict = Callable[[int], bool]
Gate = Callable[[int], asyncio.Event | None]


class KafkaProxy:
    """`seen` counts the requests by API key. The rules are asked once per request or answer, in order."""

    def __init__(self, broker: str) -> None:
        host, _, port = broker.rpartition(":")
        self._host, self._port = host, int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.seen: Counter[int] = Counter()
        self.lose_request: Verdict = lambda key: False
        self.lose_answer: Verdict = lambda key: False
        self.hold_request: Gate = lambda key: None
        """A held request goes on once the event is set."""
        self._news = asyncio.Event()

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    async def start(self) -> None:
        """Listens on a free port, or again on the one it had."""
        self._server = await asyncio.start_server(self._serve, self._host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if the broker were gone: connections are reset, new ones refused."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def saw(self, key: int, count: int) -> None:
        """Waits until `count` requests of a kind have come."""
        while self.seen[key] < count:
            self._news.clear()
            await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, broker_writer}
        asked: dict[int, int] = {}
        for work in (self._requests(reader, broker_writer, asked), self._answers(broker_reader, writer, asked)):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _requests(
        self, reader: asyncio.StreamReader, broker: asyncio.StreamWriter, asked: dict[int, int]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(reader)
                key, _, correlation = struct.unpack_from(">hhi", frame)
                self.seen[key] += 1
                self._news.set()
                if self.lose_request(key):
                    continue
                if (gate := self.hold_request(key)) is not None:
                    await gate.wait()
                asked[correlation] = key
                broker.write(struct.pack(">i", len(frame)) + frame)
        broker.close()

    async def _answers(self, broker: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        mine = self._place(self.port)
        theirs = self._place(self._port)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                frame = await _frame(broker)
                key = asked.pop(struct.unpack_from(">i", frame)[0], -1)
                if self.lose_answer(key):
                    continue
                if key != FETCH:
                    frame = frame.replace(theirs, mine)
                writer.write(struct.pack(">i", len(frame)) + frame)
        writer.close()

    def _place(self, port: int) -> bytes:
        return struct.pack(">h", len(self._host)) + self._host.encode() + struct.pack(">i", port)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def once(key: int) -> Verdict:
    """True for the first request of this kind, or its answer."""
    left = [key]

    def verdict(asked: int) -> bool:
        if asked in left:
            left.remove(asked)
            return True
        return False

    return verdict


def always(key: int) -> Verdict:
    """True for every request of this kind."""
    return lambda asked: asked == key


def never(_: int) -> bool:
    """False for all."""
    return False


def gates(key: int, *events: asyncio.Event) -> Gate:
    """One event for each request of this kind, in order; those behind are not held."""
    left = list(events)
    return lambda asked: left.pop(0) if asked == key and left else None
