"""Deadlines, second nodes and pages of requests, over a driver that answers when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import cassandra
import pytest

from bucketsched.adapters.cassandra import requests
from bucketsched.adapters.cassandra.failures import NoAnswer, NotSent, OneOfSeveral
from bucketsched.adapters.cassandra.requests import FORGET_AFTER_S, SPECULATE_AFTER_S, Page, Requests

TIMEOUT_S = 2.0
UNAVAILABLE = cassandra.Unavailable("replicas", consistency=6, required_replicas=2, alive_replicas=1)


@dataclass
class Timer:
    at: float
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Loop:
    """The event loop: what is posted runs at once, timers when the test says so."""

    now: float = 100.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(at, callback))
        return self.timers[-1]

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self.call_at(self.now + delay, callback)

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        callback()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= end and not timer.cancelled]:
            timer = min(due, key=lambda timer: timer.at)
            self.now = max(self.now, timer.at)
            timer.cancel()
            timer.callback()
        self.now = end


class Future:
    """One of the driver's: `callbacks` until they are cleared."""

    def __init__(self, host: str, paging_state: bytes | None) -> None:
        self.attempted_hosts = [host]
        self.asked_for = paging_state
        self._paging_state: bytes | None = None
        self.callbacks: list[Callable[[Any], None]] = []
        self.errbacks: list[Callable[[Any], None]] = []

    def add_callbacks(self, callback: Callable[[Any], None], errback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)
        self.errbacks.append(errback)

    def clear_callbacks(self) -> None:
        self.callbacks, self.errbacks = [], []

    def succeed(self, rows: Any, more: bytes | None = None) -> None:
        self._paging_state = more
        for callback in list(self.callbacks):
            callback(rows)

    def fail(self, error: Exception) -> None:
        for errback in list(self.errbacks):
            errback(error)


class Session:
    """The driver's: nodes by name, in the order of the plan."""

    keyspace = "k"

    def __init__(self, *hosts: str) -> None:
        self.hosts = hosts
        self._pools = {host: SimpleNamespace(is_shutdown=False, open_count=1) for host in hosts}
        self.futures: list[Future] = []
        policy = SimpleNamespace(make_query_plan=lambda keyspace, statement: iter(hosts))
        self.cluster = SimpleNamespace(
            profile_manager=SimpleNamespace(default=SimpleNamespace(load_balancing_policy=policy))
        )

    def execute_async(self, statement: Any, paging_state: bytes | None, host: str | None) -> Future:
        self.futures.append(Future(host or self.hosts[0], paging_state))
        return self.futures[-1]


class World:
    def __init__(self, *hosts: str, idempotent: bool = True) -> None:
        self.loop = Loop()
        self.session = Session(*hosts)
        self.requests = Requests(self.session, self.loop, TIMEOUT_S)  # type: ignore[arg-type]
        self.statement = SimpleNamespace(is_idempotent=idempotent)
        self.answers: list[tuple[Page | None, Exception | None]] = []

    def send(self, more: bytes | None = None) -> None:
        self.requests.send(self.statement, lambda page, error: self.answers.append((page, error)), more)

    @property
    def futures(self) -> list[Future]:
        return self.session.futures


def test_an_answer_reaches_its_request_once() -> None:
    world = World("a", "b")
    world.send()
    callback = world.futures[0].callbacks[0]
    world.futures[0].succeed([(1,)])
    callback([(2,)])
    world.loop.advance(TIMEOUT_S * 2)
    assert world.answers == [(Page([(1,)], None), None)]
    assert (len(world.futures), world.requests.unanswered) == (1, 0)
    assert all(timer.cancelled for timer in world.loop.timers), "nothing refers to it any more"


def test_what_is_not_answered_soon_goes_to_a_second_node_and_to_no_third() -> None:
    world = World("a", "b", "c")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S * 0.9)
    assert len(world.futures) == 1
    world.loop.advance(TIMEOUT_S / 2)
    assert [future.attempted_hosts for future in world.futures] == [["a"], ["b"]]


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_of_two_answers_counts(winner: int) -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    world.futures[winner].succeed([(winner,)])
    world.futures[1 - winner].succeed([("late",)])
    world.loop.advance(FORGET_AFTER_S)
    assert world.answers == [(Page([(winner,)], None), None)]
    assert world.requests.unanswered == 0


def test_what_must_not_be_executed_twice_goes_to_one_node() -> None:
    world = World("a", "b", idempotent=False)
    world.send()
    world.loop.advance(TIMEOUT_S * 0.9)
    assert len(world.futures) == 1
    world.loop.advance(TIMEOUT_S)
    assert isinstance(world.answers[0][1], NoAnswer)


@pytest.mark.parametrize(("is_shutdown", "open_count"), [(True, 1), (False, 0)])
def test_a_node_without_a_connection_is_not_asked(is_shutdown: bool, open_count: int) -> None:
    world = World("a", "b", "c")
    world.session._pools["b"] = SimpleNamespace(is_shutdown=is_shutdown, open_count=open_count)
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    assert [future.attempted_hosts for future in world.futures] == [["a"], ["c"]]


def test_where_there_is_no_second_node_the_first_is_waited_for() -> None:
    world = World("a")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S * 2)
    world.futures[0].succeed(None)
    assert world.answers == [(Page(None, None), None)]


def test_an_error_before_the_second_node_is_asked_ends_the_request() -> None:
    world = World("a", "b")
    world.send()
    world.futures[0].fail(UNAVAILABLE)
    assert world.answers == [(None, UNAVAILABLE)]


def test_an_error_of_one_node_counts_when_the_other_one_has_failed_too() -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    world.futures[0].fail(UNAVAILABLE)
    assert world.answers == []
    world.futures[1].fail(UNAVAILABLE)
    assert len(world.answers) == 1
    assert isinstance(world.answers[0][1], OneOfSeveral), "either may have been executed"


def test_an_error_of_one_node_does_not_hide_the_success_of_the_other_one() -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    world.futures[1].fail(UNAVAILABLE)
    world.futures[0].succeed([])
    assert world.answers == [(Page([], None), None)]


def test_a_refusal_is_the_same_everywhere() -> None:
    world, refusal = World("a", "b"), cassandra.InvalidRequest("Batch too large")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    world.futures[0].fail(refusal)
    world.futures[1].succeed(None)
    assert world.answers == [(None, refusal)]


def test_a_deadline_ends_the_request_and_late_answers_reach_nobody() -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(TIMEOUT_S)
    assert len(world.answers) == 1
    assert isinstance(world.answers[0][1], NoAnswer)
    assert world.requests.unanswered == 2
    world.futures[0].succeed([(1,)])
    assert (len(world.answers), world.requests.unanswered) == (1, 1)


def test_what_is_never_answered_is_forgotten() -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(TIMEOUT_S)
    world.loop.advance(FORGET_AFTER_S)
    assert world.requests.unanswered == 0
    assert not any(future.callbacks for future in world.futures)
    assert len(world.answers) == 1


def test_no_more_is_sent_while_too_much_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "UNANSWERED_MAX", 3)
    world = World("a", "b")
    for _ in range(4):
        world.send()
    assert len(world.futures) == 3
    assert isinstance(world.answers[0][1], NotSent)
    world.loop.advance(SPECULATE_AFTER_S)
    assert len(world.futures) == 3, "nor to second nodes"
    world.futures[0].succeed(None)
    world.send()
    assert len(world.futures) == 4


def test_a_late_answer_for_one_page_is_none_for_the_next() -> None:
    world = World("a", "b")
    world.send()
    world.loop.advance(SPECULATE_AFTER_S)
    world.futures[1].succeed([(1,)], more=b"next")
    world.send(more=b"next")
    world.futures[0].succeed([(1,)], more=b"next")
    assert [page for page, _ in world.answers] == [Page([(1,)], b"next")]
    assert world.futures[2].asked_for == b"next"
    world.futures[2].succeed([(2,)])
    assert [page for page, _ in world.answers] == [Page([(1,)], b"next"), Page([(2,)], None)]


def test_what_the_driver_raises_at_once_is_an_answer() -> None:
    world, error = World("a"), RuntimeError("shut down")

    def execute_async(*_: Any, **__: Any) -> Future:
        raise error

    world.session.execute_async = execute_async  # type: ignore[method-assign]
    world.send()
    assert world.answers == [(None, error)]
    assert world.requests.unanswered == 0
