"""`/metrics` for Prometheus and `/healthz` for whoever restarts processes: a small HTTP server in a thread of its own.

What is shown is gathered in the event loop, so nothing needs a lock; formatting and sending don't hold the loop up.
`/healthz` answers 200 as long as the loop turns and the process says that it serves, else 503.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeout
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIEnvironment

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..core.errors import ConfigError

GATHER_S_MAX = 2.0
"""How long the event loop may take to answer."""
REQUEST_S_MAX = 5.0
"""How long a client may take to send its request."""

OK, SICK = "200 OK", "503 Service Unavailable"

Answer = TypeVar("Answer")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without looking up the host's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S_MAX

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""


class _InLoop(Collector):
    """Asks the event loop, from a server's thread."""

    def __init__(self, gather: Callable[[], Iterable[Metric]], loop: asyncio.AbstractEventLoop) -> None:
        self._gather, self._loop = gather, loop

    def collect(self) -> Iterable[Metric]:
        """Raises TimeoutError where the loop does not turn."""
        return _ask(self._loop, lambda: list(self._gather()))


class MetricsServer:
    """Serves at `address` (host:port; port 0 takes a free one). `gather` and `healthy` are called in the event loop."""

    def __init__(
        self, address: str, gather: Callable[[], Iterable[Metric]], healthy: Callable[[], bool] = lambda: True
    ) -> None:
        self._address, self._gather, self._healthy = address, gather, healthy
        self._server: _Server | None = None

    async def start(self) -> str:
        """The address as bound. Raises ConfigError where it can't be had."""
        host, _, port = self._address.rpartition(":")
        self._loop = asyncio.get_running_loop()
        registry = CollectorRegistry()
        registry.register(_InLoop(self._gather, self._loop))
        ProcessCollector(registry=registry)
        self._metrics = make_wsgi_app(registry)
        try:
            found = await self._loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            server_class = type("_BoundServer", (_Server,), {"address_family": found[0][0]})
            self._server = server_class(found[0][4], _Handler)
        except OSError as error:
            raise ConfigError(f"can't listen at {self._address}: {error.strerror or error}") from error
        self._server.set_app(self._answer)
        Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return f"{host}:{self._server.server_address[1]}"

    async def stop(self) -> None:
        """Answers no more."""
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
            self._server.server_close()
            self._server = None

    def _answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        try:
            if path == "/metrics":
                return self._metrics(environ, start_response)  # type: ignore[no-any-return]
            if path == "/healthz":
                serving = _ask(self._loop, self._healthy)
                return _plain(start_response, OK, "serving") if serving else _plain(start_response, SICK, "not serving")
        except FutureTimeout:
            return _plain(start_response, SICK, "the event loop does not answer")
        return _plain(start_response, "404 Not Found", "there are /metrics and /healthz")


def _ask(loop: asyncio.AbstractEventLoop, question: Callable[[], Answer]) -> Answer:
    """The answer of a function that is called in the loop. Raises TimeoutError."""

    async def asked() -> Answer:
        return question()

    return asyncio.run_coroutine_threadsafe(asked(), loop).result(GATHER_S_MAX)


def _plain(start_response: StartResponse, status: str, text: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]
