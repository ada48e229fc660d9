"""The REST application over the memory adapters, and a client that needs no socket."""

from __future__ import annotations

import json
from typing import Any

import httpx
from prometheus_client.core import GaugeMetricFamily
from service_world import ServiceWorld
from starlette.types import ASGIApp

from bucketsched.api.rest.application import RestServices, application
from bucketsched.service.queues import QueueService

JSON = {"Content-Type": "application/json"}


class RestWorld(ServiceWorld):
    """All of it. `serving`: what the process says of itself."""

    serving = True

    def app(self, loopback_only: bool = True) -> ASGIApp:
        queues = QueueService(self.catalog, self.directory, None, self.clock)
        gather = lambda: [GaugeMetricFamily("bucketsched_ranges", "Ranges held", 64)]  # noqa: E731
        services = RestServices(
            "embedded", "1.2.3", self.tasks, self.queries, queues, self.limits, lambda: self.serving, gather
        )
        return application(services, loopback_only)

    async def start(self) -> RestWorld:
        await self.prepare()
        transport = httpx.ASGITransport(self.app(), raise_app_exceptions=True)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")
        return self

    async def close(self) -> None:
        await self.client.aclose()
        await self.tasks.close()

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """`body`: bytes as they are, None for none, else as JSON."""
        if body is None:
            return await self.client.post(path, **options)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.post(path, content=content, **{"headers": JSON, **options})

    async def create(self, **fields: Any) -> dict[str, Any]:
        answer = await self.post("/tasks", {"type": "mail", **fields})
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.client.get(f"/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def refused(answer: httpx.Response, code: int, status: str, field: str | None = None) -> str:
    """Checks an answer that is an error; its message."""
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (code, status), error
    if field is not None:
        assert error["details"] == ([{"field": field}] if field else []), error
    message: str = error["message"]
    return message
