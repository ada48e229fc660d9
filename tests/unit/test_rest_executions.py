"""What is told of attempts over REST: states, the execution log, retry policies, expiry, redrives, counts."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rest_world import JSON, RestWorld, refused
from service_world import NAMESPACE_ID, NOW_MS

from bucketsched.core import task_id as ids
from bucketsched.core.execution import Attempt, AttemptEnd
from bucketsched.core.message import rfc3339
from bucketsched.core.task import FactKind, Mark, TaskBody, TaskRow
from bucketsched.core.task_change import ChangeResult, TaskChange
from bucketsched.ports import Changed

TASK_ID = ids.mint(NOW_MS, 1, 77)
NAME = ids.text(TASK_ID)


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    yield world
    await world.close()


async def row_of(rest: RestWorld, *kinds: FactKind, attempt: int = 1) -> TaskRow:
    body = TaskBody("default", "default", "t", nominal_due_ms=NOW_MS)
    row = TaskRow(NOW_MS, NAMESPACE_ID, TASK_ID, body, 0, attempt)
    await rest.store.insert([row])
    await rest.store.mark([Mark(row.ref, kind, NOW_MS + 1_000 * number, "why") for number, kind in enumerate(kinds)])
    return row


def entry(attempt: int = 1, **fields: Any) -> Attempt:
    return Attempt(NAMESPACE_ID, TASK_ID, 0, attempt, **fields)


async def test_a_task_says_how_it_ended_and_what_became_of_its_attempts(rest: RestWorld) -> None:
    await row_of(rest, FactKind.DISPATCHED, FactKind.SUCCEEDED, attempt=2)
    failed = entry(
        1, started_ms=1_001, ended_ms=2_002, end=AttemptEnd.FAILED, worker="w", error_type="ValueError",
        error_message="no", error_trace="line 1", retry_ms=3_003,
    )  # fmt: skip
    await rest.store.record_attempts([failed, entry(2, started_ms=5, ended_ms=6, end=AttemptEnd.SUCCEEDED)])
    task = await rest.task(NAME)
    assert (task["status"], task["succeeded_at"]) == ("SUCCEEDED", rfc3339(NOW_MS + 1_000))
    assert (task["attempts"], task["error"], task["last_error"]) == (2, None, "ValueError: no")
    assert task["last_attempts"][0] == {
        "generation": 0,
        "attempt": 1,
        "started_at": rfc3339(1_001),
        "ended_at": rfc3339(2_002),
        "outcome": "FAILED",
        "worker": "w",
        "error_type": "ValueError",
        "error_message": "no",
        "error_trace": "line 1",
        "retry_at": rfc3339(3_003),
    }
    assert (task["last_attempts"][1]["outcome"], task["last_attempts"][1]["error_type"]) == ("SUCCEEDED", None)
    answer = await rest.client.get(f"/tasks/{NAME}/attempts")
    assert answer.json() == {"attempts": task["last_attempts"], "next_page_token": ""}
    first = (await rest.client.get(f"/tasks/{NAME}/attempts?page_size=1")).json()
    token = first["next_page_token"]
    second = (await rest.client.get(f"/tasks/{NAME}/attempts?page_size=1&page_token={token}")).json()
    assert [*first["attempts"], *second["attempts"]] == task["last_attempts"]
    (listed,) = (await rest.client.get("/tasks?status=SUCCEEDED")).json()["tasks"]
    assert "last_attempts" not in listed


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (b'{"a": [1, 2.50]}', '"result":{"a": [1, 2.50]}'),
        (b"7", '"result":7'),
        (b"no json", f'"result_base64":"{base64.b64encode(b"no json").decode()}"'),
        (b"\xff", '"result_base64":"/w=="'),
    ],
)
async def test_results_are_shown_as_payloads_are(rest: RestWorld, result: bytes, shown: str) -> None:
    await row_of(rest, FactKind.DISPATCHED)
    await rest.store.record_attempts([entry(end=AttemptEnd.SUCCEEDED, result=result)])
    for path in (f"/tasks/{NAME}", f"/tasks/{NAME}/attempts"):
        answer = await rest.client.get(path)
        assert shown in answer.text
        answer.json()


async def test_a_task_at_work_is_running(rest: RestWorld) -> None:
    await row_of(rest, FactKind.DISPATCHED)
    await rest.store.record_attempts([entry(started_ms=5)])
    assert (await rest.task(NAME))["status"] == "RUNNING"
    for status, count in (("RUNNING", 1), ("DISPATCHED", 0), ("SUCCEEDED", 0), ("RETRYING", 0), ("EXPIRED", 0)):
        assert (await rest.client.get(f"/tasks/count?status={status}")).json() == {"count": count, "exact": True}
        assert len((await rest.client.get(f"/tasks?status={status}")).json()["tasks"]) == count


async def test_counts_take_the_filters_of_listings(rest: RestWorld) -> None:
    await rest.create(delay="1h", metadata={"a": "1"})
    await rest.create(delay="2h")
    until = rfc3339(NOW_MS + 3_600_001)
    for query, count in (
        ("", 2),
        ("?metadata.a=1", 1),
        (f"?until={until}", 1),
        (f"?from={until}", 1),
        ("?queue=default&type=mail", 2),
        ("?type=other", 0),
    ):
        assert (await rest.client.get(f"/tasks/count{query}")).json()["count"] == count, query
    refused(await rest.client.get("/tasks/count?from=x"), 400, "INVALID_ARGUMENT", "from")
    refused(await rest.client.get("/tasks/count?order=next"), 400, "INVALID_ARGUMENT", "order")
    refused(await rest.client.get(f"/tasks/count?from={until}&until={until}"), 400, "INVALID_ARGUMENT", "until")


# ---------------------------------------------------------------- create


async def test_policy_and_expiry_come_back_as_they_were_asked_for(rest: RestWorld) -> None:
    policy = {
        "max_attempts": 7, "initial_delay": "1500ms", "multiplier": 1.5, "max_delay": 9, "max_elapsed": "PT1M",
        "non_retryable_errors": ["ValueError"],
    }  # fmt: skip
    task = await rest.task((await rest.create(retry=policy, delay=1, expire_after="1m"))["task_id"])
    assert task["retry"] == policy | {"initial_delay": 1.5, "max_delay": 9.0, "max_elapsed": 60.0}
    assert task["start_by"] == rfc3339(NOW_MS + 61_000)
    task = await rest.task((await rest.create(start_by=rfc3339(NOW_MS + 5), retry={"multiplier": 3}))["task_id"])
    assert (task["start_by"], task["retry"]["multiplier"]) == (rfc3339(NOW_MS + 5), 3.0)
    task = await rest.task((await rest.create(start_by=None, retry=None, expire_after=None))["task_id"])
    assert (task["start_by"], task["retry"]) == (None, None)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"max_attempts": "5"}}, "retry.max_attempts"),
        ({"retry": {"nonsense": 0}}, "retry.nonsense"),
        ({"retry": 5}, "retry"),
        ({"retry": {"multiplier": 1e300}}, "retry.multiplier"),
        ({"retry": {"initial_delay": -1}}, "retry.initial_delay"),
        ({"retry": {"max_delay": "5y"}}, "retry.max_delay"),
        ({"retry": {"max_elapsed": "500d"}}, "retry.max_elapsed"),
        ({"retry": {"non_retryable_errors": [""]}}, "retry.non_retryable_errors"),
        ({"start_by": "yesterday"}, "start_by"),
        ({"start_by": rfc3339(NOW_MS - 1)}, "start_by"),
        ({"expire_after": "0s"}, "expire_after"),
        ({"expire_after": "1s", "start_by": rfc3339(NOW_MS + 5)}, "expire_after"),
    ],
)
async def test_a_wrong_policy_or_expiry_is_named(rest: RestWorld, fields: dict[str, Any], field: str) -> None:
    refused(await rest.post("/tasks", {"type": "t", **fields}), 400, "INVALID_ARGUMENT", field)


async def test_the_largest_policy_fits_into_a_body(rest: RestWorld) -> None:
    """However its characters are written."""
    name = "\\u00e9" * 200
    names = ",".join([f'"{name}"'] * 20)
    retry = b'"retry":{"non_retryable_errors":[%b]}' % names.encode()
    payload = base64.b64encode(bytes(rest.limits.payload_bytes_max))
    value = "\\u00e9" * 127
    metadata = ",".join([f'"{key:x}":"{value}"' for key in range(32)]).encode()
    task = b'{"type":"%b","payload_base64":"%b","metadata":{%b},%b}' % (name.encode(), payload, metadata, retry)
    answer = await rest.post("/tasks", task)
    assert answer.status_code == 201, answer.text
    answer = await rest.client.patch("/queues/default", content=b"{%b}" % retry, headers=JSON)
    assert answer.status_code == 200, answer.text


async def test_an_update_may_change_until_when_a_task_is_of_use(rest: RestWorld) -> None:
    asked: list[TaskChange] = []
    row = await row_of(rest)
    rest.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, row)
    answer = await rest.client.patch(f"/tasks/{NAME}", json={"start_by": rfc3339(NOW_MS + 60_000)})
    assert answer.status_code == 200, answer.text
    assert asked == [TaskChange(expires_ms=NOW_MS + 60_000)]
    wrong = await rest.client.patch(f"/tasks/{NAME}", json={"start_by": "soon"})
    refused(wrong, 400, "INVALID_ARGUMENT", "start_by")
    nothing = await rest.client.patch(f"/tasks/{NAME}", json={})
    assert "start_by" in refused(nothing, 400, "INVALID_ARGUMENT", "")


# ---------------------------------------------------------------- redrive


async def test_a_redrive_is_answered_as_a_change_is(rest: RestWorld) -> None:
    asked: list[TaskChange] = []
    row = await row_of(rest)
    rest.owners.on_change = lambda task_id, change: asked.append(change) or Changed(ChangeResult.CHANGED, row)
    answer = await rest.post(f"/tasks/{NAME}/redrive")
    assert (answer.status_code, answer.json()["status"]) == (200, "PENDING")
    assert asked == [TaskChange(due_ms=NOW_MS, again=True)]
    rest.owners.on_change = lambda task_id, change: Changed(ChangeResult.ALREADY_SUCCEEDED, row)
    message = refused(await rest.post(f"/tasks/{NAME}/redrive"), 409, "FAILED_PRECONDITION", "task_id")
    assert "already succeeded" in message
    rest.owners.on_change = lambda task_id, change: Changed(ChangeResult.NOT_FOUND)
    refused(await rest.post(f"/tasks/{NAME}/redrive"), 404, "NOT_FOUND", "task_id")


# ---------------------------------------------------------------- queues


async def test_the_policy_of_a_queue_is_created_shown_and_changed(rest: RestWorld) -> None:
    created = await rest.post("/queues", {"name": "q", "retry": {"max_attempts": 3}})
    assert (created.status_code, created.json()["retry"]["max_attempts"]) == (201, 3)
    refused(await rest.post("/queues", {"name": "q", "retry": {"max_attempts": 4}}), 409, "ALREADY_EXISTS", "policy")
    for wanted, stands in (({"max_attempts": 4}, 4), (None, None)):
        changed = await rest.client.patch("/queues/q", json={"retry": wanted})
        assert changed.status_code == 200, changed.text
        assert (await rest.client.get("/queues/q")).json() == changed.json()
        assert (changed.json()["retry"] or {}).get("max_attempts") == stands
    assert (await rest.client.get("/queues")).json()["queues"][-1]["retry"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "retry"),
        ({"retry": {"max_attempts": 0}}, "retry.max_attempts"),
        ({"retry": {"nonsense": 1}}, "retry.nonsense"),
        ({"kind": "WORKER"}, "kind"),
    ],
)
async def test_a_wrong_change_of_a_queue_is_named(rest: RestWorld, body: dict[str, Any], field: str) -> None:
    refused(await rest.client.patch("/queues/default", json=body, headers=JSON), 400, "INVALID_ARGUMENT", field)


async def test_a_change_of_no_queue(rest: RestWorld) -> None:
    refused(await rest.client.patch("/queues/none", json={"retry": None}), 404, "NOT_FOUND", "name")
