"""bucketsched.internal.v1.ReportService: how the ranges of a process stand, for operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ports import RangeReport
from ..stubs.internal.v1 import report_pb2 as pb
from .errors import Context
from .rpc import Service, unary, unary_service


class ReportServicer:
    """Serves what `reports` tells at the moment."""

    def __init__(self, reports: Callable[[], Sequence[RangeReport]]) -> None:
        self._reports = reports

    def service(self) -> Service:
        """To be added to a server."""
        return unary_service("bucketsched.internal.v1.ReportService", {"Ranges": unary(self.ranges, pb.RangesRequest)})

    async def ranges(self, request: pb.RangesRequest, context: Context) -> pb.RangesResponse:
        """All that the process holds."""
        found = [
            pb.RangeReport(range_id=r.range_id, epoch=r.epoch, phase=r.phase, rows=r.rows) for r in self._reports()
        ]
        return pb.RangesResponse(ranges=found)
