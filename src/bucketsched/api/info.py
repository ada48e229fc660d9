"""bucketsched.v1.InfoService."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.validation import Limits
from ..ports import Clock
from ..stubs.v1 import info_pb2 as pb
from .errors import Context
from .instants import timestamp
from .rpc import Service, unary, unary_service


@dataclass(frozen=True, slots=True)
class InfoServicer:
    """Tells clients what they mint ids with and what they may send. `mode`: "embedded" or "cluster"."""

    version: str
    mode: str
    shards: int
    limits: Limits
    clock: Clock

    def service(self) -> Service:
        """To be added to a server."""
        methods = {"GetServerInfo": unary(self.get_server_info, pb.GetServerInfoRequest)}
        return unary_service("bucketsched.v1.InfoService", methods)

    async def get_server_info(self, request: pb.GetServerInfoRequest, context: Context) -> pb.GetServerInfoResponse:
        """Constants, limits and the time."""
        return pb.GetServerInfoResponse(
            version=self.version,
            mode=self.mode,
            shards=self.shards,
            payload_bytes_max=self.limits.payload_bytes_max,
            batch_tasks_max=self.limits.batch_tasks_max,
            delay_ms_max=self.limits.delay_ms_max,
            server_time=timestamp(self.clock.now_ms()),
        )
