"""Errors as gRPC statuses, with details in google.rpc's standard messages."""

from __future__ import annotations

import logging
import uuid
from typing import Any, NoReturn

import grpc.aio
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from ..core import task_id as ids
from ..core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    RequestError,
    StorageFull,
    Unavailable,
)
from ..service.tasks import CreateUnavailable

Context = grpc.aio.ServicerContext[Any, Any]
DOMAIN = "bucketsched"
DETAIL_LENGTH_MAX = 1_000
"""Statuses travel in HTTP/2 trailers, which peers limit to 8 KiB."""

_UNAVAILABLE: int = code_pb2.UNAVAILABLE
_STORAGE_FULL: int = code_pb2.RESOURCE_EXHAUSTED
_CODES: dict[type[RequestError], int] = {
    InvalidArgument: code_pb2.INVALID_ARGUMENT,
    NotFound: code_pb2.NOT_FOUND,
    AlreadyExists: code_pb2.ALREADY_EXISTS,
    FailedPrecondition: code_pb2.FAILED_PRECONDITION,
}

log = logging.getLogger(__name__)


def code_of(error: RequestError | Unavailable) -> int:
    """The google.rpc.Code of an error."""
    if isinstance(error, RequestError):
        return _CODES[type(error)]
    return _STORAGE_FULL if isinstance(error, StorageFull) else _UNAVAILABLE


def retry_delay(error: Unavailable) -> Duration:
    """How long the client is asked to wait."""
    delay = Duration()
    delay.FromMilliseconds(error.retry_after_ms)
    return delay


def message_of(error: Exception) -> str:
    """What the client is told, bounded."""
    return _shortened(str(error))


def status_of(error: Exception) -> status_pb2.Status:
    """The status of any error. What was not expected is logged, and told as no more than a number to find it by."""
    if isinstance(error, RequestError):
        return _status(code_of(error), error, *_request_details(error))
    if isinstance(error, Unavailable):
        return _status(code_of(error), error, *_unavailable_details(error))
    incident = uuid.uuid4().hex[:12]
    log.error("request failed unexpectedly (incident %s)", incident, exc_info=error)
    return status_pb2.Status(code=code_pb2.INTERNAL, message=f"internal error; the server's log has it as {incident}")


async def abort(context: Context, error: Exception) -> NoReturn:
    """Ends the RPC with the error's status: always raises."""
    status = rpc_status.to_status(status_of(error))
    await context.abort(status.code, status.details, status.trailing_metadata)
    raise AssertionError("unreachable: abort raises")


def _status(code: int, error: Exception, *details: Message) -> status_pb2.Status:
    status = status_pb2.Status(code=code, message=message_of(error))
    for detail in details:
        packed = Packed()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def _request_details(error: RequestError) -> list[Message]:
    reason = code_pb2.Code.Name(code_of(error))
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={"field": _shortened(error.field)})
    if not isinstance(error, InvalidArgument):
        return [info]
    violation = error_details_pb2.BadRequest.FieldViolation(
        field=_shortened(error.field), description=_shortened(error.message)
    )
    return [error_details_pb2.BadRequest(field_violations=[violation]), info]


def _unavailable_details(error: Unavailable) -> list[Message]:
    retry = error_details_pb2.RetryInfo(retry_delay=retry_delay(error))
    reason = "STORAGE_FULL" if isinstance(error, StorageFull) else "UNAVAILABLE"
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    if isinstance(error, CreateUnavailable):
        info.metadata["task_id"] = ids.text(error.task_id)
    return [retry, info]


def _shortened(text: str) -> str:
    return text if len(text) <= DETAIL_LENGTH_MAX else f"{text[:DETAIL_LENGTH_MAX]}…"
