"""Changing a task that waits: PATCH /tasks/{task_id} and POST /tasks/{task_id}/run."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ...core.errors import FailedPrecondition, InvalidArgument, RequestError
from ...core.task import StoredTask
from ...core.task_change import ChangeResult
from ...core.task_update import TaskUpdate
from ...core.validation import Limits
from ...ports import Changed
from ...service.executions import shown_by_facts
from ...service.tasks import TaskService
from . import models
from .bodies import Bodies, task_bytes_max
from .content import delay_ms, instant_or_none_ms, payload_of, priority_of, renamed, run_at_ms
from .errors import JSON, error_response
from .json_text import Members, members
from .routes import Routes, takes
from .tasks import NamespaceQuery, task_json

CHANGEABLE = (*models.Content.model_fields, "start_by")


class ChangeRoutes:
    """Serves the use cases that change tasks."""

    def __init__(self, tasks: TaskService, limits: Limits, bodies: Bodies) -> None:
        self._tasks, self._bodies = tasks, bodies
        self._task_bytes_max = task_bytes_max(limits)

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        path, refusals = "/tasks/{task_id}", (400, 404, 409, 503)
        routes.add("PATCH", path, self.update, models.Task, 200, (*refusals, 413, 415), takes("TaskUpdate"))
        routes.add("POST", f"{path}/run", self.run, models.Task, 200, refusals)
        routes.add("POST", f"{path}/redrive", self.redrive, models.Task, 200, refusals)

    async def update(self, request: Request, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Change a task that waits. 200: the old version will not be dispatched, for good.

        409: too late, it was settled before; or it is not of the `expected_generation`.
        """
        async with self._bodies.body_of(request, self._task_bytes_max) as raw:
            found = members(raw)
            try:
                changed = await self._tasks.update(namespace, task_id, task_update(found))
            except RequestError as error:
                return error_response(error, renamed(found))
        return await self._answer(namespace, task_id, changed)

    async def run(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Make a task that waits due now. 409: too late, it was settled before."""
        return await self._answer(namespace, task_id, await self._tasks.run_now(namespace, task_id))

    async def redrive(self, task_id: str, namespace: str = NamespaceQuery) -> Response:
        """Do a task all over, from now on, that has FAILED or EXPIRED. One that waits stays as it is.

        409: nothing to be done all over; it was dispatched, cancelled, or has succeeded.
        """
        return await self._answer(namespace, task_id, await self._tasks.redrive(namespace, task_id))

    async def _answer(self, namespace: str, task_id: str, changed: Changed) -> Response:
        if changed.result is not ChangeResult.CHANGED:
            raise FailedPrecondition("task_id", f"is {changed.result.value}: it is too late to change it")
        stored = await self._tasks.get(namespace, task_id) if changed.row is None else StoredTask(changed.row)
        return Response(task_json(shown_by_facts(stored)), 200, None, JSON)


def task_update(found: Members) -> TaskUpdate:
    """The update that is asked for. Raises InvalidArgument where it can't be told."""
    body = models.shaped(models.TaskUpdate, found)
    payload, content_type = payload_of(body, found) or (None, body.content_type)
    update = TaskUpdate(
        payload,
        content_type,
        body.metadata,
        priority_of(body),
        run_at_ms(body),
        delay_ms(body),
        body.expected_generation,
        instant_or_none_ms(body.start_by, "start_by"),
    )
    if update == TaskUpdate(expected_generation=body.expected_generation):
        raise InvalidArgument("", f"must have at least one of {', '.join(CHANGEABLE)}")
    return update
