"""What a handler's result or exception says of its attempt."""

from __future__ import annotations

import json
import traceback

from google.protobuf.duration_pb2 import Duration

from ..core.durations import DAY_MS
from ..core.execution import (
    ERROR_MESSAGE_CHARACTERS_MAX,
    ERROR_TRACE_CHARACTERS_MAX,
    ERROR_TYPE_CHARACTERS_MAX,
    RESULT_BYTES_MAX,
)
from ..stubs.v1 import worker_pb2

PAUSE_MS_MAX = 400 * DAY_MS


class NoRetry(Exception):
    """Raised by a handler: the task has failed for good. `raise NoRetry("no such customer") from error`."""


class RetryAfter(Exception):
    """Raised by a handler: the attempt has failed, and another one is to come no sooner than after `seconds`."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"asked to be tried again after {seconds:g} s")
        self.seconds = seconds


class ResultTooLarge(Exception):
    """What a handler has returned is more than the execution log keeps."""


def encode_result(result: object) -> bytes:
    """What the execution log keeps of a handler's return value: bytes and text as they are, None as nothing, all else
    as JSON. Raises ResultTooLarge, TypeError (JSON can't say it).
    """
    if result is None:
        return b""
    if isinstance(result, str):
        encoded = result.encode("utf-8", "replace")
    elif isinstance(result, bytes | bytearray | memoryview):
        encoded = bytes(result)
    else:
        encoded = json.dumps(result, separators=(",", ":")).encode()
    if len(encoded) > RESULT_BYTES_MAX:
        raise ResultTooLarge(f"the result has {len(encoded)} bytes, of {RESULT_BYTES_MAX} that are kept")
    return encoded


def failure_of(error: Exception, lease_id: int) -> worker_pb2.Fail:
    """What is told of an exception: its type and message, or those of its cause where it is one of this module."""
    told = error.__cause__ if isinstance(error, NoRetry | RetryAfter) and error.__cause__ is not None else error
    trace = "".join(traceback.format_exception(error))
    pause = Duration()
    if isinstance(error, RetryAfter):
        pause.FromMilliseconds(max(0, min(PAUSE_MS_MAX, int(error.seconds * 1000))))
    return worker_pb2.Fail(
        lease_id=lease_id,
        error_type=_clean(type(told).__name__)[:ERROR_TYPE_CHARACTERS_MAX],
        error_message=_clean(str(told))[:ERROR_MESSAGE_CHARACTERS_MAX],
        error_trace=_clean(trace)[-ERROR_TRACE_CHARACTERS_MAX:],
        final=isinstance(error, NoRetry),
        retry_after=pause,
    )


def _clean(text: str) -> str:
    """Text that protobuf takes."""
    return text.encode("utf-8", "replace").decode()
