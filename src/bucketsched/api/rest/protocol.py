"""HTTP/1.1 with a bound on what comes in front of a body, which the parser has none for."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
"""Of the request's line and headers."""
HEAD_S_MAX = 10.0
"""How long they may take to arrive, from the connection or the first byte on."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection. One whose request begins too slowly or too long is closed."""

    head_bytes_max = HEAD_BYTES_MAX
    head_s_max = HEAD_S_MAX

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._within_head, self._head_bytes = False, 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for a head."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        self._end_of_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts what arrives within a head; the piece that it began in may have held other things."""
        within = self._within_head
        super().data_received(data)
        if not (within and self._within_head):
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.head_bytes_max and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._await_head()
        self._within_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The end of a head."""
        self._end_of_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._end_of_head()
        self._head_timer = self.loop.call_later(self.head_s_max, self.transport.close)

    def _end_of_head(self) -> None:
        self._within_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
