"""gRPC statuses as typed errors."""

from __future__ import annotations

import re
from typing import NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

from ..core.errors import (
    AlreadyExists,
    BucketschedError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    RequestError,
    StorageFull,
    Unavailable,
)

_DETAILS_KEY = "grpc-status-details-bin"
_FIELD_PREFIX = re.compile(r"([a-z][a-z0-9_.\[\]]*): (.*)", re.DOTALL)
_REQUEST_ERRORS: dict[grpc.StatusCode, type[RequestError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.UNIMPLEMENTED: FailedPrecondition,
}
_RETRYABLE = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
_TOO_LARGE = "larger than max"
STORAGE_FULL = "STORAGE_FULL"
RETRY_AFTER_MS_MAX = 30_000
"""A server that asks for more is asked sooner all the same."""
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def from_call(error: grpc.aio.AioRpcError) -> BucketschedError:
    """The error of a failed call."""
    told = _told(error)
    return from_code(error.code(), error.details() or "", told.field, told.retry_after_ms, told.reason)


def from_number(number: int, message: str, field: str, retry_after_ms: int = 0) -> BucketschedError:
    """The error of an item of a batch; `number` is a google.rpc.Code."""
    code = _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)
    reason = STORAGE_FULL if code is grpc.StatusCode.RESOURCE_EXHAUSTED else ""
    return from_code(code, message, field, retry_after_ms, reason)


def from_code(
    code: grpc.StatusCode, message: str, field: str, retry_after_ms: int = 0, reason: str = ""
) -> BucketschedError:
    """The error that a status stands for. Whatever may have taken effect and can be sent again is Unavailable."""
    error = _from_code(code, message, field, reason)
    if isinstance(error, Unavailable):
        error.retry_after_ms = min(max(0, retry_after_ms), RETRY_AFTER_MS_MAX)
    return error


def _from_code(code: grpc.StatusCode, message: str, field: str, reason: str) -> BucketschedError:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in message:
        return InvalidArgument("payload", f"is too large for the server: {message}")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and reason == STORAGE_FULL:
        return StorageFull(f"{code.name}: {message}")
    if code in _RETRYABLE:
        return Unavailable(f"{code.name}: {message}")
    kind = _REQUEST_ERRORS.get(code)
    if kind is None:
        return BucketschedError(f"{code.name}: {message}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return kind("", f"this server does not serve that: {message}")
    split = _FIELD_PREFIX.fullmatch(message)
    if split and field in ("", split[1]):
        return kind(split[1], split[2])
    return kind(field, message)


class _Told(NamedTuple):
    """What a status' details say; empty where they say nothing."""

    field: str = ""
    retry_after_ms: int = 0
    reason: str = ""


def _told(error: grpc.aio.AioRpcError) -> _Told:
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return _read(status_pb2.Status.FromString(value))
    return _Told()


def _read(status: status_pb2.Status) -> _Told:
    told = _Told()
    for detail in status.details:
        bad_request, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request) and bad_request.field_violations:
            told = told._replace(field=str(bad_request.field_violations[0].field))
        elif detail.Unpack(info):
            told = told._replace(field=told.field or str(info.metadata.get("field", "")), reason=str(info.reason))
        elif detail.Unpack(retry):
            told = told._replace(retry_after_ms=retry.retry_delay.ToMilliseconds())
    return told
