"""/health, /livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from . import models
from .errors import json_response
from .routes import Routes


class Gathered(Collector):
    """Families that were gathered before: the encoders ask a registry."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        return self._families


class HealthRoutes:
    """How the process stands. `healthy` and `gather` are called in the event loop."""

    def __init__(
        self, mode: str, version: str, healthy: Callable[[], bool], gather: Callable[[], Iterable[Metric]]
    ) -> None:
        self._about = {"mode": mode, "version": version}
        self._healthy, self._gather = healthy, gather
        self._process = ProcessCollector(registry=None)

    def add_to(self, routes: Routes) -> None:
        """The paths."""
        routes.add("GET", "/health", self.health, models.Health, 200, (400,), _sick(models.Health))
        routes.add("GET", "/livez", self.livez, models.Alive, 200, (400,))
        routes.add("GET", "/readyz", self.readyz, models.Alive, 200, (400,), _sick(models.Alive))
        routes.add("GET", "/metrics", self.metrics, None, 200, (400,))

    async def health(self) -> Response:
        """Show how the process stands. 503: it does not serve (yet, or any more)."""
        serving = self._healthy()
        return json_response({"status": "SERVING" if serving else "NOT_SERVING", **self._about}, _code(serving))

    async def livez(self) -> Response:
        """Say that the process lives; where nothing comes, restart it."""
        return json_response({"status": "alive"})

    async def readyz(self) -> Response:
        """Say whether to send requests here. 503: not now."""
        serving = self._healthy()
        return json_response({"status": "ready" if serving else "not ready"}, _code(serving))

    async def metrics(self, request: Request) -> Response:
        """Show the metrics to Prometheus."""
        families = [*self._gather(), *self._process.collect()]
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        text = await asyncio.to_thread(encode, Gathered(families))
        return Response(text, 200, {"Content-Type": content_type})


def _code(serving: bool) -> int:
    return 200 if serving else 503


def _sick(model: type[BaseModel]) -> dict[str, object]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"responses": {"503": {"description": "Not now.", "content": {"application/json": {"schema": schema}}}}}
