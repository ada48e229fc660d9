"""A connection of the driver on which an answer reaches the request that it belongs to, or nobody.

Requests on a connection are told apart by a number, the stream. Cassandra 5.0 gives what waited in its queue for longer
than native_transport_timeout an answer with stream 0, whatever its own was. The driver takes it for the answer to its
own request 0, and hands 0 out again, more often with each such answer: requests get each other's rows. Hence no request
has stream 0 here, and whatever else nobody waits for ends the connection.
"""

from __future__ import annotations

from typing import Any

import structlog

log = structlog.get_logger(__name__)
NOBODYS_STREAM = 0
UNANSWERED_MAX = 256
"""Requests that the server gave up, which it does not name, before a connection is replaced: the driver keeps them."""


def connection_class() -> Any:
    """A libev connection of the driver, mended."""
    from cassandra.connection import ConnectionException
    from cassandra.io.libevreactor import LibevConnection
    from cassandra.protocol import OverloadedErrorMessage, ProtocolHandler

    class MendedConnection(LibevConnection):  # type: ignore[misc]
        unanswered = 0

        @property
        def _socket_writable(self) -> bool:
            """Requests queue while the socket's buffer is full; what may be queued is bounded by those who send.

            The driver would answer ConnectionBusy, to reads behind large writes too, and forget the request's stream.
            """
            return True

        @_socket_writable.setter
        def _socket_writable(self, _: bool) -> None:
            pass

        def get_request_id(self) -> int:
            """A stream that nobody uses. The caller holds the connection's lock."""
            while True:
                stream: int = super().get_request_id()
                if stream != NOBODYS_STREAM and stream not in self._requests:
                    return stream

        def process_msg(self, header: Any, body: Any) -> None:
            """One answer, or an event (of a stream below 0), in the driver's thread."""
            stream = header.stream
            if self.is_closed:
                return
            if stream == NOBODYS_STREAM:
                self._given_up(header, body)
            elif stream > 0 and stream not in self._requests and stream not in self.orphaned_request_ids:
                log.error("an answer that nobody waits for: the connection ends", node=str(self.endpoint))
                self.defunct(ConnectionException(f"an answer to nobody, stream {stream}", self.endpoint))
            else:
                super().process_msg(header, body)

        def _given_up(self, header: Any, body: Any) -> None:
            """Some request will have no answer; its sender finds out by its deadline."""
            try:
                error = ProtocolHandler.decode_message(
                    header.version, {}, header.stream, header.flags, header.opcode, body, self.decompressor, None
                )
            except Exception as failure:
                error = failure
            self.unanswered += 1
            if not isinstance(error, OverloadedErrorMessage) or self.unanswered >= UNANSWERED_MAX:
                self.defunct(ConnectionException(f"an answer without a request: {error}", self.endpoint))
            elif self.unanswered == 1:
                log.warning("Cassandra gives requests up that waited too long", node=str(self.endpoint))

        def _process_segment_buffer(self) -> None:
            super()._process_segment_buffer()
            if not self._io_buffer.has_consumed_segment:
                self._io_buffer.io_buffer.seek(0)  # the driver drops a segment's header that came in part

    return MendedConnection
