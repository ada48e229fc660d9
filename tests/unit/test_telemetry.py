"""Logs: one form for all of them, and what recurs at growing intervals."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from itertools import pairwise

import pytest
import structlog

from bucketsched import telemetry
from bucketsched.telemetry import FORGOTTEN_S, KINDS_MAX, RECURRING_S_MAX, RECURRING_S_MIN, Recurring


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests log as they did."""
    root, ours = logging.getLogger(), logging.getLogger("bucketsched")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    libraries = {name: logging.getLogger(name).level for name in ("kazoo", "aiokafka", "cassandra")}
    yield
    structlog.reset_defaults()
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])
    for name, level in libraries.items():
        logging.getLogger(name).setLevel(level)


class Seconds:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def said(recurring: Recurring, text: str = "waits", mark: object = True) -> dict[str, object] | None:
    """What is logged of one event; None: nothing."""
    try:
        event = recurring(None, "warning", {"event": text, "recurring": mark})
    except structlog.DropEvent:
        return None
    assert isinstance(event, dict)
    return event


def test_what_recurs_is_logged_first_and_then_at_growing_intervals() -> None:
    seconds = Seconds()
    recurring = Recurring(seconds)
    lines: list[tuple[float, object]] = []
    for step in range(3_000):  # every 0.5 s for 25 minutes
        seconds.now = 100 + step / 2
        if event := said(recurring):
            assert event["event"] == "waits"
            lines.append((step / 2, event.get("repeated")))
    assert lines[0] == (0, None)
    gaps = [late[0] - early[0] for early, late in pairwise(lines)]
    assert gaps[:6] == [RECURRING_S_MIN, 2, 4, 8, 16, 32]
    assert set(gaps[6:]) == {RECURRING_S_MAX}
    assert [repeated for _, repeated in lines[1:7]] == [2, 4, 8, 16, 32, 64], "every one is counted once"


def test_what_was_not_said_for_long_is_new() -> None:
    seconds = Seconds()
    recurring = Recurring(seconds)
    assert said(recurring) is not None
    assert said(recurring) is None
    seconds.now += FORGOTTEN_S + 1
    again = said(recurring)
    assert again is not None
    assert "repeated" not in again
    assert said(recurring) is None


def test_kinds_are_told_apart_and_what_is_not_marked_always_passes() -> None:
    recurring = Recurring(Seconds())
    assert said(recurring, "waits")
    assert said(recurring, "waits longer")
    assert said(recurring, "waits", "of another")
    assert said(recurring, "waits") is None
    assert [recurring(None, "", {"event": "waits"}) for _ in range(3)] == [{"event": "waits"}] * 3


def test_kinds_are_bounded() -> None:
    recurring = Recurring(Seconds())
    for number in range(3 * KINDS_MAX):
        said(recurring, f"kind {number}")
    assert len(recurring._told) <= KINDS_MAX


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_every_log_has_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info", "json")
    structlog.get_logger("bucketsched.poller").warning("by structlog", range=3)
    logging.getLogger("bucketsched.delivery.hub").warning("queue %s: %s", "mails", "closed")
    logging.getLogger("bucketsched.delivery.hub").info("a detail of ours")
    logging.getLogger("asyncio").error("a library's")
    logging.getLogger("asyncio").info("a detail of a library")
    logging.getLogger("kazoo.client").warning("reconnecting")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("bucketsched.api.errors").exception("request failed")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("deprecated", stacklevel=1)
    found = lines(capsys)
    assert [line["event"] for line in found[:5]] == [
        "by structlog", "queue mails: closed", "a detail of ours", "a library's", "request failed",
    ]  # fmt: skip
    assert "deprecated" in str(found[5]["event"])
    assert len(found) == 6
    assert {line["level"] for line in found} == {"warning", "error", "info"}
    assert all("timestamp" in line for line in found)
    assert found[0]["range"] == 3
    assert "ValueError: wrong" in str(found[4]["exception"])


def test_both_ways_can_say_that_something_recurs(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info", "json")
    for _ in range(5):
        structlog.get_logger("bucketsched.poller").warning("lane waits", recurring=True)
        logging.getLogger("bucketsched.delivery").warning("queue %s waits", "mails", extra={"recurring": "mails"})
        logging.getLogger("bucketsched.delivery").warning("queue %s waits", "bills", extra={"recurring": "bills"})
    found = lines(capsys)
    assert [line["event"] for line in found] == ["lane waits", "queue mails waits", "queue bills waits"]
    assert all("recurring" not in line for line in found)


def test_for_people_it_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("warning", "console")
    logging.getLogger("bucketsched.delivery").info("too fine")
    logging.getLogger("bucketsched.delivery").warning("queue %s waits", "mails")
    text = capsys.readouterr().err
    assert "queue mails waits" in text
    assert "too fine" not in text
    assert not text.startswith("{")
