"""Who may ask at all, and how many at a time: in front of the routes.

A server on loopback is within reach of every web page that is open in a browser on the machine. A page's requests
carry its Origin, and those of a page whose name was pointed at 127.0.0.1 (DNS rebinding) carry that name as Host: both
are refused. No CORS headers are sent, and bodies must be JSON, so a browser asks before it sends one, and is told no.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ...config import is_loopback, split_address
from .errors import Refusal, error_response

REQUESTS_MAX = 2_000
"""Under way at once; more are answered 503."""


class Gate:
    """An ASGI application in front of another. `loopback_only`: requests must name a loopback address as Host."""

    def __init__(self, app: ASGIApp, loopback_only: bool, requests_max: int = REQUESTS_MAX) -> None:
        self._app, self._loopback_only, self._requests_max = app, loopback_only, requests_max
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, or passes on."""
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await error_response(refusal)(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1

    def _refusal(self, headers: Headers) -> Refusal | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback_only and not _names_loopback(host):
            return Refusal(403, "PERMISSION_DENIED", "Host must be localhost or a loopback address")
        if origin is not None and origin.partition("://")[2] != host:
            return Refusal(403, "PERMISSION_DENIED", "requests of web pages are not taken")
        if self._under_way >= self._requests_max:
            message = f"{self._requests_max} requests are under way; try again"
            return Refusal(503, "RESOURCE_EXHAUSTED", message, {"Retry-After": "1"})
        return None


def _names_loopback(host: str) -> bool:
    """True for the Host header of one who asked for this machine by its own name. HTTP/1.0 may have none."""
    try:
        return is_loopback(split_address(host)[0])
    except ValueError:
        return not host or is_loopback(host.strip("[]"))
