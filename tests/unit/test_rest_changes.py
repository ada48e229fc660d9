"""PATCH /tasks/{task_id} and POST /tasks/{task_id}/run: what is asked of the owner, and how its answers are told."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest
from rest_world import JSON, RestWorld, refused
from service_world import NOW_MS

from bucketsched.core.errors import Unavailable
from bucketsched.core.message import rfc3339
from bucketsched.core.task import Priority
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.ports import Changed

HOUR_MS = 3_600_000


class ChangeWorld(RestWorld):
    """Its owner changes the task's row as it is asked to, unless `result` says something else."""

    result = ChangeResult.CHANGED
    with_row = True

    async def start(self) -> ChangeWorld:
        await super().start()
        self.asked: list[TaskChange] = []
        self.owners.change = self._change  # type: ignore[method-assign]
        self.id = (await self.create(payload={"n": 1}, delay="24h"))["task_id"]
        return self

    async def _change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        self.asked.append(change)
        row = (await self.tasks.get("default", self.id)).row
        changed = replace(row, body=change.applied_to(row.body), generation=1)
        return Changed(self.result, changed if self.with_row else None)

    async def patch(self, body: Any, query: str = "") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.client.patch(f"/tasks/{self.id}{query}", content=content, headers=JSON)


@pytest.fixture
async def rest() -> AsyncIterator[ChangeWorld]:
    world = await ChangeWorld().start()
    yield world
    await world.close()


async def test_an_update_answers_with_the_task_as_it_is_now(rest: ChangeWorld) -> None:
    answer = await rest.patch(b'{"payload": [1.0 ,2], "run_at": "%b", "metadata": {"k": "v"}, "priority": "LOW"}'
                              % rfc3339(NOW_MS + HOUR_MS).encode())  # fmt: skip
    assert answer.status_code == 200, answer.text
    assert answer.text.endswith('"payload":[1.0 ,2]}')
    found = answer.json()
    assert (found["task_id"], found["status"], found["generation"]) == (rest.id, "PENDING", 1)
    assert (found["run_at"], found["metadata"]) == (rfc3339(NOW_MS + HOUR_MS), {"k": "v"})
    assert rest.asked == [
        TaskChange(b"[1.0 ,2]", "application/json", {"k": "v"}, Priority.LOW, NOW_MS + HOUR_MS)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "change"),
    [
        ({"delay": "1h30m"}, TaskChange(due_ms=NOW_MS + HOUR_MS * 3 // 2)),
        ({"priority": "HIGH", "expected_generation": 3}, TaskChange(priority=Priority.HIGH, generation=3)),
        ({"metadata": {}}, TaskChange(metadata={})),
        ({"content_type": "text/plain"}, TaskChange(content_type="text/plain")),
        ({"payload": None}, TaskChange(b"null", "application/json")),
        ({"payload_base64": "AAE="}, TaskChange(b"\x00\x01", "")),
        ({"payload_base64": "", "content_type": "a/b"}, TaskChange(b"", "a/b")),
        ({"delay": 0, "priority": None}, TaskChange(due_ms=NOW_MS)),
    ],
)
async def test_only_what_is_given_changes(rest: ChangeWorld, body: Any, change: TaskChange) -> None:
    answer = await rest.patch(body)
    assert answer.status_code == 200, answer.text
    assert rest.asked == [change]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, ""),
        ({"delay": None}, ""),
        ({"expected_generation": 1}, ""),
        ({"delay": "1h", "expected_generation": -1}, "expected_generation"),
        ({"delay": "1h", "expected_generation": "1"}, "expected_generation"),
        ({"type": "other"}, "type"),
        ({"queue": "other"}, "queue"),
        ({"delay": "1h", "run_at": "2030-01-01T00:00:00Z"}, "delay"),
        ({"delay": "401d"}, "delay"),
        ({"run_at": "9000-01-01T00:00:00Z"}, "run_at"),
        ({"metadata": {"bad key": ""}}, "metadata"),
        ({"content_type": "x"}, "content_type"),
        ({"content_type": "text/plain", "payload": 1}, "content_type"),
        ({"payload": 1, "payload_base64": ""}, "payload_base64"),
        ({"payload_base64": base64.b64encode(bytes(65_537)).decode()}, "payload_base64"),
        ({"payload": "x" * 65_536}, "payload"),
    ],
)
async def test_wrong_updates_are_refused(rest: ChangeWorld, body: Any, field: str) -> None:
    message = refused(await rest.patch(body), 400, "INVALID_ARGUMENT", field)
    assert "due_time" not in message
    assert "mask" not in message
    assert not rest.asked


async def patch_it(rest: ChangeWorld) -> httpx.Response:
    return await rest.patch({"delay": "1h"})


async def run_it(rest: ChangeWorld) -> httpx.Response:
    return await rest.post(f"/tasks/{rest.id}/run")


CHANGES = pytest.mark.parametrize("change", [patch_it, run_it])
Change = Callable[[ChangeWorld], Any]


async def test_run_makes_it_due_now(rest: ChangeWorld) -> None:
    answer = await run_it(rest)
    assert (answer.status_code, answer.json()["run_at"]) == (200, rfc3339(NOW_MS))
    assert rest.asked == [TaskChange(due_ms=NOW_MS)]


@CHANGES
@pytest.mark.parametrize(
    "result", [ChangeResult.ALREADY_DISPATCHED, ChangeResult.ALREADY_CANCELLED, ChangeResult.ALREADY_FAILED]
)
async def test_changes_that_come_too_late(rest: ChangeWorld, change: Change, result: ChangeResult) -> None:
    rest.result = result
    assert result.value in refused(await change(rest), 409, "FAILED_PRECONDITION", "task_id")


@CHANGES
async def test_where_there_is_no_such_task(rest: ChangeWorld, change: Change) -> None:
    rest.result = ChangeResult.NOT_FOUND
    refused(await change(rest), 404, "NOT_FOUND", "task_id")


async def test_a_generation_that_is_not_the_expected_one(rest: ChangeWorld) -> None:
    rest.result = ChangeResult.OTHER_GENERATION
    answer = await rest.patch({"delay": "1h", "expected_generation": 0})
    refused(answer, 409, "FAILED_PRECONDITION", "expected_generation")


@CHANGES
async def test_an_answer_without_the_row_is_completed(rest: ChangeWorld, change: Change) -> None:
    rest.with_row = False
    answer = await change(rest)
    assert (answer.status_code, answer.json()["task_id"]) == (200, rest.id)


@CHANGES
async def test_without_an_owner(rest: ChangeWorld, change: Change) -> None:
    async def away(*_: object) -> Changed:
        raise Unavailable("no owner")

    rest.owners.change = away  # type: ignore[method-assign]
    answer = await change(rest)
    refused(answer, 503, "UNAVAILABLE")
    assert answer.headers["retry-after"] == "1"
