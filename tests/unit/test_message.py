"""Messages: CloudEvents whose headers give back what was put in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.message import DEFAULT_CONTENT_TYPE, from_headers, rfc3339, to_message
from bucketsched.core.task import Priority, TaskBody, TaskRow
from bucketsched.core.validation import Limits, NewTask, validate

NAMESPACE_ID = b"n" * 16
DUE_MS = 1_764_472_099_123
DISPATCHED_MS = DUE_MS + 7


def queue(**settings: Any) -> Queue:
    return Queue(NAMESPACE_ID, "shop", "orders", QueueKind.KAFKA, **{"topic": "shop.orders", **settings})


def row(generation: int = 0, attempt: int = 1, **body: Any) -> TaskRow:
    given = {"namespace": "shop", "queue": "orders", "type": "mail", "nominal_due_ms": DUE_MS - 5, **body}
    return TaskRow(DUE_MS, NAMESPACE_ID, ids.mint(DUE_MS, 3, 99), TaskBody(**given), generation, attempt)


def test_the_headers_are_a_binary_mode_cloud_event() -> None:
    message = to_message(row(2, 3, payload=b"\x00\xff", content_type="application/json"), queue(), 9, DISPATCHED_MS)
    headers = dict(message.headers)
    task_id = ids.text(ids.mint(DUE_MS, 3, 99))
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"] == f"{task_id}/2/3".encode()
    assert headers["ce_source"] == b"/bucketsched/shop/orders"
    assert headers["ce_type"] == b"mail"
    assert headers["ce_time"] == b"2025-11-30T03:08:19.130Z"
    assert headers["ce_epoch"] == b"9"
    assert headers["content-type"] == b"application/json"
    assert message.value == b"\x00\xff"
    assert message.key is None


def test_attribute_names_are_lower_case_letters_and_digits() -> None:
    message = to_message(row(metadata={"X-Tenant": "a"}), queue(), 1, DISPATCHED_MS)
    names = [name.removeprefix("ce_") for name, _ in message.headers if name.startswith("ce_")]
    assert all(name.isalnum() and name == name.lower() and len(name) <= 20 for name in names)
    assert len(set(names)) == len(names)
    assert ("bs-meta-X-Tenant", b"a") in message.headers


def test_a_message_is_read_back() -> None:
    body = {"payload": b"p", "metadata": {"k": "wert ä"}, "priority": Priority.HIGH}
    message = to_message(row(2, 3, **body), queue(), 9, DISPATCHED_MS)
    event = from_headers(message.headers, message.value)
    assert (event.namespace, event.queue, event.type) == ("shop", "orders", "mail")
    assert (event.payload, event.metadata, event.priority) == (b"p", {"k": "wert ä"}, Priority.HIGH)
    assert (event.generation, event.attempt, event.epoch) == (2, 3, 9)
    assert (event.due_ms, event.dispatched_ms) == (DUE_MS - 5, DISPATCHED_MS)
    assert event.content_type == DEFAULT_CONTENT_TYPE
    assert event.task_id == ids.text(ids.mint(DUE_MS, 3, 99))


@given(
    st.text(),
    st.dictionaries(st.text(), st.text(), max_size=4),
    st.binary(max_size=50),
    st.text(max_size=20),
    st.sampled_from(Priority),
)
def test_whatever_is_accepted_arrives_unchanged(
    type_: str, metadata: dict[str, str], payload: bytes, content_type: str, priority: Priority
) -> None:
    task = NewTask(type_, payload=payload, metadata=metadata, content_type=content_type, priority=priority)
    try:
        validate(task, Limits(), DUE_MS, 256, 90 * DAY_MS)
    except InvalidArgument:
        return
    body = TaskBody("shop", "orders", type_, payload, metadata, priority, content_type=content_type)
    message = to_message(TaskRow(DUE_MS, NAMESPACE_ID, ids.mint(DUE_MS, 3, 9), body), queue(), 1, DISPATCHED_MS)
    event = from_headers(message.headers, message.value)
    assert (event.type, event.metadata, event.payload, event.priority) == (type_, metadata, payload, priority)
    assert event.content_type == (content_type or DEFAULT_CONTENT_TYPE)


@pytest.mark.parametrize("nominal_due_ms", [-62_135_596_800_000, -1, 0, DUE_MS])
def test_due_times_long_past_are_kept(nominal_due_ms: int) -> None:
    message = to_message(row(nominal_due_ms=nominal_due_ms), queue(), 1, DISPATCHED_MS)
    assert from_headers(message.headers, message.value).due_ms == nominal_due_ms


@pytest.mark.parametrize(
    "headers",
    [[], [("ce_taskid", b"x")], [("ce_namespace", b"\xff")]],
)
def test_headers_of_others_are_not_taken_for_ours(headers: list[tuple[str, bytes]]) -> None:
    with pytest.raises((KeyError, ValueError)):
        from_headers(headers, b"")


def test_a_foreign_header_in_latin_1_does_not_spoil_a_message() -> None:
    message = to_message(row(), queue(), 1, DISPATCHED_MS)
    event = from_headers([*message.headers, ("traceparent", b"\xe4")], message.value)
    assert event.type == "mail"


def test_the_topic_follows_the_priority_where_the_queue_says_so() -> None:
    split = queue(priority_topics=True)
    topics = {priority: to_message(row(priority=priority), split, 1, 0).topic for priority in Priority}
    assert topics == {
        Priority.HIGH: "shop.orders.high",
        Priority.NORMAL: "shop.orders",
        Priority.LOW: "shop.orders.low",
    }
    assert split.topics == ["shop.orders.high", "shop.orders", "shop.orders.low"]
    assert to_message(row(priority=Priority.HIGH), queue(), 1, 0).topic == "shop.orders"
    assert queue().topics == ["shop.orders"]


def test_the_size_covers_all_that_is_sent() -> None:
    message = to_message(row(payload=b"x" * 1000, metadata={"k": "ä" * 100}), queue(), 1, DISPATCHED_MS)
    assert message.size >= 1000 + sum(len(name) + len(value) for name, value in message.headers)


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "1970-01-01T00:00:00.000Z"), (999, "1970-01-01T00:00:00.999Z"), (2**31 * 1000, "2038-01-19T03:14:08.000Z")],
)
def test_instants_are_written_in_utc_with_milliseconds(ms: int, text: str) -> None:
    assert rfc3339(ms) == text
