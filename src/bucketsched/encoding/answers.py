"""What owners answer, as it travels between nodes."""

from __future__ import annotations

from ..core.execution import EndResult
from ..core.owner_answers import CancelResult, HintAnswer
from ..core.task_change import ChangeResult
from ..stubs.internal.v1 import owner_pb2 as pb

ANSWERS = {
    HintAnswer.TAKEN: pb.ANSWER_TAKEN,
    HintAnswer.NOT_OWNER: pb.ANSWER_NOT_OWNER,
    HintAnswer.NOT_READY: pb.ANSWER_NOT_READY,
    HintAnswer.NO_ROW: pb.ANSWER_NO_ROW,
}
CANCEL_RESULTS = {
    CancelResult.CANCELLED: pb.CANCEL_RESULT_CANCELLED,
    CancelResult.ALREADY_DISPATCHED: pb.CANCEL_RESULT_ALREADY_DISPATCHED,
    CancelResult.ALREADY_CANCELLED: pb.CANCEL_RESULT_ALREADY_CANCELLED,
    CancelResult.ALREADY_FAILED: pb.CANCEL_RESULT_ALREADY_FAILED,
    CancelResult.ALREADY_SUCCEEDED: pb.CANCEL_RESULT_ALREADY_SUCCEEDED,
    CancelResult.ALREADY_EXPIRED: pb.CANCEL_RESULT_ALREADY_EXPIRED,
    CancelResult.NOT_FOUND: pb.CANCEL_RESULT_NOT_FOUND,
}
CHANGE_RESULTS = {
    ChangeResult.CHANGED: pb.CHANGE_RESULT_CHANGED,
    ChangeResult.ALREADY_DISPATCHED: pb.CHANGE_RESULT_ALREADY_DISPATCHED,
    ChangeResult.ALREADY_CANCELLED: pb.CHANGE_RESULT_ALREADY_CANCELLED,
    ChangeResult.ALREADY_FAILED: pb.CHANGE_RESULT_ALREADY_FAILED,
    ChangeResult.ALREADY_SUCCEEDED: pb.CHANGE_RESULT_ALREADY_SUCCEEDED,
    ChangeResult.ALREADY_EXPIRED: pb.CHANGE_RESULT_ALREADY_EXPIRED,
    ChangeResult.OTHER_GENERATION: pb.CHANGE_RESULT_OTHER_GENERATION,
    ChangeResult.NOT_FOUND: pb.CHANGE_RESULT_NOT_FOUND,
}
END_RESULTS = {
    EndResult.TAKEN: pb.END_RESULT_TAKEN,
    EndResult.ALREADY_ENDED: pb.END_RESULT_ALREADY_ENDED,
    EndResult.NOT_FOUND: pb.END_RESULT_NOT_FOUND,
}
ANSWERS_BACK = {value: key for key, value in ANSWERS.items()}
CANCEL_RESULTS_BACK = {value: key for key, value in CANCEL_RESULTS.items()}
CHANGE_RESULTS_BACK = {value: key for key, value in CHANGE_RESULTS.items()}
END_RESULTS_BACK = {value: key for key, value in END_RESULTS.items()}
