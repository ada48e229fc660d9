"""/tasks."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from ...core import task_id as ids
from ...core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from ...core.durations import instant_ms, length_ms, seconds_ms
from ...core.errors import FailedPrecondition, InvalidArgument, RequestError
from ...core.message import rfc3339
from ...core.task import Priority, StoredTask, TaskState, fold
from ...core.validation import Limits
from ...core.validation import NewTask as CoreTask
from ...ports import CancelResult
from ...service.tasks import Created, CreateResult, TaskService
from . import models
from .bodies import BATCH_BYTES_MAX, Bodies, task_bytes_max
from .errors import JSON, encoded, error_of, error_response, json_response
from .json_text import Members, Written, elements, is_json, members
from .routes import Routes, takes

BASE64_FIELDS = {"payload": "payload_base64"}
NamespaceQuery = Query(DEFAULT_NAMESPACE, description="Whose it is.")

_CANCELLED = (CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED)


class TaskRoutes:
    """Serves the use cases of tasks."""

    def __init__(self, tasks: TaskService, limits: Limits, bodies: Bodies) -> None:
        self._tasks, self._bodies = tasks, bodies
        self._task_bytes_max = task_bytes_max(limits)

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        routes.add("POST", "/tasks", self.create, models.CreatedTask, 201, (400, 404, 413, 415, 503), takes("NewTask"))
        many = takes("NewTasks")
        routes.add("POST", "/tasks:batch", self.create_many, models.TaskResults, 200, (400, 413, 415, 503), many)
        routes.add("GET", "/tasks/{task_id}", self.get, models.Task, 200, (400, 404, 503))
        routes.add("POST", "/tasks/{task_id}/cancel", self.cancel, models.Cancelled, 200, (400, 404, 409, 503))

    async def create(self, request: Request) -> Response:
        """Create a task. 201: it is stored durably, and will be dispatched.

        503: it may or may not have been stored; send it again with the `task_id` in the answer.
        """
        async with self._bodies.body_of(request, self._task_bytes_max) as raw:
            found = members(raw)
            (result,) = await self._tasks.create_many([new_task(found)])
        if not isinstance(result, Created):
            return error_response(result, _renamed(found))
        task_id = ids.text(result.task_id)
        return json_response(_created(result), 201, {"Location": f"/tasks/{task_id}"})

    async def create_many(self, request: Request) -> Response:
        """Create many tasks. Each has a result of its own; the answer is 200 also where some were refused."""
        async with self._bodies.body_of(request, BATCH_BYTES_MAX) as raw:
            items = [_new_task_or_error(found) for found in self._listed(members(raw))]
            valid = [task for _, task in items if isinstance(task, CoreTask)]
            created = iter(await self._tasks.create_many(valid))
        results = [(found, next(created) if isinstance(task, CoreTask) else task) for found, task in items]
        return json_response({"results": [_item(result, _renamed(found)) for found, result in results]})

    async def get(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Show a task as it stands."""
        return Response(task_json(await self._tasks.get(namespace, task_id)), 200, None, JSON)

    async def cancel(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Cancel a task: 200 is for good. 409: too late, it was dispatched (or failed) before."""
        result = await self._tasks.cancel(namespace, task_id)
        if result not in _CANCELLED:
            raise FailedPrecondition("task_id", f"is {result.value}: it is too late to cancel it")
        return json_response({"task_id": task_id.lower(), "status": TaskState.CANCELLED, "outcome": result.name})

    def _listed(self, found: Members) -> list[Members]:
        """The members of each task. Raises InvalidArgument where there are too many."""
        for name in found:
            if name != "tasks":
                raise InvalidArgument(name, "there is no such field; there is tasks")
        if "tasks" not in found:
            raise InvalidArgument("tasks", "must be given")
        if isinstance(found["tasks"].value, list):
            self._tasks.check_batch(len(found["tasks"].value))
        return list(elements(found["tasks"], "tasks"))


def new_task(found: Members) -> CoreTask:
    """The task that is asked for. Raises InvalidArgument where it can't be told."""
    body = models.shaped(models.NewTask, found)
    payload, content_type = _payload(body, found.get("payload"))
    if body.task_id == "":
        raise InvalidArgument("task_id", "must not be empty: leave it out, and the server makes one")
    return CoreTask(
        body.type,
        DEFAULT_NAMESPACE if body.namespace is None else body.namespace,
        DEFAULT_QUEUE if body.queue is None else body.queue,
        payload,
        body.metadata or {},
        None if body.run_at is None else instant_ms(body.run_at, "run_at"),
        _delay_ms(body.delay),
        models.PRIORITIES[body.priority] if body.priority else Priority.NORMAL,
        body.task_id or "",
        content_type,
    )


def _payload(body: models.NewTask, written: Written | None) -> tuple[bytes, str]:
    """The payload and its content type. Raises InvalidArgument."""
    given = body.content_type or ""
    if body.payload_base64 is not None:
        if written is not None:
            raise InvalidArgument("payload_base64", "must not be given together with payload")
        try:
            return base64.b64decode(body.payload_base64, validate=True), given
        except ValueError:
            raise InvalidArgument("payload_base64", "must be base64, with its padding") from None
    if written is None:
        return b"", given
    if given and not _is_json_type(given):
        raise InvalidArgument("content_type", "must be one of JSON with payload; other bytes go into payload_base64")
    return written.text.encode(), given or JSON


def _delay_ms(delay: str | int | float | None) -> int | None:
    if delay is None:
        return None
    return length_ms(delay, "delay") if isinstance(delay, str) else seconds_ms(delay, "delay")


def _is_json_type(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def _new_task_or_error(found: Members) -> tuple[Members, CoreTask | RequestError]:
    try:
        return found, new_task(found)
    except RequestError as error:
        return found, error


def _renamed(found: Members) -> dict[str, str] | None:
    return BASE64_FIELDS if "payload_base64" in found else None


def _created(created: Created) -> dict[str, Any]:
    run_at = rfc3339(created.due_ms)
    return {"task_id": ids.text(created.task_id), "status": TaskState.PENDING, "run_at": run_at}


def _item(result: CreateResult, renamed: dict[str, str] | None) -> dict[str, Any]:
    if isinstance(result, Created):
        return {"code": 201, **_created(result)}
    error = error_of(result, renamed)
    return {"code": error["code"], "error": error}


def task_json(stored: StoredTask) -> bytes:
    """A task with its state. A payload of JSON stands there as it was sent."""
    row, body, facts = stored.row, stored.row.body, stored.facts
    told = {
        "task_id": ids.text(row.task_id),
        "namespace": body.namespace,
        "queue": body.queue,
        "type": body.type,
        "status": fold(facts),
        "run_at": rfc3339(body.nominal_due_ms),
        "priority": body.priority.name,
        "content_type": body.content_type,
        "metadata": body.metadata,
        "generation": row.generation,
        "attempts": row.attempt - (facts.dispatched_ms is None),
        "created_at": rfc3339(body.created_ms),
        "dispatched_at": _instant(facts.dispatched_ms),
        "cancelled_at": _instant(facts.cancelled_ms),
        "failed_at": _instant(facts.failed_ms),
        "error": facts.failed_reason or None,
    }
    if _is_json_type(body.content_type) and is_json(body.payload):
        return b'%b,"payload":%b}' % (encoded(told)[:-1], body.payload)
    return encoded(told | {"payload_base64": base64.b64encode(body.payload).decode()})


def _instant(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
