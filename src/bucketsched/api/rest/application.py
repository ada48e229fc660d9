"""The application: routes, errors of HTTP itself, and the document at /openapi.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client.core import Metric
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from ...core.validation import Limits
from ...service.queries import TaskQueries
from ...service.queues import QueueService
from ...service.tasks import TaskService
from .attempts import AttemptRoutes
from .bodies import Bodies
from .changes import ChangeRoutes
from .errors import Refusal, error_response
from .gate import Gate
from .health import HealthRoutes
from .listing import ListingRoutes
from .models import COMPONENTS
from .queues import QueueRoutes
from .routes import Routes
from .tasks import TaskRoutes

REFERENCE = "#/components/schemas/{model}"
ABOUT = """A durable scheduler for delayed tasks: never early, nothing acknowledged lost.

Errors are {"error": {"code", "status", "message", "details"}}; those with code 503 say by Retry-After when to send the
same again."""


@dataclass(frozen=True, slots=True)
class RestServices:
    """What the routes stand on. `healthy` and `gather` are called in the event loop."""

    mode: str
    version: str
    tasks: TaskService
    queries: TaskQueries
    queues: QueueService
    limits: Limits
    healthy: Callable[[], bool]
    gather: Callable[[], Iterable[Metric]]


class Application(FastAPI):
    """FastAPI without pages that load scripts, and with a document that tells what is really answered."""

    def openapi(self) -> dict[str, Any]:
        """The document, made once."""
        if self.openapi_schema is None:
            self.openapi_schema = _document(self)
        return self.openapi_schema


def application(services: RestServices, loopback_only: bool) -> ASGIApp:
    """The whole of it, as ASGI."""
    app = Application(
        title="bucketsched",
        version=services.version,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(HTTPException, _answer_http)
    bodies, routes = Bodies(), Routes(app)
    ListingRoutes(services.queries).add_to(routes)  # first: /tasks/count is no task
    TaskRoutes(services.tasks, services.limits, bodies).add_to(routes)
    AttemptRoutes(services.tasks).add_to(routes)
    ChangeRoutes(services.tasks, services.limits, bodies).add_to(routes)
    QueueRoutes(services.queues, bodies).add_to(routes)
    HealthRoutes(services.mode, services.version, services.healthy, services.gather).add_to(routes)
    return Gate(app, loopback_only)


async def _answer_http(request: Request, error: Exception) -> Response:
    """No such path, or no such method there."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        message = f"{request.method} is not possible here; there is {allowed}"
        return error_response(Refusal(405, "UNIMPLEMENTED", message, {"Allow": allowed}))
    if error.status_code == 404:
        return error_response(Refusal(404, "NOT_FOUND", "there is no such path; /openapi.json tells which there are"))
    return error_response(Refusal(error.status_code, "INVALID_ARGUMENT", str(error.detail)))


def _methods(request: Request) -> list[str]:
    """Those of all routes of the path."""
    matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return sorted({method for route in matching for method in route.methods or ()})


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document["components"]["schemas"]
    _, asked = models_json_schema([(model, "validation") for model in COMPONENTS], ref_template=REFERENCE)
    schemas |= asked["$defs"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    return document
