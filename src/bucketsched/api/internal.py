"""bucketsched.internal.v1.OwnerService: a poller's ranges, asked from other processes."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.task import TaskRow
from ..core.task_change import ChangeResult
from ..encoding.changes import change_of
from ..encoding.rows import row_from_message, row_message
from ..ports import CancelResult, HintAnswer, RangeOwner
from ..stubs.internal.v1 import owner_pb2 as pb
from ..stubs.internal.v1 import storage_pb2
from .errors import Context
from .rpc import Service, unary, unary_service

ID_BYTES = 16

_ANSWERS = {
    HintAnswer.TAKEN: pb.ANSWER_TAKEN,
    HintAnswer.NOT_OWNER: pb.ANSWER_NOT_OWNER,
    HintAnswer.NOT_READY: pb.ANSWER_NOT_READY,
    HintAnswer.NO_ROW: pb.ANSWER_NO_ROW,
}
_RESULTS = {
    CancelResult.CANCELLED: pb.CANCEL_RESULT_CANCELLED,
    CancelResult.ALREADY_DISPATCHED: pb.CANCEL_RESULT_ALREADY_DISPATCHED,
    CancelResult.ALREADY_CANCELLED: pb.CANCEL_RESULT_ALREADY_CANCELLED,
    CancelResult.ALREADY_FAILED: pb.CANCEL_RESULT_ALREADY_FAILED,
    CancelResult.NOT_FOUND: pb.CANCEL_RESULT_NOT_FOUND,
}
_CHANGE_RESULTS = {
    ChangeResult.CHANGED: pb.CHANGE_RESULT_CHANGED,
    ChangeResult.ALREADY_DISPATCHED: pb.CHANGE_RESULT_ALREADY_DISPATCHED,
    ChangeResult.ALREADY_CANCELLED: pb.CHANGE_RESULT_ALREADY_CANCELLED,
    ChangeResult.ALREADY_FAILED: pb.CHANGE_RESULT_ALREADY_FAILED,
    ChangeResult.OTHER_GENERATION: pb.CHANGE_RESULT_OTHER_GENERATION,
    ChangeResult.NOT_FOUND: pb.CHANGE_RESULT_NOT_FOUND,
}


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
                "Ready": unary(self.ready, pb.ReadyRequest),
            },
        )

    async def hint(self, request: pb.HintRequest, context: Context) -> pb.HintResponse:
        """One answer a row."""
        answers = await self._owner.hint([_row(message) for message in request.rows])
        return pb.HintResponse(answers=[_ANSWERS[answer] for answer in answers])

    async def admit(self, request: pb.AdmitRequest, context: Context) -> pb.AdmitResponse:
        """TAKEN: it will be dispatched, or was."""
        return pb.AdmitResponse(answer=_ANSWERS[await self._owner.admit(_row(request.row))])

    async def cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        """A result, or an answer that says why there is none."""
        _check_ids(request.namespace_id, request.task_id)
        result = await self._owner.cancel(request.namespace_id, request.task_id)
        if isinstance(result, HintAnswer):
            return pb.CancelResponse(answer=_ANSWERS[result])
        return pb.CancelResponse(answer=pb.ANSWER_TAKEN, result=_RESULTS[result])

    async def change(self, request: pb.ChangeRequest, context: Context) -> pb.ChangeResponse:
        """A result, or an answer that says why there is none."""
        _check_ids(request.namespace_id, request.task_id)
        try:
            change = change_of(request)
        except ValueError as error:
            raise InvalidArgument("priority", str(error)) from error
        changed = await self._owner.change(request.namespace_id, request.task_id, change)
        if isinstance(changed, HintAnswer):
            return pb.ChangeResponse(answer=_ANSWERS[changed])
        row = row_message(changed.row) if changed.row is not None else None
        return pb.ChangeResponse(answer=pb.ANSWER_TAKEN, result=_CHANGE_RESULTS[changed.result], row=row)

    async def ready(self, request: pb.ReadyRequest, context: Context) -> pb.ReadyResponse:
        """Noted."""
        await self._owner.ready(list(request.range_ids), request.lane)
        return pb.ReadyResponse()


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
