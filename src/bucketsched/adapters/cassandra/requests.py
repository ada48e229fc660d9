"""Requests: each has a deadline, goes to a second node if it has no answer soon, and is answered exactly once.

The driver could do that, but takes streams back from requests that are not the one that is late, calls back once per
answer, and takes a late answer for one page as the next page. Here its futures have one request each and no timer: one
that comes too late is heard by nobody. A page is a request of its own.

The driver works in threads of its own. What it has to say is collected and handed to the event loop with one wake-up
per batch of answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import structlog

from .failures import NoAnswer, NotSent, OneOfSeveral

log = structlog.get_logger(__name__)
SPECULATE_AFTER_S = 0.4
"""When a request goes to a second node: late enough that servers that are only slow don't get all of it twice."""
UNANSWERED_MAX = 8_192
"""What was sent and has no answer yet, given up or not: the driver keeps it until its connection ends."""

FORGET_AFTER_S = 60.0
"""How long an answer is expected after its request was given up: the driver loses some when a connection ends."""

Row = tuple[Any, ...]


class Page(NamedTuple):
    """An answer. `rows`: None for a write. `more`: what to ask for the next page with, None at the end."""

    rows: list[Row] | None
    more: bytes | None


Done = Callable[[Page | None, Exception | None], None]
Post = Callable[[Callable[[Any, Exception | None], None], Any, Exception | None], None]


class Answers:
    """Carries the driver's callbacks into the event loop: one wake-up for all that came meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._items: list[tuple[Callable[[Any, Exception | None], None], Any, Exception | None]] = []

    def post(self, done: Callable[[Any, Exception | None], None], value: Any, error: Exception | None) -> None:
        """From any thread: `done(value, error)` will be called in the event loop, never from within this call."""
        with self._lock:
            self._items.append((done, value, error))
            if len(self._items) > 1:
                return
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _drain(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for done, value, error in items:
            try:
                done(value, error)
            except Exception:
                log.exception("a callback failed; those behind it go on")


class Requests:
    """Sends statements by a session of the driver. Used in one event loop."""

    def __init__(self, session: Any, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self.session = session
        self.loop = loop
        self.timeout_s = timeout_s
        self.unanswered = 0
        self._answers = Answers(loop)
        self.post: Post = self._answers.post

    def send(self, statement: Any, done: Done, more: bytes | None = None) -> None:
        """`done(page, error)` is called later, exactly once, in the event loop. `more`: of the page before."""
        if self.unanswered >= UNANSWERED_MAX:
            self.post(done, None, NotSent(f"{self.unanswered} requests have no answer"))
            return
        _Request(self, statement, done, more).start()

    def another_host(self, statement: Any, tried: list[Any]) -> Any | None:
        """A node that can be asked besides those, those with a replica first."""
        policy = self.session.cluster.profile_manager.default.load_balancing_policy
        for host in policy.make_query_plan(self.session.keyspace, statement):
            pool = self.session._pools.get(host)
            if host not in tried and pool is not None and not pool.is_shutdown and pool.open_count:
                return host
        return None


class _Request:
    """One request. `_open`: attempts that may still bring its answer."""

    __slots__ = ("_deadline", "_done", "_more", "_of", "_open", "_sent_to", "_statement", "_timer")

    def __init__(self, of: Requests, statement: Any, done: Done, more: bytes | None) -> None:
        self._of = of
        self._statement = statement
        self._done: Done | None = done
        self._more = more
        self._open = 0
        self._sent_to: list[_Attempt] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop, timeout_s = self._of.loop, self._of.timeout_s
        self._deadline = loop.time() + timeout_s
        if self._statement.is_idempotent and timeout_s > SPECULATE_AFTER_S:
            self._timer = loop.call_at(self._deadline - timeout_s + SPECULATE_AFTER_S, self._speculate)
        else:
            self._timer = loop.call_at(self._deadline, self._expire)
        self._attempt(None)

    def _attempt(self, host: Any) -> None:
        attempt = _Attempt(self)
        self._sent_to.append(attempt)
        self._open += 1
        self._of.unanswered += 1
        attempt.start(self._of, self._statement, self._more, host)

    def _speculate(self) -> None:
        self._timer = self._of.loop.call_at(self._deadline, self._expire)
        if self._of.unanswered < UNANSWERED_MAX:
            tried = [host for attempt in self._sent_to for host in attempt.hosts()]
            host = self._of.another_host(self._statement, tried)
            if host is not None:
                self._attempt(host)

    def _expire(self) -> None:
        hosts = ", ".join(str(host) for attempt in self._sent_to for host in attempt.hosts())
        self._finish(None, NoAnswer(f"within {self._of.timeout_s:g} s from {hosts or 'any node'}"))

    def answered(self, page: Page | None, error: Exception | None) -> None:
        """By one of its attempts, each once. The first success counts, and an error if nobody else can bring one."""
        self._open -= 1
        self._of.unanswered -= 1
        if self._done is None:
            return  # late
        if error is not None and len(self._sent_to) > 1:
            error = OneOfSeveral.of(error)
            if self._open and isinstance(error, OneOfSeveral):
                return
        self._finish(page, error)

    def _finish(self, page: Page | None, error: Exception | None) -> None:
        done, self._done = self._done, None
        assert done is not None, "answered twice"
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        sent_to, self._sent_to = self._sent_to, []
        if self._open:
            for attempt in sent_to:
                self._of.loop.call_later(FORGET_AFTER_S, attempt.forget)
        done(page, error)


class _Attempt:
    """A request to one node. Takes the first thing that the driver says of it; there may be more."""

    __slots__ = ("_future", "_request")

    def __init__(self, request: _Request) -> None:
        self._request: _Request | None = request
        self._future: Any = None

    def start(self, of: Requests, statement: Any, more: bytes | None, host: Any) -> None:
        post, take = of.post, self._take
        try:
            future = of.session.execute_async(statement, paging_state=more, host=host)
        except Exception as error:
            post(take, None, error)
            return
        self._future = future
        future.add_callbacks(
            lambda rows: post(take, Page(rows, future._paging_state), None), lambda error: post(take, None, error)
        )

    def hosts(self) -> list[Any]:
        return self._future.attempted_hosts if self._future is not None else []

    def forget(self) -> None:
        """No answer will be waited for any more."""
        self._take(None, NoAnswer("forgotten"))

    def _take(self, page: Page | None, error: Exception | None) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        if self._future is not None:
            self._future.clear_callbacks()  # they refer to it, and it to them, with all that was sent
            self._future = None
        request.answered(page, error)
