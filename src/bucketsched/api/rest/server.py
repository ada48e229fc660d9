"""Listening for HTTP within the process's own event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...core.errors import ConfigError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

BACKLOG = 2_048
CONNECTIONS_MAX = 4_000
KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than the proxies in front of it keep theirs."""
CANCEL_S_MAX = 1.0
"""How long requests that are cancelled at the end may take to notice."""


class RestServer:
    """Serves at `address` (host:port; port 0 takes a free one). `build` makes the application, in a thread.

    `start` only binds: who connects before the application is there waits a moment in the socket's backlog. So the
    process is ready before it has loaded FastAPI.
    """

    def __init__(self, address: str, build: Callable[[], ASGIApp], drain_s: float) -> None:
        self._address, self._build, self._drain_s = address, build, drain_s
        self._serving: asyncio.Task[None] | None = None
        self._server: uvicorn.Server | None = None
        self._stopped = False

    async def start(self) -> str:
        """The address as bound. Raises ConfigError where it can't be had."""
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            self._socket = _bound(found[0][0], found[0][4])
        except OSError as error:
            raise ConfigError(f"can't listen at {self._address}: {error.strerror or error}") from error
        return f"{host}:{self._socket.getsockname()[1]}"

    async def serve(self) -> None:
        """Until it is stopped. Raises what went wrong."""
        self._serving = asyncio.current_task()
        server = await asyncio.to_thread(_server, self._build, int(self._drain_s))
        if self._stopped:
            return
        self._server = server
        await self._server.serve([self._socket])

    async def stop(self) -> None:
        """Takes no more requests, and gives those under way `drain_s` to end."""
        self._stopped = True
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving], timeout=self._drain_s + CANCEL_S_MAX)
        self._socket.close()


def _bound(family: int, where: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _server(build: Callable[[], ASGIApp], drain_s: int) -> uvicorn.Server:
    """uvicorn, told to leave signals and logs to this process. Loads it."""
    import uvicorn

    from .protocol import BoundedProtocol

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    return Server(
        uvicorn.Config(
            build(),
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=drain_s,
        )
    )
