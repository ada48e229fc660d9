"""What is sent to SQS: text as it is, the rest in base64, ten attributes at most; groups, and requests."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from bucketsched.core.message import TaskEvent
from bucketsched.core.sqs import Sqs, is_group
from bucketsched.core.sqs_message import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, SqsMessage, batches, message_of
from bucketsched.core.task import Priority

STANDARD = Sqs("https://sqs.eu-central-1.amazonaws.com/1/jobs", "eu-central-1")
FIFO = replace(STANDARD, queue_url=STANDARD.queue_url + ".fifo")
EVENT = TaskEvent(
    task_id="01J",
    namespace="shop",
    queue="jobs",
    type="order.paid",
    payload=b'{"order": 7}',
    metadata={"tenant": "ada", "note": "ä\x01"},
    content_type="application/json",
    priority=Priority.NORMAL,
    generation=2,
    attempt=3,
    epoch=4,
    due_ms=1_000,
    dispatched_ms=1_003,
)


def test_a_message_says_what_consumers_need() -> None:
    message = message_of(EVENT, STANDARD)
    assert message.body == '{"order": 7}'
    assert json.loads(message.attributes.pop("bs-metadata")) == EVENT.metadata
    assert message.attributes == {
        "ce_id": "01J/2/3",
        "ce_type": "order.paid",
        "ce_source": "/bucketsched/shop/jobs",
        "ce_due": "1000",
        "ce_dispatched": "1003",
        "ce_attempt": "3",
        "idempotency-key": "01J/2",
        "content-type": "application/json",
    }
    assert (message.group, message.deduplication) == ("", "")


@pytest.mark.parametrize("payload", [b"\xff\xfe", b"a\x00b", "\uffff".encode(), b"\x1b[0m"])
def test_what_sqs_does_not_take_as_text_is_base64(payload: bytes) -> None:
    message = message_of(replace(EVENT, payload=payload), STANDARD)
    assert base64.b64decode(message.body) == payload
    assert message.attributes["content-encoding"] == "base64"
    assert len(message.attributes) == 10, "SQS allows no more"


@pytest.mark.parametrize("payload", ["tab\tline\r\n", "ä\u20ac", "\U0001f600"])
def test_text_stays_as_it_is(payload: str) -> None:
    message = message_of(replace(EVENT, payload=payload.encode()), STANDARD)
    assert message.body == payload
    assert "content-encoding" not in message.attributes


def test_an_empty_payload_has_a_body_all_the_same() -> None:
    message = message_of(replace(EVENT, payload=b"", metadata={}), STANDARD)
    assert (message.body, message.attributes["content-encoding"]) == ("-", "empty")
    assert all(message.attributes.values()), "SQS takes no empty attribute"
    assert "bs-metadata" not in message.attributes


def test_size_counts_bytes_of_attributes_too() -> None:
    assert SqsMessage("ä", {"ab": "€"}).size == 2 + 2 + len("String") + 3


@pytest.mark.parametrize(
    ("settings", "metadata", "group"),
    [
        ({}, {}, "order.paid"),
        ({"group": "all"}, {}, "all"),
        ({"group": "all", "group_key": "tenant"}, {"tenant": "ada"}, "ada"),
        ({"group": "all", "group_key": "tenant"}, {}, "all"),
        ({"group_key": "tenant"}, {"tenant": ""}, "order.paid"),
    ],
)
def test_groups(settings: dict[str, str], metadata: dict[str, str], group: str) -> None:
    message = message_of(replace(EVENT, metadata=metadata), replace(FIFO, **settings))
    assert (message.group, message.deduplication) == (group, "01J/2")


@pytest.mark.parametrize("name", ["of two words", "ä", "x" * 129])
def test_a_group_that_sqs_does_not_take_is_named_by_its_hash(name: str) -> None:
    sqs = replace(FIFO, group_key="tenant")
    groups = {message_of(replace(EVENT, metadata={"tenant": of}), sqs).group for of in (name, name, name + "2")}
    assert len(groups) == 2
    assert all(is_group(group) for group in groups)


def test_every_attempt_has_the_same_deduplication_id() -> None:
    attempts = [message_of(replace(EVENT, attempt=attempt), FIFO) for attempt in (1, 2)]
    assert len({message.deduplication for message in attempts}) == 1
    assert message_of(replace(EVENT, generation=9), FIFO).deduplication != attempts[0].deduplication


def test_requests_are_bounded_and_keep_the_order() -> None:
    small, half = SqsMessage("x", {}), SqsMessage("x" * (BATCH_BYTES_MAX // 2 + 1), {})
    huge = SqsMessage("x" * (BATCH_BYTES_MAX + 1), {})
    sent = [small] * 12 + [half, half, huge, small]
    got = list(batches(enumerate(sent)))
    assert [number for batch in got for number, _ in batch] == list(range(len(sent)))
    assert [len(batch) for batch in got] == [BATCH_MESSAGES_MAX, 3, 1, 1, 1]
    assert list(batches([])) == []
