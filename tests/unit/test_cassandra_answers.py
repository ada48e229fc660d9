"""How the driver's answers get into the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

from bucketsched.adapters.cassandra.requests import Answers
from bucketsched.adapters.cassandra.session import _is_unexpected


class CountingLoop:
    """The event loop, and how often it was woken."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wake_ups = 0

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any) -> None:
        self.wake_ups += 1
        self.loop.call_soon_threadsafe(callback, *args)


async def test_all_answers_of_a_moment_need_one_wake_up() -> None:
    loop = CountingLoop()
    answers = Answers(loop)  # type: ignore[arg-type]
    arrived: list[tuple[int, Exception | None]] = []

    def post_all() -> None:
        for number in range(1_000):
            answers.post(lambda value, error: arrived.append((value, error)), number, None)

    thread = threading.Thread(target=post_all)
    thread.start()
    thread.join()  # the loop is kept from running meanwhile
    assert (loop.wake_ups, arrived) == (1, [])
    await asyncio.sleep(0)
    assert arrived == [(number, None) for number in range(1_000)]
    answers.post(lambda value, error: arrived.append((value, error)), 1_000, None)
    assert len(arrived) == 1_000, "never from within the call"
    await asyncio.sleep(0)
    assert (loop.wake_ups, len(arrived)) == (2, 1_001)


def test_answers_after_the_loop_has_ended_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    Answers(loop).post(lambda value, error: None, 1, None)


def test_the_servers_remarks_on_group_commits_are_not_logged() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("cassandra.protocol", logging.WARNING, "", 1, "Server warning: %s", (text,), None)

    assert not _is_unexpected(record("Unlogged batch covering 20 partitions detected against table x.tasks"))
    assert not _is_unexpected(record("Batch for [x.tasks] is of size 20.1KiB, exceeding specified threshold of 5KiB"))
    assert _is_unexpected(record("Read 0 live rows and 5001 tombstone cells"))
