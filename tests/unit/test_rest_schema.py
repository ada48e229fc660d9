"""Requests made out of /openapi.json, proper ones and wrong ones: nothing fails, and all answers are as described."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from rest_world import RestWorld
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from bucketsched.api.rest.server import RestServer

pytestmark = pytest.mark.integration

WITHIN_S = 60
BOUNDED = settings(
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TAKE_SOMETHING = [
    ("POST", "/tasks"),
    ("POST", "/tasks:batch"),
    ("GET", "/tasks/{task_id}"),
    ("PATCH", "/tasks/{task_id}"),
    ("POST", "/tasks/{task_id}/cancel"),
    ("POST", "/tasks/{task_id}/run"),
    ("POST", "/tasks/{task_id}/redrive"),
    ("GET", "/tasks/{task_id}/attempts"),
    ("GET", "/tasks/count"),
    ("GET", "/queues"),
    ("POST", "/queues"),
    ("GET", "/queues/{name}"),
    ("PATCH", "/queues/{name}"),
]
OPERATIONS = [*TAKE_SOMETHING, ("GET", "/health"), ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/metrics")]


async def serve(bound: Future[str], over: Future[None]) -> None:
    world = await RestWorld().prepare()
    server = RestServer("127.0.0.1:0", world.app, 1)  # type: ignore[attr-defined]
    bound.set_result(await server.start())
    work = asyncio.create_task(server.serve())
    await asyncio.wrap_future(over)
    await server.stop()
    await work
    await world.tasks.close()


@pytest.fixture(scope="module")
def api() -> Iterator[schemathesis.BaseSchema]:
    """The document of a server in a thread of its own."""
    bound, over = Future[str](), Future[None]()
    thread = threading.Thread(target=lambda: asyncio.run(serve(bound, over)), daemon=True)
    thread.start()
    address = bound.result(WITHIN_S)
    yield schemathesis.openapi.from_url(f"http://{address}/openapi.json")
    over.set_result(None)
    thread.join(WITHIN_S)


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@pytest.mark.parametrize("mode", GenerationMode)
def test_answers_are_as_the_document_says(
    api: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    """What the document allows may still be refused: it does not tell every limit.

    Of a batch with a wrong item the rest is created, so that the answer to all of it is 200.
    """
    left_out = [positive_data_acceptance, *([negative_data_rejection] if path == "/tasks:batch" else [])]

    @settings(BOUNDED)
    @given(api[path][method].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(excluded_checks=left_out)

    if mode is GenerationMode.POSITIVE or (method, path) in TAKE_SOMETHING:
        ask()
