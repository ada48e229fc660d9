"""/tasks: what goes in, what comes out, and what is refused, with the field that is at fault."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from rest_world import JSON, RestWorld, refused
from service_world import NOW_MS

from bucketsched.api.rest.bodies import BATCH_BYTES_MAX, task_bytes_max
from bucketsched.core import task_id as ids
from bucketsched.core.errors import NoRoom, NotWritten, OutcomeUnknown
from bucketsched.core.message import rfc3339
from bucketsched.core.task import FactKind, Mark, TaskRow
from bucketsched.core.validation import Limits
from bucketsched.core.validation import NewTask as CoreTask
from bucketsched.ports import CancelResult

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture
async def rest() -> AsyncIterator[RestWorld]:
    world = await RestWorld().start()
    yield world
    await world.close()


def in_ms(ms: int) -> str:
    return rfc3339(NOW_MS + ms)


# ---------------------------------------------------------------- create and get


async def test_the_same_key_is_the_same_task(rest: RestWorld) -> None:
    sent = {"type": "mail", "delay": "1h", "idempotency_key": "order-7"}
    first = await rest.post("/tasks", sent)
    assert first.status_code == 201
    del sent["idempotency_key"]
    key = JSON | {"Idempotency-Key": "order-7"}
    again = await rest.post("/tasks", sent, headers=key)
    assert (again.status_code, again.json()) == (201, first.json())
    assert (await rest.task(first.json()["task_id"]))["idempotency_key"] == "order-7"
    refused(await rest.post("/tasks", sent | {"delay": "2h"}, headers=key), 409, "ALREADY_EXISTS", "idempotency_key")
    both = await rest.post("/tasks", sent | {"idempotency_key": "other"}, headers=key)
    refused(both, 400, "INVALID_ARGUMENT", "idempotency_key")


async def test_a_task_comes_back_as_it_was_sent(rest: RestWorld) -> None:
    sent = {
        "type": "mail",
        "payload": {"to": "ada", "größe": [1, None]},
        "run_at": in_ms(HOUR_MS),
        "metadata": {"tenant": "größe 📦"},
        "priority": "HIGH",
    }
    answer = await rest.post("/tasks", sent)
    assert answer.status_code == 201
    created = answer.json()
    assert set(created) == {"task_id", "status", "run_at"}
    assert (created["status"], created["run_at"]) == ("PENDING", in_ms(HOUR_MS))
    assert answer.headers["location"] == f"/tasks/{created['task_id']}"
    found = await rest.task(created["task_id"])
    assert sent.items() <= found.items()
    assert (found["queue"], found["namespace"], found["content_type"]) == ("default", "default", "application/json")
    assert (found["status"], found["created_at"]) == ("PENDING", rfc3339(NOW_MS))
    assert (found["attempts"], found["generation"]) == (0, 0)
    for name in ("dispatched_at", "cancelled_at", "failed_at", "error"):
        assert found[name] is None
    assert "payload_base64" not in found


async def test_the_least_that_a_task_needs(rest: RestWorld) -> None:
    created = await rest.create()
    assert created["run_at"] == rfc3339(NOW_MS)
    found = await rest.task(created["task_id"])
    assert (found["payload_base64"], found["content_type"], found["priority"]) == ("", "", "NORMAL")


@pytest.mark.parametrize(
    "written",
    [
        '{"b" : 1.0,\n "a":[ ]}',
        "12345678901234567890123456789.10",
        "9" * 5_000,
        "1e999",
        '"\\u00e9 é \\ud83d\\ude00"',
        "null",
        "false",
        '""',
    ],
)
async def test_a_payload_of_json_is_kept_as_its_bytes(rest: RestWorld, written: str) -> None:
    answer = await rest.post("/tasks", b'{"payload": %b , "type":"t"}' % written.encode())
    assert answer.status_code == 201, answer.text
    stored = await rest.tasks.get("default", answer.json()["task_id"])
    assert stored.row.body.payload == written.encode()
    assert stored.row.body.content_type == "application/json"
    shown = await rest.client.get(f"/tasks/{answer.json()['task_id']}")
    assert shown.text.endswith(f'"payload":{written}}}')


async def test_a_payload_of_bytes(rest: RestWorld) -> None:
    payload = bytes(range(256))
    created = await rest.create(payload_base64=base64.b64encode(payload).decode(), content_type="image/png")
    stored = await rest.tasks.get("default", created["task_id"])
    assert (stored.row.body.payload, stored.row.body.content_type) == (payload, "image/png")
    found = await rest.task(created["task_id"])
    assert base64.b64decode(found["payload_base64"]) == payload
    assert "payload" not in found


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"NaN", b"{} {}", b"", b"[" * 200 + b"]" * 200])
async def test_what_only_says_that_it_is_json_is_shown_as_bytes(rest: RestWorld, payload: bytes) -> None:
    """Whoever creates tasks over gRPC may say what he likes."""
    (created,) = await rest.tasks.create_many([CoreTask("t", payload=payload, content_type="application/json")])
    found = await rest.task(ids.text(created.task_id))  # type: ignore[union-attr]
    assert base64.b64decode(found["payload_base64"]) == payload


async def test_content_types_of_json(rest: RestWorld) -> None:
    created = await rest.create(payload=[1], content_type="application/cloudevents+json; charset=utf-8")
    found = await rest.task(created["task_id"])
    assert (found["payload"], found["content_type"]) == ([1], "application/cloudevents+json; charset=utf-8")


@pytest.mark.parametrize(
    ("delay", "ms"),
    [("24h", DAY_MS), ("1h30m", HOUR_MS * 3 // 2), ("PT24H", DAY_MS), (1.5, 1_500), (0, 0), ("0.0001s", 1)],
)
async def test_delays(rest: RestWorld, delay: Any, ms: int) -> None:
    assert (await rest.create(delay=delay))["run_at"] == in_ms(ms)


async def test_instants_are_rounded_up_and_may_be_past(rest: RestWorld) -> None:
    base = in_ms(HOUR_MS)[:-5]
    assert (await rest.create(run_at=f"{base}.0000001Z"))["run_at"] == f"{base}.001Z"
    assert (await rest.create(run_at="1999-12-31T23:00:00-01:00"))["run_at"] == "2000-01-01T00:00:00.000Z"
    assert (await rest.create(run_at="0001-01-01T00:00:00Z"))["run_at"] == "0001-01-01T00:00:00.000Z"


async def test_null_is_as_if_it_was_not_given(rest: RestWorld) -> None:
    names = ("payload_base64", "run_at", "delay", "queue", "namespace", "metadata", "priority", "task_id",
             "content_type")  # fmt: skip
    assert (await rest.create(**dict.fromkeys(names)))["run_at"] == rfc3339(NOW_MS)


async def test_a_retry_with_the_same_id_is_the_same_task(rest: RestWorld) -> None:
    fields = {"payload": 7, "run_at": in_ms(HOUR_MS)}
    first = await rest.create(**fields)
    again = await rest.create(**fields, task_id=first["task_id"])
    assert again == first
    assert len(await rest.rows((NOW_MS + HOUR_MS) // 60_000)) == 1


async def test_what_became_of_a_task(rest: RestWorld) -> None:
    created = await rest.create(payload=1)
    ref = (await rest.tasks.get("default", created["task_id"])).row.ref
    await rest.store.mark([Mark(ref, FactKind.DISPATCHED, NOW_MS + 5)])
    found = await rest.task(created["task_id"])
    assert (found["status"], found["dispatched_at"], found["attempts"]) == ("DISPATCHED", in_ms(5), 1)
    await rest.store.mark([Mark(ref, FactKind.FAILED, NOW_MS + 6, "too large")])
    found = await rest.task(created["task_id"])
    assert (found["status"], found["failed_at"], found["error"]) == ("FAILED", in_ms(6), "too large")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": 5}, "type"),
        ({"type": None}, "type"),
        ({"type": "a\nb"}, "type"),
        ({"type": "x" * 201}, "type"),
        ({"typo": 1}, "typo"),
        ({"queue": ""}, "queue"),
        ({"queue": "a/b"}, "queue"),
        ({"namespace": "ä"}, "namespace"),
        ({"priority": "URGENT"}, "priority"),
        ({"priority": 1}, "priority"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"bad key": ""}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(33)}}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"content_type": "nonsense"}, "content_type"),
        ({"content_type": "text/plain", "payload": "hi"}, "content_type"),
        ({"task_id": ""}, "task_id"),
        ({"task_id": "5"}, "task_id"),
        ({"task_id": "00000000-0000-4000-8000-000000000000"}, "task_id"),
        ({"payload_base64": "***"}, "payload_base64"),
        ({"payload_base64": "YQ"}, "payload_base64"),
        ({"payload_base64": "ä"}, "payload_base64"),
        ({"payload_base64": "YQ==", "payload": None}, "payload_base64"),
        ({"payload": "x" * 65_536}, "payload"),
        ({"payload_base64": base64.b64encode(bytes(65_537)).decode()}, "payload_base64"),
        ({"delay": "1h", "run_at": "2030-01-01T00:00:00Z"}, "delay"),
        ({"delay": "401d"}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": True}, "delay"),
        ({"delay": 1e308}, "delay"),
        ({"delay": []}, "delay"),
        ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"run_at": "tomorrow"}, "run_at"),
        ({"run_at": "9999-12-31T23:59:59.9999Z"}, "run_at"),
        ({"run_at": 1_900_000_000}, "run_at"),
    ],
)
async def test_wrong_fields_are_named(rest: RestWorld, fields: dict[str, Any], field: str) -> None:
    answer = await rest.post("/tasks", {"type": "t", **fields})
    message = refused(answer, 400, "INVALID_ARGUMENT", field)
    assert message.startswith(f"{field}: ")
    assert "due_time" not in message


@pytest.mark.parametrize("number", [b"1e999", b"9" * 400, b"-" + b"9" * 5_000])
async def test_a_delay_beyond_all_numbers(rest: RestWorld, number: bytes) -> None:
    refused(await rest.post("/tasks", b'{"type":"t","delay":%b}' % number), 400, "INVALID_ARGUMENT", "delay")


async def test_messages_speak_of_the_fields_that_there_are(rest: RestWorld) -> None:
    both = {"type": "t", "delay": "1h", "run_at": in_ms(5)}
    assert "together with run_at" in refused(await rest.post("/tasks", both), 400, "INVALID_ARGUMENT", "delay")
    first = await rest.create(run_at=in_ms(HOUR_MS))
    moved = {"type": "mail", "run_at": in_ms(2 * HOUR_MS), "task_id": first["task_id"]}
    assert "exactly run_at" in refused(await rest.post("/tasks", moved), 400, "INVALID_ARGUMENT", "task_id")


async def test_the_type_must_be_given(rest: RestWorld) -> None:
    assert "must be given" in refused(await rest.post("/tasks", {}), 400, "INVALID_ARGUMENT", "type")


async def test_unknown_queues_and_namespaces(rest: RestWorld) -> None:
    refused(await rest.post("/tasks", {"type": "t", "queue": "no"}), 404, "NOT_FOUND", "queue")
    refused(await rest.post("/tasks", {"type": "t", "namespace": "no"}), 404, "NOT_FOUND", "namespace")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b"5",
        b'"text"',
        b"null",
        b'{"type":"t"',
        b'{"type":"t",}',
        b'{"type" "t"}',
        b'{"type":}',
        b'{"type":"t"} x',
        b"{'type':'t'}",
        b'{type:"t"}',
        b'\xef\xbb\xbf{"type":"t"}',
        b'{"type":"\xff"}',
        b'{"type":"t","payload":"\xed\xa0\x80"}',
        b'{"type":"t","payload":NaN}',
        b'{"type":"t","payload":[-Infinity]}',
        b'{"type":"t","payload":"\\ud800"}',
        b'{"type":"t","payload":{"\\udfff":1}}',
        b'{"type":"\\ud800"}',
        b'{"type":"t","metadata":{"k":"\\ud800"}}',
        b'{"type":"t","namespace":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"type":"t","type":"u"}',
        b'{"type":"t","payload":{"a":1,"a":2}}',
        b'{"type":"t","payload":"\x00"}',
        b'{"type":"t","payload":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"type":"t","payload":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}",
        b'{"type":"t","payload":' + b"[" * 40_000 + b"}",
        b'{"type":"t","payload":01}',
        b'{"type":"t","payload":"\\x"}',
    ],
)
async def test_what_is_no_proper_json_is_refused(rest: RestWorld, body: bytes) -> None:
    refused(await rest.post("/tasks", body), 400, "INVALID_ARGUMENT")
    refused(await rest.post("/tasks:batch", b'{"tasks":[{"type":"t"},%b]}' % body), 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(("levels", "code"), [(100, 201), (101, 400)])
async def test_how_deep_a_payload_may_be(rest: RestWorld, levels: int, code: int) -> None:
    body = b'{"type":"t","payload":%b%b}' % (b"[" * levels, b"]" * levels)
    answer = await rest.post("/tasks", body)
    assert answer.status_code == code
    if code == 201:
        assert "payload" in await rest.task(answer.json()["task_id"])


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "text/json"}, 415),
        ({"Content-Type": "application/json; charset=latin-1"}, 415),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, 415),
        ({"Content-Type": 'Application/JSON; charset="UTF-8"'}, 201),
    ],
)
async def test_content_types_of_requests(rest: RestWorld, headers: dict[str, str], code: int) -> None:
    answer = await rest.post("/tasks", b'{"type":"t"}', headers=headers)
    assert answer.status_code == code
    if code == 415:
        refused(answer, 415, "INVALID_ARGUMENT", "")


async def test_a_task_as_large_as_it_may_be_fits_however_it_is_written(rest: RestWorld) -> None:
    metadata = "".join(f"\\u{ord('m'):04x}" for _ in range(8_190))
    payload = base64.b64encode(bytes(65_536)).decode()
    body = f'{{"type":"t","payload_base64":"{payload}","metadata":{{"k":"{metadata}"}}}}'
    assert (await rest.post("/tasks", body.encode())).status_code == 201


async def test_bodies_are_bounded(rest: RestWorld) -> None:
    most = task_bytes_max(Limits())
    padded = b'{"type":"t"}' + b" " * (most - 12)
    assert (await rest.post("/tasks", padded)).status_code == 201
    refused(await rest.post("/tasks", padded + b" "), 413, "INVALID_ARGUMENT", "")
    refused(await rest.post("/tasks:batch", b" " * (BATCH_BYTES_MAX + 1)), 413, "INVALID_ARGUMENT", "")

    async def unannounced() -> AsyncIterator[bytes]:
        for _ in range(most // 1_000 + 1):
            yield b" " * 1_000

    answer = await rest.client.post("/tasks", content=unannounced(), headers={"Content-Type": "application/json"})
    refused(answer, 413, "INVALID_ARGUMENT", "")


# ---------------------------------------------------------------- unavailable


async def test_a_create_that_is_not_confirmed_says_its_id(rest: RestWorld) -> None:
    rest.store.fail_next("insert", OutcomeUnknown("time-out"), times=10_000)
    answer = await rest.post("/tasks", {"type": "t", "delay": "1h"})
    refused(answer, 503, "UNAVAILABLE")
    (detail,) = answer.json()["error"]["details"]
    assert answer.headers["retry-after"] == "1"
    assert detail["retry_after_ms"] == 1_000
    assert ids.parse(detail["task_id"], 256)


async def test_a_full_disk(rest: RestWorld) -> None:
    async def full(rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        return [NoRoom("the disk is full")] * len(rows)

    rest.store.insert = full  # type: ignore[method-assign]
    answer = await rest.post("/tasks", {"type": "t", "delay": "1h"})
    assert "nothing was stored" in refused(answer, 503, "RESOURCE_EXHAUSTED")
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["error"]["details"] == [{"retry_after_ms": 5_000, "reason": "STORAGE_FULL"}]


async def test_what_nobody_expected_is_told_by_a_number_only(rest: RestWorld, caplog: pytest.LogCaptureFixture) -> None:
    rest.store.fail_next("get", RuntimeError("secret"))
    created = await rest.create()
    message = refused(await rest.client.get(f"/tasks/{created['task_id']}"), 500, "INTERNAL", "")
    assert "secret" not in message
    assert message.split()[-1] in caplog.text


# ---------------------------------------------------------------- get and cancel


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel")])
async def test_ids_that_name_nothing(rest: RestWorld, method: str, path: str) -> None:
    there_is_none = ids.text(ids.mint(NOW_MS, 3, 4))
    rest.owners.on_cancel = lambda task_id: CancelResult.NOT_FOUND
    refused(await rest.client.request(method, f"/tasks/{there_is_none}{path}"), 404, "NOT_FOUND", "task_id")
    for wrong in ("5", "%00", "%ED%A0%80", "x" * 5_000, "00000000-0000-4000-8000-000000000000"):
        refused(await rest.client.request(method, f"/tasks/{wrong}{path}"), 400, "INVALID_ARGUMENT", "task_id")
    url = f"/tasks/{there_is_none}{path}?namespace="
    refused(await rest.client.request(method, f"{url}no"), 404, "NOT_FOUND", "namespace")
    refused(await rest.client.request(method, f"{url}%FF"), 400, "INVALID_ARGUMENT", "namespace")


async def test_query_parameters_that_there_are_none_of(rest: RestWorld) -> None:
    created = await rest.create()
    url = f"/tasks/{created['task_id']}"
    refused(await rest.client.get(f"{url}?namespce=x"), 400, "INVALID_ARGUMENT", "namespce")
    refused(await rest.client.get(f"{url}?namespace=default&namespace=x"), 400, "INVALID_ARGUMENT", "namespace")
    refused(await rest.post("/tasks?namespace=default", {"type": "t"}), 400, "INVALID_ARGUMENT", "namespace")


@pytest.mark.parametrize("result", [CancelResult.CANCELLED, CancelResult.ALREADY_CANCELLED])
async def test_a_cancel(rest: RestWorld, result: CancelResult) -> None:
    created = await rest.create()
    rest.owners.on_cancel = lambda task_id: result
    answer = await rest.post(f"/tasks/{created['task_id']}/cancel")
    told = {"task_id": created["task_id"], "status": "CANCELLED", "outcome": result.name}
    assert (answer.status_code, answer.json()) == (200, told)


@pytest.mark.parametrize("result", [CancelResult.ALREADY_DISPATCHED, CancelResult.ALREADY_FAILED])
async def test_a_cancel_that_comes_too_late(rest: RestWorld, result: CancelResult) -> None:
    created = await rest.create()
    rest.owners.on_cancel = lambda task_id: result
    answer = await rest.post(f"/tasks/{created['task_id']}/cancel")
    assert result.value in refused(answer, 409, "FAILED_PRECONDITION", "task_id")


async def test_a_cancel_without_an_owner(rest: RestWorld) -> None:
    created = await rest.create()
    rest.owners.on_cancel = lambda task_id: None
    answer = await rest.post(f"/tasks/{created['task_id']}/cancel")
    refused(answer, 503, "UNAVAILABLE")
    assert answer.headers["retry-after"] == "1"


# ---------------------------------------------------------------- batch


async def test_each_item_of_a_batch_has_its_own_answer(rest: RestWorld) -> None:
    body = b"""{"tasks": [
        {"type": "a", "payload": {"n":1.0}, "delay": "1h"} ,
        {"type": ""},{"typo": 1, "type": "b"}, {"type": "c", "queue": "no"},
        {"type": "d", "payload_base64": "%b"},{"type": "e"}]}""" % base64.b64encode(bytes(65_537))
    answer = await rest.post("/tasks:batch", body)
    assert answer.status_code == 200
    results = answer.json()["results"]
    assert [result["code"] for result in results] == [201, 400, 400, 404, 400, 201]
    assert set(results[0]) == {"code", "task_id", "status", "run_at"}
    faults = [result["error"]["details"][0]["field"] for result in results if "error" in result]
    assert faults == ["type", "typo", "queue", "payload_base64"]
    stored = await rest.tasks.get("default", results[0]["task_id"])
    assert stored.row.body.payload == b'{"n":1.0}'


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "tasks"),
        ({"tasks": 5}, "tasks"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": [5]}, "tasks"),
        ({"tasks": [[]]}, "tasks"),
        ({"tasks": [{"type": "t"}, None]}, "tasks"),
        ({"tasks": [], "more": 1}, "more"),
        ({"tasks": [{"type": "t"}] * 1_001}, "tasks"),
    ],
)
async def test_batches_that_are_none(rest: RestWorld, body: Any, field: str) -> None:
    refused(await rest.post("/tasks:batch", body), 400, "INVALID_ARGUMENT", field)


async def test_an_empty_batch(rest: RestWorld) -> None:
    answer = await rest.post("/tasks:batch", {"tasks": []})
    assert (answer.status_code, answer.json()) == (200, {"results": []})


async def test_a_batch_of_which_nothing_is_confirmed(rest: RestWorld) -> None:
    rest.store.fail_next("insert", OutcomeUnknown("time-out"), times=10_000)
    answer = await rest.post("/tasks:batch", {"tasks": [{"type": "t", "delay": "1h"}] * 2})
    assert [result["code"] for result in answer.json()["results"]] == [503, 503]
    assert all(ids.parse(result["error"]["details"][0]["task_id"], 256) for result in answer.json()["results"])
