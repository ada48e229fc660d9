"""The connection to the brokers that everything here but the group consumer shares.

aiokafka's client does sockets, TLS, SASL, framing and versions. Requests are sent one by one and answered or not;
nothing is retried in here, because what may be repeated depends on the request.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import structlog
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError, NodeNotReadyError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from ...config import KafkaSettings
from ...core.errors import Unavailable
from .closed_sockets import mind_closed_sockets
from .codes import Code

mind_closed_sockets()
log = structlog.get_logger(__name__)
REQUEST_TIMEOUT_MS = 3_000
"""A request that is not answered within this counts as unanswered, and its connection is dropped."""
RETRY_BACKOFF_MS = 50
CLOSE_S_MAX = 1.0

DATA = ConnectionGroup.DEFAULT
COORDINATION = ConnectionGroup.COORDINATION
READING = 2
"""Journal reads have a socket of their own: a long answer must not delay a dispatch."""


class NotSent(Unavailable):
    """The broker certainly did not get the request."""


class Unanswered(Unavailable):
    """The broker may have got the request, and may still act on it."""


def client_arguments(settings: KafkaSettings) -> dict[str, Any]:
    """What every aiokafka object gets: addresses and security."""
    arguments: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap,
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol.endswith("SSL"):
        arguments["ssl_context"] = ssl.create_default_context(cafile=settings.ca_file or None)
    if settings.security_protocol.startswith("SASL"):
        arguments["sasl_mechanism"] = settings.sasl_mechanism
        arguments["sasl_plain_username"] = settings.username
        arguments["sasl_plain_password"] = settings.password.get_secret_value()
    return arguments


class Connection:
    """Opens on first use; when no known broker can be reached, it starts again from the configured addresses."""

    def __init__(self, settings: KafkaSettings, client_id: str) -> None:
        self._arguments = client_arguments(settings) | {
            "client_id": client_id,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }
        self._client: AIOKafkaClient | None = None
        self._stale = False
        self._closed = False
        self._opening = asyncio.Lock()

    async def send(self, node: int, request: Any, group: int = DATA) -> Any:
        """The broker's response. Raises NotSent or Unanswered."""
        client = await self._opened()
        try:
            return await client.send(node, request, group=group)
        except (NodeNotReadyError, IncompatibleBrokerVersion) as error:
            raise NotSent(f"Kafka broker {node}: {error}") from error
        except (KafkaError, OSError, KeyError) as error:
            raise Unanswered(f"Kafka broker {node}: {error!r}") from error

    async def send_anywhere(self, request: Any, group: int = DATA) -> Any:
        """Like `send`, to the first broker that can be reached, in random order."""
        client = await self._opened()
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        random.shuffle(nodes)
        for node in nodes:
            try:
                return await self.send(node, request, group)
            except NotSent:
                continue
        self._stale = True
        raise NotSent(f"none of {len(nodes)} known Kafka brokers can be reached")

    async def send_to_controller(self, request: Any) -> Any:
        """Like `send`, to the broker that changes topics."""
        client = await self._opened()
        controller = client.cluster.controller
        if controller is None:
            return await self.send_anywhere(request)
        try:
            return await self.send(controller.nodeId, request)
        except NotSent:
            self._stale = True
            raise

    async def transaction_coordinator(self, transactional_id: str) -> int:
        """The broker that coordinates this id. Raises Unavailable."""
        request = FindCoordinatorRequest(transactional_id, CoordinationType.TRANSACTION)
        response = await self.send_anywhere(request, COORDINATION)
        if (code := Code(response.error_code)) is not Code.NONE:
            raise NotSent(f"transaction coordinator of {transactional_id}: {code.name}")
        return int(response.coordinator_id)

    def mark_stale(self) -> None:
        """Starts from the configured addresses at the next request."""
        self._stale = True

    async def close(self) -> None:
        """Drops every socket, within CLOSE_S_MAX."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await _within(CLOSE_S_MAX, client.close())

    async def _opened(self) -> AIOKafkaClient:
        if self._client is not None and not self._stale:
            return self._client
        async with self._opening:
            if self._client is None or self._stale:
                await self._open()
            assert self._client is not None
            return self._client

    async def _open(self) -> None:
        if self._closed:
            raise NotSent("the connection to Kafka was closed")
        client = self._client or AIOKafkaClient(**self._arguments)
        try:
            await client.bootstrap()
        except (KafkaError, OSError) as error:
            if client is not self._client:
                await _within(CLOSE_S_MAX, client.close())
            raise NotSent(f"no Kafka broker answers at {self._arguments['bootstrap_servers']}") from error
        if self._closed:
            await _within(CLOSE_S_MAX, client.close())
            raise NotSent("the connection to Kafka was closed")
        self._client, self._stale = client, False


async def _within(seconds: float, closing: Any) -> None:
    try:
        await asyncio.wait_for(closing, seconds)
    except Exception as error:  # what is left is a socket that the process's end closes
        log.debug("a client of Kafka did not close cleanly", error=repr(error))
