"""A receiver of webhooks: a real HTTP server whose answers a test decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Behaviour = Callable[["Received"], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Received:
    """One request. `at`: seconds of the monotonic clock."""

    at: float
    at_ms: int
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str
    request: web.Request = field(repr=False, compare=False)


class Receiver:
    """Keeps what it gets, and answers with what is next in `answers` (a number is a status), in the end with 204."""

    def __init__(self) -> None:
        self.got: list[Received] = []
        self.answers: list[int | web.Response | Behaviour] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        peer = request.transport.get_extra_info("peername") if request.transport else None
        body = await request.read()
        now_ms = time.time_ns() // 1_000_000
        got = Received(time.monotonic(), now_ms, request.path_qs, dict(request.headers), body, str(peer), request)
        self.got.append(got)
        answer = self.answers.pop(0) if self.answers else 204
        if isinstance(answer, int):
            return web.Response(status=answer)
        return answer if isinstance(answer, web.Response) else await answer(got)


@asynccontextmanager
async def receiving(port: int = 0) -> AsyncIterator[Receiver]:
    """Serves at a loopback port."""
    receiver = Receiver()
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", receiver.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()


async def never(got: Received) -> web.StreamResponse:
    """An answer that does not come."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
