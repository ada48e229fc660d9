"""Proxies: what passes, what is held, cut or late, and for whom."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.faults.links import EVERYBODY, Mode, Proxy, Rule, Sockets
from tools.stack.ports import choose

DEADLINE_S = 10.0
MOMENT_S = 0.2


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers what it is sent; its address and what it was sent."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            seen.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    finally:
        server.close()


class Talk:
    """A client's connection through a proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def hears(self, data: bytes) -> bool:
        got = await asyncio.wait_for(self.reader.readexactly(len(data)), DEADLINE_S)
        return got == data

    async def ended(self) -> bool:
        """Whether the connection has ended, in one way or the other."""
        try:
            return await asyncio.wait_for(self.reader.read(), DEADLINE_S) == b""
        except OSError:
            return True


@pytest.fixture
async def seen_and_proxy() -> AsyncIterator[tuple[list[bytes], Proxy]]:
    async with echoing() as (address, seen):
        proxy = Proxy(
            "server",
            f"127.0.0.1:{choose(['front'], {}, set())['front']}",
            address,
            lambda ports: dict.fromkeys(ports, "me"),
        )
        await proxy.start()
        yield seen, proxy
        await proxy.stop()


async def connect(proxy: Proxy) -> Talk:
    host, _, port = proxy.front.rpartition(":")
    return Talk(*await asyncio.open_connection(host, int(port)))


async def test_bytes_pass(seen_and_proxy: tuple[list[bytes], Proxy]) -> None:
    talk = await connect(seen_and_proxy[1])
    talk.send(b"one")
    assert await talk.hears(b"one")
    talk.writer.close()


@pytest.mark.parametrize("whom", ["me", EVERYBODY])
async def test_a_cut_resets_what_is_there_and_refuses_what_comes(
    seen_and_proxy: tuple[list[bytes], Proxy], whom: str
) -> None:
    _, proxy = seen_and_proxy
    talk = await connect(proxy)
    talk.send(b"one")
    assert await talk.hears(b"one")
    proxy.break_(whom, Rule(Mode.CUT))
    assert await talk.ended()
    assert await (await connect(proxy)).ended()
    proxy.mend(whom)
    again = await connect(proxy)
    again.send(b"two")
    assert await again.hears(b"two")


@pytest.mark.parametrize(("mode", "arrives"), [(Mode.HOLD, False), (Mode.DEAF, True)])
async def test_what_is_held_goes_on_afterwards(
    seen_and_proxy: tuple[list[bytes], Proxy], mode: Mode, arrives: bool
) -> None:
    """HOLD keeps the request back, DEAF its answer."""
    seen, proxy = seen_and_proxy
    talk = await connect(proxy)
    talk.send(b"one")
    assert await talk.hears(b"one")
    proxy.break_("me", Rule(mode))
    talk.send(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(talk.reader.read(1), MOMENT_S)
    assert (b"two" in seen) is arrives
    proxy.mend("me")
    assert await talk.hears(b"two")


async def test_a_slow_link_is_late(seen_and_proxy: tuple[list[bytes], Proxy]) -> None:
    _, proxy = seen_and_proxy
    talk = await connect(proxy)
    proxy.break_("me", Rule(Mode.SLOW, delay_ms=100))
    begun = time.monotonic()
    talk.send(b"one")
    assert await talk.hears(b"one")
    assert time.monotonic() - begun >= 0.2, "both ways are slow"


async def test_others_are_left_alone(seen_and_proxy: tuple[list[bytes], Proxy]) -> None:
    _, proxy = seen_and_proxy
    talk = await connect(proxy)
    for mode in Mode:
        proxy.break_("somebody else", Rule(mode, 1_000))
        talk.send(mode.encode())
        assert await talk.hears(mode.encode())


async def test_an_end_is_passed_on(seen_and_proxy: tuple[list[bytes], Proxy]) -> None:
    talk = await connect(seen_and_proxy[1])
    talk.send(b"one")
    talk.writer.write_eof()
    assert await talk.hears(b"one")
    assert await talk.ended()


async def test_refused_is_refused(seen_and_proxy: tuple[list[bytes], Proxy]) -> None:
    """Not accepted and then closed: by that a process that is gone is told from one that is stuck."""
    _, proxy = seen_and_proxy
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await connect(proxy)
    await proxy.start()
    for _ in range(3):
        proxy.refuse()
        await proxy.start()
    talk = await connect(proxy)
    talk.send(b"one")
    assert await talk.hears(b"one")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_is_known_by_its_process(family: socket.AddressFamily) -> None:
    """Some clients use sockets of IPv6 to reach addresses of IPv4."""
    with socket.socket() as listener, socket.socket(family) as client:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        prefix = "" if family == socket.AF_INET else "::ffff:"
        client.connect((f"{prefix}127.0.0.1", listener.getsockname()[1]))
        port = client.getsockname()[1]
        assert Sockets(lambda: [("init", 1), ("me", os.getpid())]).whose([port]) == {port: "me"}
        assert Sockets(lambda: [("gone", 1 << 30)]).whose([port]) == {port: ""}
