"""What counts as a death: an established connection that ended, and a port that refuses from then on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bucketsched.adapters import tcp_peers
from bucketsched.adapters.tcp_peers import TcpPeers

DEADLINE_S = 10.0
QUIET_S = 0.5
"""So long nothing must happen: many times what a death takes to be seen."""

LISTENER = """
import asyncio
async def main():
    server = await asyncio.start_server(lambda reader, writer: print("came", flush=True), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


class Listener:
    """A process that accepts connections and says nothing."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process, self.address = process, f"127.0.0.1:{port}"

    async def visited(self) -> None:
        assert self.process.stdout is not None
        assert await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S) == b"came\n"


@asynccontextmanager
async def listener() -> AsyncIterator[Listener]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LISTENER, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield Listener(process, int(await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def watching(address: str) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(TcpPeers().died(address))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def still(task: asyncio.Task[None]) -> bool:
    done, _ = await asyncio.wait({task}, timeout=QUIET_S)
    return not done


async def test_a_killed_process_is_dead_at_once() -> None:
    took = []
    for _ in range(3):
        async with listener() as process, watching(process.address) as watch:
            await process.visited()
            started = asyncio.get_running_loop().time()
            process.process.kill()
            await asyncio.wait_for(watch, DEADLINE_S)
            took.append(asyncio.get_running_loop().time() - started)
    assert min(took) < 0.3, took


async def test_a_paused_process_is_not_dead() -> None:
    async with listener() as process, watching(process.address) as watch:
        await process.visited()
        os.kill(process.process.pid, signal.SIGSTOP)
        assert await still(watch)
        os.kill(process.process.pid, signal.SIGCONT)


async def test_a_port_that_was_never_seen_open_proves_nothing() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound and not listening: it refuses
        async with watching(f"127.0.0.1:{reserved.getsockname()[1]}") as watch:
            assert await still(watch)


async def test_a_connection_that_ends_at_a_port_that_accepts_proves_nothing() -> None:
    """A proxy whose other side is gone, or a server that closes idle connections."""
    came = 0

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.transport.abort() if came % 2 else writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server, watching(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as watch:
        assert await still(watch)
        assert 3 <= came <= 20, "it looks again, and ever less often"


async def test_one_refusal_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose queue of connections is full for a moment, or one that has just been replaced."""
    answers = iter([None, ConnectionRefusedError(), TimeoutError(), ConnectionRefusedError(), OSError(), None])
    asked: list[tuple[str, int]] = []

    async def attend(where: tuple[str, int]) -> tuple[tuple[str, int], float]:
        asked.append(where)
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        if len(asked) > 6:
            await asyncio.sleep(60)
        return ("10.0.0.7", 7401), 60.0

    monkeypatch.setattr(tcp_peers, "_attend", attend)
    async with watching("node.example:7401") as watch:
        assert await still(watch)
    assert asked == [("node.example", 7401), *[("10.0.0.7", 7401)] * 6], "the very address that it led to"
