"""How ranges stand, asked of their owners over the internal gRPC service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio

from ..ports import Member, RangeReport
from ..stubs.internal.v1 import report_pb2 as pb
from ..stubs.internal.v1 import report_pb2_grpc

RPC_TIMEOUT_S = 2.0


class GrpcReports:
    """Asks all at once. Who does not answer in time is left out."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def of(self, members: Sequence[Member]) -> dict[int, RangeReport]:
        """By range. Where two processes claim one, the later epoch counts. Never raises."""
        asked = [self._ask(member.internal_address) for member in members if member.internal_address]
        reports = [report for answer in await asyncio.gather(*asked) for report in answer]
        return {report.range_id: report for report in sorted(reports, key=lambda report: report.epoch)}

    async def close(self) -> None:
        """Closes all channels."""
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))

    async def _ask(self, address: str) -> list[RangeReport]:
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address)
        stub = report_pb2_grpc.ReportServiceStub(self._channels[address])
        try:
            response = await stub.Ranges(pb.RangesRequest(), timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return []
        return [RangeReport(r.range_id, r.epoch, r.phase, r.rows) for r in response.ranges]
