"""The execution log of a task: GET /tasks/{task_id}/attempts."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import Query
from starlette.responses import Response

from ...core.catalog import DEFAULT_NAMESPACE
from ...core.execution import Attempt
from ...core.message import rfc3339
from ...service.executions import PAGE_DEFAULT, PAGE_MAX
from ...service.tasks import TaskService
from . import models
from .errors import JSON, encoded
from .json_text import is_json
from .routes import Routes

NamespaceQuery = Query(DEFAULT_NAMESPACE, description="Whose it is.")
SizeQuery = Query(0, description=f"0 to {PAGE_MAX}; 0: {PAGE_DEFAULT}.")
TokenQuery = Query("", description="`next_page_token` of the page before.")


class AttemptRoutes:
    """Serves the execution log."""

    def __init__(self, tasks: TaskService) -> None:
        self._tasks = tasks

    def add_to(self, routes: Routes) -> None:
        """The path."""
        routes.add("GET", "/tasks/{task_id}/attempts", self.list, models.Attempts, 200, (400, 404, 503))

    async def list(
        self,
        task_id: str,
        namespace: str = NamespaceQuery,
        page_size: int = SizeQuery,
        page_token: str = TokenQuery,
    ) -> Response:
        """List the attempts at a task, oldest first, of a long log its last 1,000 entries."""
        page = await self._tasks.attempts(namespace, task_id, page_size, page_token)
        attempts = b",".join(map(attempt_json, page.attempts))
        following = encoded(page.next_page_token)
        return Response(b'{"attempts":[%b],"next_page_token":%b}' % (attempts, following), 200, None, JSON)


def attempt_json(attempt: Attempt) -> bytes:
    """An entry. A result of JSON stands there as it was sent."""
    told: dict[str, Any] = {
        "generation": attempt.generation,
        "attempt": attempt.attempt,
        "started_at": _instant(attempt.started_ms),
        "ended_at": _instant(attempt.ended_ms),
        "outcome": attempt.end,
        "worker": attempt.worker or None,
        "error_type": attempt.error_type or None,
        "error_message": attempt.error_message or None,
        "error_trace": attempt.error_trace or None,
        "retry_at": _instant(attempt.retry_ms),
    }
    if not attempt.result:
        return encoded(told)
    if is_json(attempt.result):
        return b'%b,"result":%b}' % (encoded(told)[:-1], attempt.result)
    return encoded(told | {"result_base64": base64.b64encode(attempt.result).decode()})


def _instant(ms: int) -> str | None:
    return rfc3339(ms) if ms else None
