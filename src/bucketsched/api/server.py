"""One listening address with its services, health and, if wanted, reflection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_NAME
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from ..core.errors import ConfigError
from .rpc import Service

MESSAGE_BYTES_MAX = 72 * 1024 * 1024
"""A batch of 1,000 tasks of 64 KiB, and what surrounds them. Larger messages are answered RESOURCE_EXHAUSTED."""
RPCS_MAX = 10_000
"""RPCs under way; more are answered RESOURCE_EXHAUSTED."""
RPCS_PENDING_MAX = 2 * RPCS_MAX
"""RPCs that have arrived and are not yet under way; beyond (grpc's default is 1,000) they are cut off as CANCELLED."""
PORT_MAX = 65_535

_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server.max_pending_requests", RPCS_MAX),
    ("grpc.server.max_pending_requests_hard_limit", RPCS_PENDING_MAX),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)


class GrpcServer:
    """Serves `services` at `address` (host:port; port 0 takes a free one)."""

    def __init__(
        self,
        address: str,
        services: Sequence[Service],
        *,
        with_reflection: bool = False,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self._address = address
        self._names = [service.name for service in services]
        self._health = health.HealthServicer()
        options = (*_OPTIONS, ("grpc.max_receive_message_length", message_bytes_max))
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=RPCS_MAX)
        for service in services:
            service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if with_reflection:
            names = [*self._names, HEALTH_NAME, reflection.SERVICE_NAME]
            reflection.enable_server_reflection(names, self._server)

    async def start(self) -> str:
        """Binds and serves; the address as bound. Raises ConfigError where the address can't be had."""
        await _check_free(self._address)
        try:
            port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigError(f"can't listen at {self._address}: {error}") from error
        await self._server.start()
        for name in self._names:
            await self.set_serving(name, True)
        return f"{self._address.rpartition(':')[0]}:{port}"

    async def set_serving(self, service: str, serving: bool) -> None:
        """What the health service says of one service; "" stands for the whole process."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING, takes no more RPCs, and gives those under way this long to end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_s)


async def _check_free(address: str) -> None:
    """Finds out why an address can't be had, which grpc would only log."""
    host, _, port = address.rpartition(":")
    try:
        if not 0 <= int(port) <= PORT_MAX:
            raise ValueError(f"there is no port {port}")
        found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(f"can't listen at {address}: {reason}") from error
