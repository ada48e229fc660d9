"""/queues."""

from __future__ import annotations

from typing import Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from ...core.catalog import DEFAULT_NAMESPACE, Queue, QueueKind
from ...core.errors import InvalidArgument
from ...core.message import rfc3339
from ...core.queue_policy import QueuePolicy
from ...service.queues import PAGE_MAX, NewQueue, QueueService
from . import models
from .bodies import OTHER_BYTES_MAX, Bodies
from .errors import json_response
from .json_text import members
from .notices import notices_json, notices_of
from .retries import retry_json, retry_of
from .routes import Routes, takes

NamespaceQuery = Query(DEFAULT_NAMESPACE, description="Whose they are.")
SizeQuery = Query(0, description=f"0 to {PAGE_MAX}; 0: the server's default.")
TokenQuery = Query("", description="`next_page_token` of the page before.")


class QueueRoutes:
    """Serves the use cases of queues."""

    def __init__(self, queues: QueueService, bodies: Bodies) -> None:
        self._queues, self._bodies = queues, bodies

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        refusals = (400, 404, 409, 413, 415, 503)
        routes.add("POST", "/queues", self.create, models.Queue, 201, refusals, takes("NewQueue"))
        routes.add("GET", "/queues", self.list, models.Queues, 200, (400, 404, 503))
        routes.add("GET", "/queues/{name}", self.get, models.Queue, 200, (400, 404, 503))
        routes.add("PATCH", "/queues/{name}", self.update, models.Queue, 200, refusals, takes("QueueUpdate"))

    async def create(self, request: Request) -> Response:
        """Create a queue, unless it is there already. 409: it is, with other settings."""
        async with self._bodies.body_of(request, OTHER_BYTES_MAX) as raw:
            queue = await self._queues.create(_new_queue(models.shaped(models.NewQueue, members(raw))))
        return json_response(_described(queue), 201, {"Location": f"/queues/{queue.name}?namespace={queue.namespace}"})

    async def list(
        self, namespace: str = NamespaceQuery, page_size: int = SizeQuery, page_token: str = TokenQuery
    ) -> Response:
        """List queues by name."""
        queues, following = await self._queues.list(namespace, page_token, page_size)
        return json_response({"queues": [_described(queue) for queue in queues], "next_page_token": following})

    async def get(self, name: str, namespace: str = NamespaceQuery) -> Response:
        """Show a queue."""
        return json_response(_described(await self._queues.get(namespace, name)))

    async def update(self, request: Request, name: str, namespace: str = NamespaceQuery) -> Response:
        """Change the policy of a queue, for tasks that are there already, too. Owners follow within seconds."""
        async with self._bodies.body_of(request, OTHER_BYTES_MAX) as raw:
            found = members(raw)
            body = models.shaped(models.QueueUpdate, found)
            if not found:
                raise InvalidArgument("retry", "must be given, or notices")
            policy = QueuePolicy(retry_of(body.retry, "retry"), notices_of(body.notices))
            queue = await self._queues.update_policy(namespace, name, policy, found.keys())
        return json_response(_described(queue))


def _new_queue(body: models.NewQueue) -> NewQueue:
    return NewQueue(
        body.name,
        QueueKind(body.kind or QueueKind.WORKER),
        DEFAULT_NAMESPACE if body.namespace is None else body.namespace,
        body.topic or "",
        body.partitions or 0,
        body.replication or 0,
        bool(body.priority_topics),
        policy=QueuePolicy(retry_of(body.retry, "retry"), notices_of(body.notices)),
    )


def _described(queue: Queue) -> dict[str, Any]:
    return {
        "namespace": queue.namespace,
        "name": queue.name,
        "kind": queue.kind,
        "topic": queue.topic,
        "partitions": queue.partitions,
        "replication": queue.replication,
        "priority_topics": queue.priority_topics,
        "created_at": rfc3339(queue.created_ms),
        "retry": retry_json(queue.policy.retry),
        "notices": notices_json(queue.policy.notices),
    }
