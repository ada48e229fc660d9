"""Errors as answers: {"error": {"code", "status", "message", "details"}}, like google.rpc.Status."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import ceil
from typing import Any

from google.rpc import code_pb2
from starlette.responses import Response

from ...core import task_id as ids
from ...core.errors import RequestError, StorageFull, Unavailable
from ...service.tasks import CreateUnavailable
from ..errors import status_of

JSON = "application/json"
FIELDS = {"due_time": "run_at", "requests": "tasks"}
"""Where a field has another name here than in gRPC."""
_FIELD = re.compile(r"\b(" + "|".join(FIELDS) + r")\b")
_HTTP_CODES = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 503,
    "UNAVAILABLE": 503,
    "INTERNAL": 500,
}


class Refusal(Exception):
    """What is wrong with a request as HTTP has it, before it means anything. `status`: a name of google.rpc's."""

    def __init__(self, code: int, status: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message
        self.headers = dict(headers or {})


def error_of(error: Exception, renamed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The error as JSON has it. `renamed`: names of fields that this request used another one for."""
    if isinstance(error, Refusal):
        return {"code": error.code, "status": error.status, "message": error.message, "details": []}
    status = status_of(error)
    name = code_pb2.Code.Name(status.code)
    message = _FIELD.sub(lambda matched: FIELDS[matched[0]], status.message)
    details = _details(error)
    for detail in details:
        if (used := (renamed or {}).get(detail.get("field", ""))) is not None:
            message = message.replace(detail["field"], used, 1)
            detail["field"] = used
    return {"code": _HTTP_CODES[name], "status": name, "message": message, "details": details}


def error_response(error: Exception, renamed: Mapping[str, str] | None = None) -> Response:
    """The answer. What was not expected is logged, and told as no more than a number to find it by."""
    told = error_of(error, renamed)
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(ceil(error.retry_after_ms / 1000))
    return json_response({"error": told}, told["code"], headers)


def json_response(content: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of JSON."""
    return Response(encoded(content), code, headers, JSON)


def encoded(content: Any) -> bytes:
    """Compact JSON. Strings that are not Unicode can't come from what was accepted, so nothing fails here."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _details(error: Exception) -> list[dict[str, Any]]:
    if isinstance(error, RequestError):
        return [{"field": FIELDS.get(error.field, error.field)}] if error.field else []
    if not isinstance(error, Unavailable):
        return []
    detail: dict[str, Any] = {"retry_after_ms": error.retry_after_ms}
    if isinstance(error, StorageFull):
        detail["reason"] = "STORAGE_FULL"
    if isinstance(error, CreateUnavailable):
        detail["task_id"] = ids.text(error.task_id)
    return [detail]
