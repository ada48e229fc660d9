"""gRPC statuses as typed errors."""

from __future__ import annotations

import re

import grpc
from google.rpc import error_details_pb2, status_pb2

from ..core.errors import (
    AlreadyExists,
    BucketschedError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    RequestError,
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
_BY_NUMBER: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


def from_call(error: grpc.aio.AioRpcError) -> BucketschedError:
    """The error of a failed call."""
    field = _field_in(error)
    return from_code(error.code(), error.details() or "", field)


def from_number(number: int, message: str, field: str) -> BucketschedError:
    """The error of an item of a batch; `number` is a google.rpc.Code."""
    return from_code(_BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN), message, field)


def from_code(code: grpc.StatusCode, message: str, field: str) -> BucketschedError:
    """The error that a status stands for. Whatever may have taken effect and can be sent again is Unavailable."""
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in message:
        return InvalidArgument("payload", f"is too large for the server: {message}")
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


def _field_in(error: grpc.aio.AioRpcError) -> str:
    """The field that the status' details name; "" where they name none."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return _first_field(status_pb2.Status.FromString(value))
    return ""


def _first_field(status: status_pb2.Status) -> str:
    for detail in status.details:
        bad_request = error_details_pb2.BadRequest()
        if detail.Unpack(bad_request) and bad_request.field_violations:
            return str(bad_request.field_violations[0].field)
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and "field" in info.metadata:
            return str(info.metadata["field"])
    return ""
