"""The application as a whole: health, metrics, the document, and what HTTP itself can get wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_world import JSON, RestWorld, refused
from starlette.requests import Request
from starlette.types import Message

from bucketsched.api.rest.bodies import Bodies
from bucketsched.api.rest.errors import Refusal
from bucketsched.api.rest.gate import Gate

PATHS = {
    "/tasks": {"get", "post"},
    "/tasks:batch": {"post"},
    "/tasks/{task_id}": {"get", "patch"},
    "/tasks/{task_id}/run": {"post"},
    "/tasks/{task_id}/cancel": {"post"},
    "/tasks/{task_id}/redrive": {"post"},
    "/tasks/{task_id}/attempts": {"get"},
    "/tasks/count": {"get"},
    "/queues": {"get", "post"},
    "/queues/{name}": {"get", "patch"},
    "/health": {"get"},
    "/livez": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    yield world
    await world.close()


# ---------------------------------------------------------------- health, metrics


async def test_health(rest: RestWorld) -> None:
    answer = await rest.client.get("/health")
    told = {"status": "SERVING", "mode": "embedded", "version": "1.2.3"}
    assert (answer.status_code, answer.json()) == (200, told)
    assert (await rest.client.get("/readyz")).status_code == 200
    rest.serving = False
    assert ((await rest.client.get("/health")).status_code, (await rest.client.get("/readyz")).status_code) == (
        503,
        503,
    )
    assert (await rest.client.get("/livez")).status_code == 200


async def test_metrics(rest: RestWorld) -> None:
    answer = await rest.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"bucketsched_ranges", "process_resident_memory_bytes"} <= found
    newer = await rest.client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert newer.headers["content-type"].startswith("application/openmetrics-text")
    assert newer.text.endswith("# EOF\n")


# ---------------------------------------------------------------- the document


async def test_the_document_tells_what_there_is(rest: RestWorld) -> None:
    document = (await rest.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert {path: set(operations) for path, operations in document["paths"].items()} == PATHS
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
            assert "422" not in operation["responses"]


async def test_every_reference_of_the_document_leads_somewhere(rest: RestWorld) -> None:
    document = (await rest.client.get("/openapi.json")).json()

    def references(node: object) -> list[str]:
        if isinstance(node, list):
            return [found for item in node for found in references(item)]
        if not isinstance(node, dict):
            return []
        here = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return here + [found for item in node.values() for found in references(item)]

    found = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert found
    assert found <= document["components"]["schemas"].keys()


async def test_no_page_loads_scripts_from_elsewhere(rest: RestWorld) -> None:
    for path in ("/docs", "/redoc", "/docs/oauth2-redirect"):
        refused(await rest.client.get(path), 404, "NOT_FOUND")


# ---------------------------------------------------------------- paths and methods


@pytest.mark.parametrize("path", ["/", "/nope", "/tasks/", "/tasks/a/b", "/tasks:batches", "/queues/a/b", "//tasks"])
async def test_unknown_paths(rest: RestWorld, path: str) -> None:
    refused(await rest.client.get(f"http://127.0.0.1:8080{path}"), 404, "NOT_FOUND", "")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/tasks:batch", "POST"),
        ("PUT", "/tasks/x", "GET, PATCH"),
        ("DELETE", "/queues", "GET, POST"),
        ("OPTIONS", "/tasks", "GET, POST"),
        ("POST", "/health", "GET"),
        ("NONSENSE", "/queues/x", "GET, PATCH"),
    ],
)
async def test_unknown_methods(rest: RestWorld, method: str, path: str, allowed: str) -> None:
    answer = await rest.client.request(method, path)
    refused(answer, 405, "UNIMPLEMENTED", "")
    assert answer.headers["allow"] == allowed


# ---------------------------------------------------------------- who may ask


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("localhost:1", 200),
        ("[::1]:8080", 200),
        ("127.8.9.10", 200),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("10.0.0.1", 403),
        ("localhost.", 403),
    ],
)
async def test_on_loopback_only_its_own_names_are_answered(rest: RestWorld, host: str, code: int) -> None:
    answer = await rest.client.get("/livez", headers={"Host": host})
    assert answer.status_code == code
    if code == 403:
        refused(answer, 403, "PERMISSION_DENIED", "")
    transport = httpx.ASGITransport(rest.app(loopback_only=False))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        assert (await client.get("/livez", headers={"Host": host})).status_code == 200


async def test_web_pages_of_others_are_refused(rest: RestWorld) -> None:
    headers = {**JSON, "Origin": "http://evil.example"}
    refused(await rest.post("/tasks", {"type": "t"}, headers=headers), 403, "PERMISSION_DENIED", "")
    refused(await rest.client.get("/livez", headers={"Origin": "null"}), 403, "PERMISSION_DENIED", "")
    assert (await rest.client.get("/livez", headers={"Origin": "http://127.0.0.1:8080"})).status_code == 200


async def test_requests_at_once_are_bounded() -> None:
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow(scope: object, receive: object, send: object) -> None:
        begun.set()
        await over.wait()

    transport = httpx.ASGITransport(Gate(slow, True, requests_max=1), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        first = asyncio.create_task(client.get("/"))
        await begun.wait()
        answer = await client.get("/")
        refused(answer, 503, "RESOURCE_EXHAUSTED", "")
        assert answer.headers["retry-after"] == "1"
        over.set()
        await asyncio.wait([first])
        over.clear()
        begun.clear()
        third = asyncio.create_task(client.get("/"))
        await begun.wait()
        over.set()
        await asyncio.wait([third])


# ---------------------------------------------------------------- bodies


def request(*parts: bytes, **headers: str) -> Request:
    """One whose body comes in these parts, and then no further."""
    waiting = list(parts)

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": waiting.pop(0), "more_body": True}

    given = {"content-type": "application/json", **headers}
    encoded = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return Request({"type": "http", "method": "POST", "headers": encoded}, receive)


async def test_a_body_that_never_ends_is_given_up() -> None:
    with pytest.raises(Refusal) as caught:
        async with Bodies(timeout_s=0.05).body_of(request(b"{"), 100):
            raise AssertionError("there is no body")
    assert caught.value.code == 408


async def test_bodies_together_are_bounded() -> None:
    bodies = Bodies(bytes_max=250, timeout_s=30)
    first = asyncio.create_task(bodies.body_of(request(b"{"), 100).__aenter__())
    second = asyncio.create_task(bodies.body_of(request(b"{", content_length="100"), 1_000).__aenter__())
    while bodies.held_bytes < 200:  # noqa: ASYNC110 - both have begun to read
        await asyncio.sleep(0)
    with pytest.raises(Refusal) as caught:
        await bodies.body_of(request(b"{", content_length="60"), 100).__aenter__()
    assert (caught.value.code, caught.value.headers) == (503, {"Retry-After": "1"})
    for reading in (first, second):
        reading.cancel()
    await asyncio.wait([first, second])
    assert bodies.held_bytes == 0
