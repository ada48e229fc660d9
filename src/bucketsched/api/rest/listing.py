"""GET /tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from ...core.catalog import DEFAULT_NAMESPACE
from ...core.errors import InvalidArgument
from ...core.task import TaskState
from ...core.task_query import TaskOrder, TaskQuery
from ...service.queries import PAGE_DEFAULT, PAGE_MAX, TaskQueries
from . import models
from .content import instant_or_none_ms
from .errors import JSON, encoded, json_response
from .routes import Routes
from .tasks import task_json

METADATA = "metadata."
StateName = Literal["PENDING", "DISPATCHED", "RUNNING", "SUCCEEDED", "RETRYING", "FAILED", "CANCELLED", "EXPIRED"]
_NAMES = {"due_from": "from", "due_until": "until"}

NamespaceQuery = Query(DEFAULT_NAMESPACE, description="Whose they are.")
QueueQuery = Query("", description="Without: those of all queues.")
TypeQuery = Query("", description="Of this type only.")
StatusQuery = Query(None, description="In this state only.")
FromQuery = Query(None, alias="from", description="Due then or later; without: all that are kept. RFC 3339.")
UntilQuery = Query(None, description="Due before. RFC 3339.")
OrderQuery = Query("next", description="next: the earliest due first; newest: the latest due first.")
SizeQuery = Query(0, description=f"0 to {PAGE_MAX}; 0: {PAGE_DEFAULT}.")
TokenQuery = Query("", description="`next_page_token` of the page before, with the same filters.")
METADATA_PARAMETER = {
    "name": f"{METADATA}{{key}}",
    "in": "query",
    "required": False,
    "description": "With this value under that key of its metadata, as in `metadata.tenant=7`; may be given for many.",
    "schema": {"type": "string"},
}


class ListingRoutes:
    """Serves listings of tasks."""

    def __init__(self, queries: TaskQueries) -> None:
        self._queries = queries

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        extra = {"parameters": [METADATA_PARAMETER]}
        routes.add("GET", "/tasks/count", self.count, models.Counted, 200, (400, 404, 409, 503), extra)
        routes.add("GET", "/tasks", self.list, models.Tasks, 200, (400, 404, 409, 503), extra)

    async def list(
        self,
        request: Request,
        namespace: str = NamespaceQuery,
        queue: str = QueueQuery,
        type: str = TypeQuery,
        status: StateName | None = StatusQuery,
        due_from: str | None = FromQuery,
        until: str | None = UntilQuery,
        order: Literal["next", "newest"] = OrderQuery,
        page_size: int = SizeQuery,
        page_token: str = TokenQuery,
    ) -> Response:
        """List tasks by due time. A page may be short, or empty, and not be the last one: `next_page_token` tells."""
        with _renamed():
            query = _query(request, namespace, queue, type, status, due_from, until, TaskOrder(order))
            page = await self._queries.list(query, page_size, page_token)
        tasks = b",".join(map(task_json, page.tasks))
        following = encoded(page.next_page_token)
        return Response(b'{"tasks":[%b],"next_page_token":%b}' % (tasks, following), 200, None, JSON)

    async def count(
        self,
        request: Request,
        namespace: str = NamespaceQuery,
        queue: str = QueueQuery,
        type: str = TypeQuery,
        status: StateName | None = StatusQuery,
        due_from: str | None = FromQuery,
        until: str | None = UntilQuery,
    ) -> Response:
        """Count tasks, as far as a walk of bounded length tells: where it is not `exact`, there are more."""
        with _renamed():
            query = _query(request, namespace, queue, type, status, due_from, until, TaskOrder.NEXT)
            counted = await self._queries.count(query)
        return json_response({"count": counted.count, "exact": counted.exact})


def _query(
    request: Request,
    namespace: str,
    queue: str,
    type: str,
    status: str | None,
    due_from: str | None,
    until: str | None,
    order: TaskOrder,
) -> TaskQuery:
    return TaskQuery(
        namespace,
        queue,
        type,
        TaskState(status) if status is not None else None,
        instant_or_none_ms(due_from, "from"),
        instant_or_none_ms(until, "until"),
        _metadata(request),
        order,
    )


def _metadata(request: Request) -> dict[str, str]:
    found = [(name, value) for name, value in request.query_params.multi_items() if name.startswith(METADATA)]
    return {name.removeprefix(METADATA): value for name, value in found}


@contextmanager
def _renamed() -> Iterator[None]:
    """Errors in the words of the query parameters."""
    try:
        yield
    except InvalidArgument as error:
        field, message = _NAMES.get(error.field, error.field), error.message.replace("due_from", "from")
        raise InvalidArgument(field, message) from error
