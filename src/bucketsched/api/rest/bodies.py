"""The body of a request: JSON, of a bounded size, within a bounded time, and all of them within bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from ...core.validation import Limits
from .errors import Refusal

BODY_S_MAX = 30.0
"""How long a client may take to send it."""
BODIES_BYTES_MAX = 64 * 1024 * 1024
"""Of all requests under way together."""
BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Parsing more at once would hold up the event loop for too long."""
OTHER_BYTES_MAX = 48 * 1024
"""The longest list of errors in a retry policy takes half of it."""
LENGTH_DIGITS_MAX = 20
ESCAPED_BYTES_MAX = 6
"""A character of JSON may be written as \\u0041."""


def task_bytes_max(limits: Limits) -> int:
    """What the JSON of an acceptable task takes, at most: base64 makes four bytes of three."""
    return (limits.payload_bytes_max + 2) // 3 * 4 + ESCAPED_BYTES_MAX * limits.metadata_bytes_max + OTHER_BYTES_MAX


class Bodies:
    """Reads bodies."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX, timeout_s: float = BODY_S_MAX) -> None:
        self._bytes_max, self._timeout_s = bytes_max, timeout_s
        self.held_bytes = 0
        """Of all bodies that are being read or worked at."""

    @asynccontextmanager
    async def body_of(self, request: Request, bytes_max: int) -> AsyncIterator[bytes]:
        """All of it, counted for as long as it is worked at. Raises Refusal."""
        _check_type(request)
        size = _declared(request, bytes_max)
        if size > bytes_max:
            raise _too_large(bytes_max)
        if self.held_bytes + size > self._bytes_max:
            raise Refusal(503, "RESOURCE_EXHAUSTED", "too much is being sent at once; try again", {"Retry-After": "1"})
        self.held_bytes += size
        try:
            yield await self._read(request, bytes_max)
        finally:
            self.held_bytes -= size

    async def _read(self, request: Request, bytes_max: int) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await _gathered(request, bytes_max)
        except TimeoutError:
            message = f"the body must be sent within {self._timeout_s:g} s"
            raise Refusal(408, "DEADLINE_EXCEEDED", message, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise Refusal(400, "CANCELLED", "the connection ended within the body") from None


def _declared(request: Request, bytes_max: int) -> int:
    """How long it says that it is; what it may be, where it does not say."""
    length = request.headers.get("content-length", "")
    return int(length[:LENGTH_DIGITS_MAX]) if length.isdecimal() else bytes_max


async def _gathered(request: Request, bytes_max: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise _too_large(bytes_max)
        parts.append(part)
    return b"".join(parts)


def _check_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json":
        raise Refusal(415, "INVALID_ARGUMENT", "the body must be JSON, with the header Content-Type: application/json")
    charset = parameters.replace(" ", "").replace('"', "").lower()
    if charset not in ("", "charset=utf-8"):
        raise Refusal(415, "INVALID_ARGUMENT", "the body must be UTF-8: Content-Type has no other parameter")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refusal(415, "INVALID_ARGUMENT", "the body must not be compressed")


def _too_large(bytes_max: int) -> Refusal:
    return Refusal(413, "INVALID_ARGUMENT", f"the body must be at most {bytes_max} bytes")
