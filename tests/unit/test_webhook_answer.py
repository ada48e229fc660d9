"""What answers to webhooks mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.webhook import Webhook
from bucketsched.core.webhook_answer import RETRY_AFTER_MS_MAX, Answer, Trouble, Verdict, retry_after_ms, verdict

WEBHOOK = Webhook("https://example.org/")
NOW_MS = 1_740_000_000_000
"""Wed, 19 Feb 2025 21:20:00 GMT"""


@pytest.mark.parametrize(
    ("status", "means"),
    [
        (200, Verdict.DONE), (202, Verdict.DONE), (204, Verdict.DONE), (299, Verdict.DONE),
        (301, Verdict.FINAL), (302, Verdict.FINAL), (304, Verdict.FINAL), (308, Verdict.FINAL),
        (400, Verdict.FINAL), (401, Verdict.FINAL), (404, Verdict.FINAL), (410, Verdict.FINAL), (422, Verdict.FINAL),
        (408, Verdict.AGAIN), (425, Verdict.AGAIN), (429, Verdict.AGAIN),
        (500, Verdict.AGAIN), (502, Verdict.AGAIN), (503, Verdict.AGAIN), (599, Verdict.AGAIN), (999, Verdict.AGAIN),
    ],
)  # fmt: skip
def test_statuses(status: int, means: Verdict) -> None:
    assert verdict(Answer(status), WEBHOOK) is means


def test_a_queue_says_which_are_tried_again() -> None:
    webhook = Webhook("https://example.org/", retried_statuses=(404,))
    assert verdict(Answer(404), webhook) is Verdict.AGAIN
    assert verdict(Answer(429), webhook) is Verdict.FINAL


@pytest.mark.parametrize("trouble", [Trouble.CONNECTION, Trouble.TIMEOUT, Trouble.PROTOCOL])
def test_silence_is_tried_again(trouble: Trouble) -> None:
    assert verdict(Answer(trouble=trouble), WEBHOOK) is Verdict.AGAIN


def test_an_address_that_must_not_be_connected_to_is_final() -> None:
    assert verdict(Answer(trouble=Trouble.REFUSED), WEBHOOK) is Verdict.FINAL


def test_only_silence_says_that_the_host_failed() -> None:
    assert [t for t in Trouble if Answer(trouble=t).host_failed] == [Trouble.CONNECTION, Trouble.TIMEOUT]
    assert not Answer(503).host_failed


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("", 0), ("0", 0), ("7", 7_000), (" 120 ", 120_000), ("-5", 0), ("1.5", 0), ("soon", 0), ("٣", 0),
        ("9" * 5_000, RETRY_AFTER_MS_MAX),
        ("Wed, 19 Feb 2025 21:21:00 GMT", 60_000),
        ("Wednesday, 19-Feb-25 21:20:30 GMT", 30_000),
        ("Wed Feb 19 21:20:10 2025", 10_000),
        ("Wed, 19 Feb 2025 21:19:59 GMT", 0),
        ("Wed, 19 Feb 9999 21:21:00 GMT", RETRY_AFTER_MS_MAX),
        ("Wed, 99 Feb 2025 21:21:00 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after(value: str, ms: int) -> None:
    assert retry_after_ms(value, NOW_MS) == ms


@given(st.text(max_size=40))
def test_no_retry_after_breaks_it(value: str) -> None:
    assert 0 <= retry_after_ms(value, NOW_MS) <= RETRY_AFTER_MS_MAX
