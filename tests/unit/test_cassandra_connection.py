"""Which request an answer reaches, on a connection of the driver without a socket."""

from __future__ import annotations

import io
import struct
from typing import Any

import pytest
from cassandra.connection import Connection, _Frame, frame_header_v3

from bucketsched.adapters.cassandra.connection import UNANSWERED_MAX, connection_class

GIVEN_UP = b"\x00\x00\x10\x01\x00\x25Query timed out before it could start"
"""What Cassandra says of a request that waited too long, in a frame of stream 0."""
BUG = b"\x00\x00\x00\x00\x00\x04oops"
VOID = b"\x00\x00\x00\x01"
ERROR, RESULT = 0, 8


def unconnected() -> Any:
    kind = connection_class()

    class Unconnected(kind):  # type: ignore[misc, valid-type]
        def close(self) -> None:
            self.is_closed = True

    connection = object.__new__(Unconnected)
    Connection.__init__(connection, protocol_version=5)
    return connection


def answer(connection: Any, stream: int, opcode: int = RESULT, body: bytes = VOID) -> None:
    connection.process_msg(_Frame(5, 0, stream, opcode, 9, 9 + len(body)), body)


def sent(connection: Any, answers: list[Any]) -> int:
    """The stream of a request that was sent and now waits."""
    stream: int = connection.get_request_id()
    connection._requests[stream] = (answers.append, lambda *frame: frame[5], None)
    return stream


def test_no_request_has_the_stream_that_the_server_uses_for_what_it_gives_up() -> None:
    connection = unconnected()
    streams = [connection.get_request_id() for _ in range(1_000)]
    assert 0 not in streams
    assert len(set(streams)) == 1_000


def test_what_the_server_gives_up_is_nobodys_answer() -> None:
    connection = unconnected()
    first: list[Any] = []
    second: list[Any] = []
    streams = sent(connection, first), sent(connection, second)
    for _ in range(3):
        answer(connection, 0, ERROR, GIVEN_UP)
    assert (first, second, connection.unanswered) == ([], [], 3)
    assert 0 not in {sent(connection, []) for _ in range(1_000)}, "handed out after such an answer"
    for stream in streams:
        answer(connection, stream)
    assert (first, second) == ([VOID], [VOID])
    assert not connection.is_closed


def test_a_connection_ends_when_too_much_was_given_up() -> None:
    connection = unconnected()
    waiting: list[Any] = []
    sent(connection, waiting)
    for _ in range(UNANSWERED_MAX - 1):
        answer(connection, 0, ERROR, GIVEN_UP)
    assert not connection.is_closed
    answer(connection, 0, ERROR, GIVEN_UP)
    assert connection.is_closed
    assert len(waiting) == 1, "whoever waits is told"


@pytest.mark.parametrize("body", [BUG, b"?"], ids=["another error", "no error"])
def test_anything_else_that_names_no_request_ends_the_connection(body: bytes) -> None:
    connection = unconnected()
    answer(connection, 0, ERROR, body)
    assert connection.is_closed


def test_an_answer_that_nobody_waits_for_ends_the_connection() -> None:
    connection = unconnected()
    answers: list[Any] = []
    stream = sent(connection, answers)
    answer(connection, stream)
    answer(connection, stream)
    assert answers == [VOID]
    assert connection.is_closed
    assert list(connection.request_ids).count(stream) == 1


def test_an_answer_to_what_the_driver_gave_up_is_expected() -> None:
    connection = unconnected()
    stream = sent(connection, [])
    del connection._requests[stream]
    connection.orphaned_request_ids.add(stream)
    answer(connection, stream)
    assert not connection.is_closed


def test_a_closed_connection_says_nothing_more() -> None:
    connection = unconnected()
    answers: list[Any] = []
    stream = sent(connection, answers)
    connection.is_closed = True
    answer(connection, stream)
    assert answers == []


def test_a_stream_in_use_is_not_handed_out_again() -> None:
    connection = unconnected()
    stream = sent(connection, [])
    connection.request_ids.appendleft(stream)
    assert connection.get_request_id() != stream


def test_a_full_socket_does_not_stop_requests() -> None:
    """The driver checks this flag before it queues a request, and fails the request where it is False."""
    connection = unconnected()
    connection._socket_writable = False
    assert connection._socket_writable


def test_answers_may_be_cut_anywhere_on_their_way() -> None:
    """The driver forgets the first bytes of a segment if less than its header has come."""
    data = b"".join(_segment(_frame(stream) + _frame(stream + 100)) for stream in range(1, 4))
    for cut in range(1, len(data)):
        connection = unconnected()
        connection._enable_checksumming()
        seen: list[int] = []
        connection.process_msg = lambda frame, body, seen=seen: seen.append(frame.stream)
        for piece in (data[:cut], data[cut:]):
            connection._iobuf.write(piece)
            connection.process_io_buffer()
        assert seen == [1, 101, 2, 102, 3, 103], f"cut after {cut} bytes: {connection.last_error}"


def _frame(stream: int) -> bytes:
    header: bytes = frame_header_v3.pack(0, stream, RESULT, len(VOID))
    return struct.pack("B", 0x85) + header + VOID


def _segment(payload: bytes) -> bytes:
    connection, buffer = unconnected(), io.BytesIO()
    connection._enable_checksumming()
    connection._segment_codec.encode(buffer, payload)
    return bytes(buffer.getvalue())
