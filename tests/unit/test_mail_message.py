"""What is mailed: text as text, JSON to be read, all else attached; headers that nothing can break out of."""

from __future__ import annotations

import json
from dataclasses import replace
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import cast

import pytest

from bucketsched.core.mail import Email, Tls, is_address
from bucketsched.core.mail_check import check_email
from bucketsched.core.mail_message import Mail, mail_of, recipients_of
from bucketsched.core.mail_subject import check_subject, subject_of
from bucketsched.core.message import TaskEvent
from bucketsched.core.task import Priority
from bucketsched.errors import InvalidArgument

NOW_MS = 1_740_000_000_000
EMAIL = Email("mx.example.org", "scheduler@example.org", ("ada@example.org", "bob@example.org"))
EVENT = TaskEvent(
    task_id="01J",
    namespace="shop",
    queue="mails",
    type="greet",
    payload=b"hello\n",
    metadata={},
    content_type="text/plain",
    priority=Priority.NORMAL,
    generation=2,
    attempt=3,
    epoch=4,
    due_ms=1_000,
    dispatched_ms=1_003,
)
TOLD = {"event": "FAILED", "task_id": "01A", "queue": "payments", "type": "pay", "error": {"message": "ä\nb"}}
NOTICE = replace(
    EVENT, type="bucketsched.failed", payload=json.dumps(TOLD).encode(), content_type="application/json"
)  # fmt: skip


def read(mail: Mail) -> EmailMessage:
    return cast(EmailMessage, message_from_bytes(mail.content, policy=default))


def text_of(message: EmailMessage) -> str:
    """A text as its reader has it."""
    return str(message.get_content()).replace("\r\n", "\n")


def test_a_mail_has_what_mails_have() -> None:
    mail = mail_of(EVENT, EMAIL, NOW_MS)
    message = read(mail)
    assert (mail.sender, mail.recipients) == (EMAIL.sender, EMAIL.to)
    assert message["From"] == "scheduler@example.org"
    assert message["To"] == "ada@example.org, bob@example.org"
    assert message["Subject"] == "greet 01J"
    assert message["Date"] == "Wed, 19 Feb 2025 21:20:00 +0000"
    assert message["Message-ID"] == "<01J.2@example.org>"
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["X-Bucketsched-Attempt"] == "01J/2/3"
    assert (message.get_content_type(), text_of(message)) == ("text/plain", "hello\n")
    assert b"\n" not in mail.content.replace(b"\r\n", b"")


def test_every_attempt_has_the_same_message_id() -> None:
    mails = [read(mail_of(replace(EVENT, attempt=attempt), EMAIL, NOW_MS + attempt)) for attempt in (1, 2)]
    assert len({mail["Message-ID"] for mail in mails}) == 1
    assert read(mail_of(replace(EVENT, generation=3), EMAIL, NOW_MS))["Message-ID"] != mails[0]["Message-ID"]


def test_a_notice_is_told_by_the_task_that_it_tells_of_and_can_be_read() -> None:
    message = read(mail_of(NOTICE, EMAIL, NOW_MS))
    assert message["Subject"] == "FAILED pay 01A"
    text = text_of(message)
    assert json.loads(text) == TOLD
    assert '\n  "event": "FAILED"' in text
    assert "ä" in text


def test_only_notices_speak_for_other_tasks() -> None:
    message = read(mail_of(replace(NOTICE, type="greet"), EMAIL, NOW_MS))
    assert message["Subject"] == "greet 01J"


@pytest.mark.parametrize(
    ("payload", "content_type", "shown_as"),
    [
        (b"\xff\x00", "application/octet-stream", "application/octet-stream"),
        (b"\xff\x00", "image/png", "image/png"),
        (b"\xff\x00", "text/plain", "application/octet-stream"),
        (b"\xff\x00", "message/rfc822", "application/octet-stream"),
        (b"a\x00b", "", "application/octet-stream"),
        (b"\xff", "application/json", "application/json"),
    ],
)
def test_what_is_no_text_is_attached(payload: bytes, content_type: str, shown_as: str) -> None:
    message = read(mail_of(replace(EVENT, payload=payload, content_type=content_type), EMAIL, NOW_MS))
    [attached] = message.iter_attachments()
    assert (attached.get_content_type(), attached.get_content()) == (shown_as, payload)
    body = message.get_body()
    assert body is not None
    assert "attached" in body.get_content()


@pytest.mark.parametrize("payload", ["", "ä€\n", "x" * 5_000, ".\r\n.\r\nQUIT\r\n", "a\nFrom b\n"])
def test_text_arrives_as_it_is(payload: str) -> None:
    message = read(mail_of(replace(EVENT, payload=payload.encode(), content_type=""), EMAIL, NOW_MS))
    assert text_of(message).rstrip("\n") == payload.replace("\r\n", "\n").rstrip("\n")


@pytest.mark.parametrize(
    "evil", ["x\r\nBcc: eve@example.org", "x\nBcc: eve@example.org", "x\rBcc: e@e", "x\x00\u2028y"]
)
def test_nothing_breaks_out_of_a_header(evil: str) -> None:
    told = json.dumps({"event": evil, "type": evil, "task_id": evil, "queue": evil}).encode()
    for event in (replace(NOTICE, payload=told), replace(EVENT, type=evil), replace(EVENT, content_type=evil)):
        mail = mail_of(event, replace(EMAIL, subject="{event} {type} {task_id} {queue}"), NOW_MS)
        assert read(mail)["Bcc"] is None
        head = mail.content.partition(b"\r\n\r\n")[0]
        assert not any(line.lower().startswith(b"bcc") for line in head.splitlines())


@pytest.mark.parametrize(
    ("metadata", "to", "expected"),
    [
        ({"mail": "cy@example.org"}, EMAIL.to, ("cy@example.org",)),
        ({}, EMAIL.to, EMAIL.to),
        ({"mail": ""}, EMAIL.to, EMAIL.to),
        ({}, (), ()),
        ({"mail": "nobody"}, EMAIL.to, ()),
        ({"mail": "a@b\r\nBcc: c@d"}, EMAIL.to, ()),
        ({"mail": "a@b, c@d"}, EMAIL.to, ()),
    ],
)
def test_recipients(metadata: dict[str, str], to: tuple[str, ...], expected: tuple[str, ...]) -> None:
    email = replace(EMAIL, to_key="mail", to=to)
    assert recipients_of(replace(EVENT, metadata=metadata), email) == expected
    assert mail_of(replace(EVENT, metadata=metadata), email, NOW_MS).recipients == expected


@pytest.mark.parametrize(
    "template", ["{type.__class__}", "{type[0]}", "{0}", "{}", "{secret}", "{type!r}", "{type:>9}"]
)
def test_braces_of_a_subject_mean_nothing_else(template: str) -> None:
    with pytest.raises(InvalidArgument, match="in braces") as caught:
        check_subject(template)
    assert caught.value.field == "email.subject"


@pytest.mark.parametrize("template", ["{type", "type}", "", "   ", "x" * 201])
def test_other_templates_that_are_none(template: str) -> None:
    with pytest.raises(InvalidArgument):
        check_subject(template)


def test_subjects() -> None:
    check_subject("{{{type}}} {event}: {task_id}")
    assert subject_of("{{{type}}} {event}: {task_id}", {"type": "a {b}", "task_id": "1"}) == "{a {b}} : 1"
    assert len(subject_of("{type}" * 9, {"type": "x" * 100})) == 200


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("host", {"host": ""}),
        ("host", {"host": "mx example"}),
        ("host", {"host": "mx\r\n"}),
        ("port", {"port": 0}),
        ("port", {"port": 65_536}),
        ("from", {"sender": "nobody"}),
        ("from", {"sender": "a@b\r\nBcc: c@d"}),
        ("from", {"sender": "Ada <a@b>"}),
        ("to", {"to": ()}),
        ("to", {"to": ("a@b",) * 51}),
        ("to", {"to": ("a@b", "nobody")}),
        ("to_key", {"to_key": "k" * 101}),
        ("login", {"login": "l" * 101}),
        ("subject", {"subject": "{x}"}),
        ("timeout", {"timeout_ms": 999}),
        ("concurrency", {"concurrency": 65}),
    ],
)
def test_settings_that_can_not_be_are_refused(field: str, change: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_email(replace(EMAIL, **change))  # type: ignore[arg-type]
    assert caught.value.field == f"email.{field}"


def test_settings_that_can_be() -> None:
    check_email(EMAIL)
    check_email(Email("::1", "a@b", (), "mail", "x", 25, Tls.NONE, "ses", 1_000, 64))


def test_addresses() -> None:
    assert is_address("o'neil+tag@mx.example.org")
    for text in ("", "@", "a@", "@b", "a b@c", "a@b c", "a@b\n", "<a@b>", "a@b,c@d", "a@b..c", "ä@b", "x" * 65 + "@b"):
        assert not is_address(text), text


@pytest.mark.parametrize(
    ("host", "there"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("10.0.0.1", False), ("mx", False)]
)
def test_loopback(host: str, there: bool) -> None:
    assert replace(EMAIL, host=host).on_loopback == there
