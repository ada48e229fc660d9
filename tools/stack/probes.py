"""Whether a server answers, asked in its own protocol with a few bytes. Any failure is a plain no."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable

TIMEOUT_S = 3.0


def zookeeper_answers(address: str) -> bool:
    """ZooKeeper says imok."""
    return _ask(address, b"ruok", lambda conversation: conversation.recv(4)) == b"imok"


def http_answers(address: str) -> bool:
    """An HTTP server says anything at all."""
    return _ask(address, b"GET / HTTP/1.0\r\n\r\n", lambda conversation: _exactly(conversation, 5)) == b"HTTP/"


def cassandra_answers(address: str) -> bool:
    """Cassandra answers a query of its system tables, over CQL's binary protocol, version 4."""
    options = b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0"
    query = b"SELECT key FROM system.local"
    body = struct.pack(">I", len(query)) + query + b"\x00\x01\x00"

    def converse(conversation: socket.socket) -> bytes:
        if _cql_answer(conversation) == b"\x02":
            conversation.sendall(_cql_frame(7, body))
        return _cql_answer(conversation)

    return _ask(address, _cql_frame(1, options), converse) == b"\x08"


def kafka_answers(address: str) -> bool:
    """Kafka names at least one broker and the controller (Metadata, version 4, of no topics)."""
    client = b"stack"
    request = struct.pack(">hhih", 3, 4, 1, len(client)) + client + struct.pack(">ib", 0, 0)
    answer = _ask(address, struct.pack(">i", len(request)) + request, _sized)
    return answer is not None and len(answer) > 12 and struct.unpack(">i", answer[8:12])[0] >= 1


def _ask(address: str, request: bytes, converse: Callable[[socket.socket], bytes]) -> bytes | None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), TIMEOUT_S) as conversation:
            conversation.settimeout(TIMEOUT_S)
            conversation.sendall(request)
            return converse(conversation)
    except (OSError, struct.error):
        return None


def _exactly(conversation: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = conversation.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed half-way")
        data += piece
    return data


def _sized(conversation: socket.socket) -> bytes:
    return _exactly(conversation, struct.unpack(">i", _exactly(conversation, 4))[0])


def _cql_frame(opcode: int, body: bytes) -> bytes:
    return struct.pack(">BBhBI", 4, 0, 1, opcode, len(body)) + body


def _cql_answer(conversation: socket.socket) -> bytes:
    """The opcode of an answer."""
    head = _exactly(conversation, 9)
    _exactly(conversation, struct.unpack(">I", head[5:])[0])
    return head[4:5]
