"""Listening: within the running loop, before the application is there, with bounded heads, and an end in order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bucketsched.api.rest.protocol import BoundedProtocol
from bucketsched.api.rest.server import RestServer
from bucketsched.core.errors import ConfigError

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
WITHIN_S = 30


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


@asynccontextmanager
async def serving(app: ASGIApp = hello, drain_s: float = 5) -> AsyncIterator[tuple[RestServer, str]]:
    server = RestServer("127.0.0.1:0", lambda: app, drain_s)
    address = await server.start()
    work = asyncio.create_task(server.serve())
    try:
        yield server, address
    finally:
        await server.stop()
        await asyncio.wait_for(work, WITHIN_S)


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answer_to(address: str, raw: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    reader, writer = await connect(address)
    writer.write(raw)
    found = await asyncio.wait_for(reader.read(), WITHIN_S)
    writer.close()
    return found


async def test_who_connects_before_the_application_is_there_waits() -> None:
    built = threading.Event()

    def build() -> ASGIApp:
        assert built.wait(WITHIN_S)
        return hello

    server = RestServer("127.0.0.1:0", build, 5)
    address = await server.start()
    work = asyncio.create_task(server.serve())
    asking = asyncio.create_task(answer_to(address, ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
    await asyncio.sleep(0.05)
    assert not asking.done()
    built.set()
    assert (await asyncio.wait_for(asking, WITHIN_S)).endswith(b"hello")
    await server.stop()
    await asyncio.wait_for(work, WITHIN_S)


async def test_signals_are_left_to_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving() as (_, address):
        await answer_to(address, ASK.replace(b"1.1", b"1.0"))
        assert signal.getsignal(signal.SIGTERM) is before


async def test_an_address_that_is_taken() -> None:
    async with serving() as (_, address):
        with pytest.raises(ConfigError, match=f"can't listen at {address}: Address already in use"):
            await RestServer(address, lambda: hello, 5).start()
    with pytest.raises(ConfigError, match=r"can't listen at no\.such\.host\.invalid:0"):
        await RestServer("no.such.host.invalid:0", lambda: hello, 5).start()


async def test_an_application_that_can_not_be_built_ends_it() -> None:
    def build() -> ASGIApp:
        raise ImportError("no such thing")

    server = RestServer("127.0.0.1:0", build, 5)
    await server.start()
    with pytest.raises(ImportError):
        await server.serve()
    await server.stop()


async def test_what_is_under_way_ends_and_idle_connections_close() -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await over.wait()
        await hello(scope, receive, send)

    server = RestServer("127.0.0.1:0", lambda: slow, 30)
    address = await server.start()
    work = asyncio.create_task(server.serve())
    idle, _ = await connect(address)
    reader, writer = await connect(address)
    writer.write(ASK)
    await begun.wait()
    stopping = asyncio.create_task(server.stop())
    assert await asyncio.wait_for(idle.read(), WITHIN_S) == b""
    with pytest.raises(OSError, match="Connect"):
        await connect(address)
    over.set()
    assert (await asyncio.wait_for(reader.read(), WITHIN_S)).endswith(b"hello")
    await asyncio.wait_for(asyncio.gather(stopping, work), WITHIN_S)


async def test_what_does_not_end_in_time_is_cut_off() -> None:
    begun = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serving(endless, drain_s=1) as (_, address):
        reader, writer = await connect(address)
        writer.write(ASK)
        await begun.wait()
    writer.close()
    await asyncio.wait_for(reader.read(), WITHIN_S)


async def test_a_head_that_is_too_slow_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_s_max", 0.1)
    async with serving() as (_, address):
        assert await answer_to(address, b"") == b""
        assert await answer_to(address, b"GET / HTTP/1.1\r\nHost:") == b""
        reader, writer = await connect(address)
        writer.write(ASK)
        assert (await asyncio.wait_for(reader.readuntil(b"hello"), WITHIN_S)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.3)
        writer.write(ASK)  # an idle connection is kept
        assert (await asyncio.wait_for(reader.readuntil(b"hello"), WITHIN_S)).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_head_that_is_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedProtocol, "head_bytes_max", 1_000)
    async with serving() as (_, address):
        for head in (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET /"):
            reader, writer = await connect(address)
            writer.write(head)
            for _ in range(3):
                await writer.drain()
                await asyncio.sleep(0.02)
                writer.write(b"x" * 600)
            assert b"400" in await asyncio.wait_for(reader.readline(), WITHIN_S)
            writer.close()


@pytest.mark.parametrize("raw", [b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00", b"CONNECT x:1 HTTP/1.1\r\n\r\n"])
async def test_what_is_no_http(raw: bytes) -> None:
    async with serving() as (_, address):
        assert (await answer_to(address, raw)).startswith(b"HTTP/1.1 400")
