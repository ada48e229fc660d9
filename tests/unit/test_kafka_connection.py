"""A socket that is closed under aiokafka's hands."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from bucketsched.adapters.kafka.connection import Connection
from bucketsched.config import KafkaSettings


async def closed_writer() -> asyncio.StreamWriter:
    """A writer whose transport is gone, which its owner does not know yet."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    _, writer = await asyncio.open_connection(host, port)
    writer.transport.abort()
    await asyncio.sleep(0.05)
    server.close()
    return writer


class Versions(dict[Any, Any]):
    """Every request in its first version."""

    def get(self, key: Any, default: Any = None) -> Any:
        return (0, 0)

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return (0, 0)


async def send_on_closed() -> None:
    connection: Any = AIOKafkaConnection("127.0.0.1", 1)
    connection._versions, connection._writer = Versions(), await closed_writer()
    with pytest.raises(KafkaConnectionError, match="is closed"):
        connection.send(MetadataRequest([]))
    assert not connection.connected()


async def write_on_closed() -> None:
    writer = await closed_writer()
    with pytest.raises(RuntimeError, match="closed"):
        writer.write(b"x")


def test_uvloop_tells_of_a_closed_socket_by_a_runtime_error() -> None:
    """What `mind_closed_sockets` is there for; it may go when this is no longer so."""
    uvloop.run(write_on_closed())


def test_a_request_on_a_closed_socket_was_not_sent() -> None:
    uvloop.run(send_on_closed())


async def test_closing_ends_well_whatever_the_client_says() -> None:
    class Client:
        async def close(self) -> None:
            raise RuntimeError("the handler is closed")

    connection = Connection(KafkaSettings(), "test")
    connection._client = Client()  # type: ignore[assignment]
    await connection.close()
