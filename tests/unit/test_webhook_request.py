"""What is posted: headers, body and signatures."""

from __future__ import annotations

import base64
import hashlib
import re
from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.message import TaskEvent
from bucketsched.core.task import Priority
from bucketsched.core.webhook_request import percent_encoded, request_of, signature

NOW_MS = 1_740_000_000_987
SECRETS = ["whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2)]


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """RFC 2104, written out: not the implementation under test."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in padded) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in padded) + inner).digest()


def event(**changes: object) -> TaskEvent:
    values: dict[str, object] = {
        "task_id": "01c8", "namespace": "shop", "queue": "orders", "type": "order paid", "payload": b"{\xff}",
        "metadata": {"Trace": "ä b"}, "content_type": "application/json", "priority": Priority.HIGH, "generation": 2,
        "attempt": 1, "epoch": 9, "due_ms": NOW_MS - 3, "dispatched_ms": NOW_MS - 1,
    }  # fmt: skip
    return TaskEvent(**values | changes)  # type: ignore[arg-type]


def test_a_known_signature() -> None:
    """The example of the Standard Webhooks specification's reference libraries."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == expected


def test_every_secret_signs() -> None:
    request = request_of(event(), "https://example.org/", SECRETS, NOW_MS)
    signed = b"01c8/2.1740000000.{\xff}"
    wanted = ["v1," + base64.b64encode(hmac_sha256(bytes([n]) * 32, signed)).decode() for n in (1, 2)]
    assert request.headers["webhook-signature"].split(" ") == wanted


def test_without_secrets_nothing_is_signed() -> None:
    assert "webhook-signature" not in request_of(event(), "https://example.org/", [], NOW_MS).headers


def test_the_body_is_the_payload() -> None:
    request = request_of(event(), "https://example.org/", [], NOW_MS)
    assert (request.body, request.headers["content-type"]) == (b"{\xff}", "application/json")


def test_headers_say_what_a_message_says() -> None:
    headers = request_of(event(), "https://example.org/", [], NOW_MS).headers
    assert {name: value for name, value in headers.items() if name.startswith(("ce-", "bs-", "webhook", "idem"))} == {
        "ce-specversion": "1.0", "ce-source": "/bucketsched/shop/orders", "ce-type": "order%20paid",
        "ce-id": "01c8/2/1", "ce-taskid": "01c8", "ce-generation": "2", "ce-attempt": "1", "ce-namespace": "shop",
        "ce-queue": "orders", "ce-priority": "0", "ce-due": str(NOW_MS - 3), "ce-time": "2025-02-19T21:20:00.986Z",
        "ce-dispatched": str(NOW_MS - 1), "ce-epoch": "9", "bs-meta-Trace": "%C3%A4%20b", "webhook-id": "01c8/2",
        "webhook-timestamp": "1740000000", "idempotency-key": "01c8/2",
    }  # fmt: skip


def test_a_late_one_says_so() -> None:
    headers = request_of(event(late_ms=5_000, late_reason="outage"), "https://example.org/", [], NOW_MS).headers
    assert (headers["ce-latems"], headers["ce-latereason"]) == ("5000", "outage")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_values_are_visible_ascii_and_can_be_read_back(text: str) -> None:
    encoded = percent_encoded(text)
    assert re.fullmatch(r"[!#-~]*", encoded)
    assert unquote(encoded, errors="strict") == text
