"""bucketsched.internal.v1.OwnerService: a poller's ranges, asked from other processes."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.execution import AttemptReport, EndResult
from ..core.task import ATTEMPT_MAX, TaskRow
from ..encoding.answers import ANSWERS, CANCEL_RESULTS, CHANGE_RESULTS, END_RESULTS
from ..encoding.attempts import report_of
from ..encoding.changes import change_of
from ..encoding.rows import row_from_message, row_message
from ..ports import HintAnswer, RangeOwner
from ..stubs.internal.v1 import owner_pb2 as pb
from ..stubs.internal.v1 import storage_pb2
from .errors import Context
from .rpc import Service, unary, unary_service

ID_BYTES = 16


class OwnerServicer:
    """Serves a RangeOwner. A range that is not its own, or not ready, is an answer and not an error."""

    def __init__(self, owner: RangeOwner) -> None:
        self._owner = owner

    def service(self) -> Service:
        """To be added to a server."""
        return unary_service(
            "bucketsched.internal.v1.OwnerService",
            {
                "Hint": unary(self.hint, pb.HintRequest),
                "Admit": unary(self.admit, pb.AdmitRequest),
                "Cancel": unary(self.cancel, pb.CancelRequest),
                "Change": unary(self.change, pb.ChangeRequest),
                "Finish": unary(self.finish, pb.FinishRequest),
                "Ready": unary(self.ready, pb.ReadyRequest),
            },
        )

    async def hint(self, request: pb.HintRequest, context: Context) -> pb.HintResponse:
        """One answer a row."""
        answers = await self._owner.hint([_row(message) for message in request.rows])
        return pb.HintResponse(answers=[ANSWERS[answer] for answer in answers])

    async def admit(self, request: pb.AdmitRequest, context: Context) -> pb.AdmitResponse:
        """TAKEN: it will be dispatched, or was."""
        return pb.AdmitResponse(answer=ANSWERS[await self._owner.admit(_row(request.row))])

    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """A result, or an answer that says why there is none."""
        _check_ids(request.namespace_id, request.task_id)
        result = await self._owner.cancel(request.namespace_id, request.task_id)
        if isinstance(result, HintAnswer):
            return pb.CancelResponse(answer=ANSWERS[result])
        return pb.CancelResponse(answer=pb.ANSWER_TAKEN, result=CANCEL_RESULTS[result])

    async def change(self, request: pb.ChangeRequest, context: Context) -> pb.ChangeResponse:
        """A result, or an answer that says why there is none."""
        _check_ids(request.namespace_id, request.task_id)
        try:
            change = change_of(request)
        except ValueError as error:
            raise InvalidArgument("priority", str(error)) from error
        changed = await self._owner.change(request.namespace_id, request.task_id, change)
        if isinstance(changed, HintAnswer):
            return pb.ChangeResponse(answer=ANSWERS[changed])
        row = row_message(changed.row) if changed.row is not None else None
        return pb.ChangeResponse(answer=pb.ANSWER_TAKEN, result=CHANGE_RESULTS[changed.result], row=row)

    async def finish(self, request: pb.FinishRequest, context: Context) -> pb.FinishResponse:
        """For each report a result, or an answer that says why there is none."""
        answers = await self._owner.finish([_report(message) for message in request.reports])
        return pb.FinishResponse(answers=[_finish_answer(answer) for answer in answers])

    async def ready(self, request: pb.ReadyRequest, context: Context) -> pb.ReadyResponse:
        """Noted."""
        await self._owner.ready(list(request.range_ids), request.lane)
        return pb.ReadyResponse()


def _finish_answer(answer: EndResult | HintAnswer) -> pb.FinishAnswer:
    if isinstance(answer, HintAnswer):
        return pb.FinishAnswer(answer=ANSWERS[answer])
    return pb.FinishAnswer(answer=pb.ANSWER_TAKEN, result=END_RESULTS[answer])


def _report(message: pb.AttemptReport) -> AttemptReport:
    _check_ids(message.attempt.namespace_id, message.attempt.task_id)
    try:
        report = report_of(message)
    except ValueError as error:
        raise InvalidArgument("reports.attempt.end", str(error)) from error
    attempt = report.attempt
    if attempt.end is None or not 0 <= attempt.generation < 1 << 32 or not 1 <= attempt.attempt <= ATTEMPT_MAX:
        raise InvalidArgument("reports.attempt", "must have ended, and be of a generation and attempt that can be")
    if not 0 <= report.row_due_ms < 1 << 63:
        raise InvalidArgument("reports.row_due_ms", "must not be negative")
    return report


def _row(message: storage_pb2.StoredRow) -> TaskRow:
    _check_ids(message.namespace_id, message.task_id)
    try:
        return row_from_message(message)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument("row", str(error)) from error


def _check_ids(namespace_id: bytes, task_id: bytes) -> None:
    for value, field in ((namespace_id, "namespace_id"), (task_id, "task_id")):
        if len(value) != ID_BYTES:
            raise InvalidArgument(field, f"must be {ID_BYTES} bytes, has {len(value)}")
