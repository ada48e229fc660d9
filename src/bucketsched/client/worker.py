"""The worker: runs handlers for the tasks of one queue."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import signal
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from google.protobuf.duration_pb2 import Duration

from ..core.catalog import DEFAULT_QUEUE
from ..core.errors import FailedPrecondition, InvalidArgument, Unavailable
from ..stubs.v1 import worker_pb2
from .client import DEFAULT_TARGET, Client
from .outcome import ResultTooLarge, encode_result, failure_of
from .task import Task
from .worker_link import WorkerLink

log = logging.getLogger(__name__)

Handler = Callable[[Task], Any]
H = TypeVar("H", bound=Handler)

CONCURRENCY_MAX = 10_000
LEASE_S_MIN, LEASE_S_MAX = 1.0, 12 * 3600.0
THREADS_DEFAULT_MAX = 32
REFRESH_S = 10.0
"""How often the server is asked where to attach."""
REFRESH_S_MIN = 0.5
"""The same after a disconnect."""
FIND_S_MAX = 5.0
DONE_REMEMBERED_MAX = 10_000
"""Attempts known to be done: offered again because their ack was lost, they are acknowledged and not run."""
LEASES_REMEMBERED_MAX = 8
UNKNOWN_TYPE_DELAY_S = 5.0
LEAVE_S_MAX = 5.0
EXTEND_AFTER = 1 / 3
"""The part of a lease after which it is extended."""


class _Key(NamedTuple):
    task_id: str
    generation: int
    attempt: int


class _Handling(NamedTuple):
    function: Handler
    asynchronous: bool


@dataclass(slots=True, eq=False)
class _Attempt:
    """An attempt at work here, or waiting for a free place, with all leases on it that this worker was given."""

    key: _Key
    offer: worker_pb2.Offer
    leases: list[tuple[WorkerLink, int]] = field(default_factory=list)
    run: asyncio.Task[None] | None = None


class Worker:
    """Takes the tasks of one queue and runs a handler for each.

        worker = Worker("127.0.0.1:7400", queue="mails")

        @worker.task("send-mail")
        async def send_mail(task: Task) -> None: ...

        await worker.run()

    A handler that returns has succeeded, with what it returns as the result (bytes, text, or what JSON can say). One
    that raises has failed: the retry policy of the task or its queue says whether and when there is another attempt;
    `NoRetry` and `RetryAfter` are exceptions that have a say in it. Handlers may be coroutine functions, or plain
    functions, which run in up to `threads` threads. One attempt never runs twice at a time in this worker, even if its
    lease runs out. Delivery is at least once: an attempt may come again after a crash or a lost connection (`Task.key`
    and `Task.once` tell).

    `lease`: seconds after which the server takes an attempt of a worker that is stuck or gone for timed out; while a
    handler runs its lease is extended. `timeout`: seconds after which a handler has failed; None: never. A plain
    function goes on all the same, and keeps its place until it ends.

    `concurrency`: how many attempts are at work at once. `grace`: how long `run` waits for them when it is stopped, by
    `stop` or SIGTERM/SIGINT; what has not ended then is offered to other workers.
    """

    def __init__(
        self,
        client: Client | str = DEFAULT_TARGET,
        queue: str = DEFAULT_QUEUE,
        *,
        namespace: str | None = None,
        concurrency: int = 100,
        threads: int | None = None,
        lease: float = 60.0,
        timeout: float | None = None,
        grace: float = 30.0,
        worker_id: str | None = None,
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidArgument("concurrency", f"must be 1 to {CONCURRENCY_MAX}, is {concurrency}")
        if not LEASE_S_MIN <= lease <= LEASE_S_MAX:
            raise InvalidArgument("lease", f"must be {LEASE_S_MIN:g} s to {LEASE_S_MAX:g} s, is {lease}")
        if timeout is not None and not timeout > 0:
            raise InvalidArgument("timeout", f"must be more than 0 s, is {timeout}")
        if isinstance(client, Client) and namespace not in (None, client.namespace):
            raise InvalidArgument("namespace", f"must be the client's, {client.namespace!r}")
        self._own_client = not isinstance(client, Client)
        self._client = client if isinstance(client, Client) else Client(client, *([namespace] if namespace else []))
        self.queue = queue
        self.worker_id = worker_id or f"{socket.gethostname()}-{os.getpid()}"
        self._concurrency = concurrency
        self._lease_s = lease
        self._grace_s = grace
        self._timeout_s = timeout
        self._threads = threads or min(concurrency, THREADS_DEFAULT_MAX)
        self._executor: ThreadPoolExecutor | None = None
        self._handlers: dict[str, _Handling] = {}
        self._default: _Handling | None = None
        self._links: dict[str, WorkerLink] = {}
        self._link_runs: dict[WorkerLink, asyncio.Task[None]] = {}
        self._attempts: dict[_Key, _Attempt] = {}
        self._backlog: deque[_Attempt] = deque()
        self._active = 0
        self._done: OrderedDict[_Key, None] = OrderedDict()
        self._unknown_types: set[str] = set()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle = asyncio.Event()
        self._refresh = asyncio.Event()
        self._linked = asyncio.Event()
        self._failure: BaseException | None = None
        self._ran = False

    # ------------------------------------------------------------ handlers

    def task(self, type: str) -> Callable[[H], H]:
        """Decorator: the function handles tasks of this type."""

        def register(handler: H) -> H:
            if type in self._handlers:
                raise InvalidArgument("type", f"{type!r} has a handler already")
            self._handlers[type] = _handling(handler)
            return handler

        return register

    def default(self, handler: H) -> H:
        """Decorator: the function handles tasks of all other types."""
        if self._default is not None:
            raise InvalidArgument("default", "there is a default handler already")
        self._default = _handling(handler)
        return handler

    # ------------------------------------------------------------ running

    async def run(self, *, handle_signals: bool = True) -> None:
        """Works until `stop`. Waits and reconnects while servers are away.

        Raises NotFound where the queue does not exist, FailedPrecondition where its tasks are not for workers.
        """
        if not self._handlers and self._default is None:
            raise FailedPrecondition("task", "the worker has no handlers")
        if self._ran:
            raise FailedPrecondition("worker", "has run already; make a new one")
        self._ran = True
        finder = asyncio.create_task(self._find_servers())
        finder.add_done_callback(self._part_ended)
        extending = asyncio.create_task(self._extend_leases())
        extending.add_done_callback(self._part_ended)
        try:
            with self._signals(handle_signals):
                await self._stop.wait()
                await _cancel(finder)
                await self._finish()
        finally:
            await _cancel(extending)
            await self._shut_down(finder)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends `run` in order: no new tasks, those at work are finished. A second call doesn't wait for them."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def attached(self) -> None:
        """Returns once a stream to a server stands."""
        while not any(link.attached.is_set() for link in self._links.values()):
            if not self._links:
                self._linked.clear()
                await self._linked.wait()
                continue
            waits = [asyncio.create_task(link.attached.wait()) for link in self._links.values()]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=1)
            finally:
                await _cancel(*waits)

    def _part_ended(self, part: asyncio.Task[None]) -> None:
        """A part that fails stops the whole: the server refuses this worker, or there is a bug."""
        if not part.cancelled() and (failure := part.exception()) is not None:
            self._failure = self._failure or failure
            self._stop.set()

    @contextmanager
    def _signals(self, wanted: bool) -> Iterator[None]:
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _finish(self) -> None:
        """Waits for what is at work, then leaves in order."""
        for link in self._links.values():
            link.pause()
        for attempt in self._backlog:
            self._give_back(attempt, "the worker stops", 0)
            del self._attempts[attempt.key]
        self._backlog.clear()
        await self._wait_until_idle()
        for attempt in list(self._attempts.values()):
            if attempt.run is not None:
                attempt.run.cancel()
        await asyncio.gather(*(a.run for a in self._attempts.values() if a.run is not None), return_exceptions=True)
        for link in self._links.values():
            link.leave()
        if self._link_runs:
            await asyncio.wait(self._link_runs.values(), timeout=LEAVE_S_MAX)

    async def _wait_until_idle(self) -> None:
        self._idle.clear()
        if not self._active:
            return
        waits = [asyncio.create_task(self._idle.wait()), asyncio.create_task(self._hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(*waits)

    async def _shut_down(self, finder: asyncio.Task[None]) -> None:
        """Also where `run` is cancelled: nothing of it stays behind."""
        runs = [attempt.run for attempt in self._attempts.values() if attempt.run is not None]
        await _cancel(finder, *self._link_runs.values(), *runs)
        self._links.clear()
        self._link_runs.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
        if self._own_client:
            await self._client.close()

    # ------------------------------------------------------------ servers

    async def _find_servers(self) -> None:
        while True:
            self._refresh.clear()
            try:
                addresses = await self._client.worker_addresses(self.queue, timeout=FIND_S_MAX)
            except Unavailable as error:
                log.warning("worker: can't ask where to attach: %s", error)
            else:
                self._link_to(addresses)
            await self._wait_for_refresh()

    async def _wait_for_refresh(self) -> None:
        await asyncio.sleep(REFRESH_S_MIN)
        if not self._links:
            return
        try:
            await asyncio.wait_for(self._refresh.wait(), REFRESH_S - REFRESH_S_MIN)
        except TimeoutError:
            pass

    def _link_to(self, addresses: Sequence[str]) -> None:
        """Attaches to new addresses, leaves old ones, and shares the concurrency out between them."""
        if not addresses:
            log.warning("worker: no server delivers tasks now")
            return
        share = -(-self._concurrency // len(addresses))
        for gone in self._links.keys() - set(addresses):
            self._links.pop(gone).leave()
        for link in self._links.values():
            link.resize(share)
        for address in set(addresses) - self._links.keys():
            self._links[address] = link = WorkerLink(address, self._hello(share), self._take, self._refresh.set)
            self._link_runs[link] = run = asyncio.create_task(link.run())
            run.add_done_callback(lambda task, link=link: self._link_ended(link, task))  # type: ignore[misc]
        self._linked.set()

    def _link_ended(self, link: WorkerLink, run: asyncio.Task[None]) -> None:
        self._link_runs.pop(link, None)
        self._part_ended(run)

    def _hello(self, share: int) -> worker_pb2.WorkerHello:
        lease = Duration()
        lease.FromMilliseconds(int(self._lease_s * 1000))
        return worker_pb2.WorkerHello(
            namespace=self._client.namespace,
            queue=self.queue,
            worker_id=self.worker_id,
            max_in_flight=share,
            lease=lease,
        )

    # ------------------------------------------------------------ attempts

    def _take(self, link: WorkerLink, offers: Sequence[worker_pb2.Offer]) -> None:
        for offer in offers:
            key = _Key(offer.task_id, offer.generation, offer.attempt)
            known = self._attempts.get(key)
            if known is not None:
                known.leases.append((link, offer.lease_id))
                if len(known.leases) > LEASES_REMEMBERED_MAX:
                    oldest, lease_id = known.leases.pop(0)
                    oldest.forget(lease_id)
            elif key in self._done:
                link.ack(offer.lease_id)
            elif self._stop.is_set():
                link.nack(offer.lease_id, "the worker stops", 0)
            else:
                self._attempts[key] = attempt = _Attempt(key, offer, [(link, offer.lease_id)])
                self._backlog.append(attempt)
        self._start_some()

    def _start_some(self) -> None:
        while self._backlog and self._active < self._concurrency:
            attempt = self._backlog.popleft()
            self._active += 1
            attempt.run = asyncio.create_task(self._work(attempt))

    async def _work(self, attempt: _Attempt) -> None:
        """Runs the handler and says how it went."""
        try:
            await self._handle(attempt)
        finally:
            del self._attempts[attempt.key]
            self._active -= 1
            if not self._active:
                self._idle.set()
            if not self._stop.is_set():
                self._start_some()

    async def _handle(self, attempt: _Attempt) -> None:
        task = Task.from_offer(attempt.offer)
        handling = self._handlers.get(task.type) or self._default
        if handling is None:
            self._refuse_type(attempt, task.type)
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await self._call(handling, task)
        except asyncio.CancelledError:
            self._give_back(attempt, "the worker stopped before it was done", 0)
            if not self._stop.is_set():
                log.warning("task %s (%s) was cancelled", task.id, task.type)
        except Exception as error:
            log.exception("task %s (%s): the handler failed", task.id, task.type)
            for link, lease_id in attempt.leases:
                link.fail(failure_of(error, lease_id))
        else:
            self._acknowledge(attempt, _encoded(result, task))

    async def _call(self, handling: _Handling, task: Task) -> object:
        if handling.asynchronous:
            return await handling.function(task)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="bucketsched-worker")
        context = contextvars.copy_context()
        result = await asyncio.get_running_loop().run_in_executor(self._executor, context.run, handling.function, task)
        return await result if isinstance(result, Awaitable) else result

    async def _extend_leases(self) -> None:
        """What is at work, or waits for a place, is not to time out."""
        lease = Duration()
        lease.FromMilliseconds(int(self._lease_s * 1000))
        while True:
            await asyncio.sleep(self._lease_s * EXTEND_AFTER)
            open_: dict[WorkerLink, list[int]] = {}
            for attempt in self._attempts.values():
                link, lease_id = attempt.leases[-1]
                open_.setdefault(link, []).append(lease_id)
            for link, lease_ids in open_.items():
                link.extend(lease_ids, lease)

    def _acknowledge(self, attempt: _Attempt, result: bytes) -> None:
        self._done[attempt.key] = None
        if len(self._done) > DONE_REMEMBERED_MAX:
            self._done.popitem(last=False)
        for link, lease_id in attempt.leases:
            link.complete(lease_id, result) if result else link.ack(lease_id)

    def _give_back(self, attempt: _Attempt, reason: str, delay_s: float) -> None:
        for link, lease_id in attempt.leases:
            link.nack(lease_id, reason, delay_s)

    def _refuse_type(self, attempt: _Attempt, type_: str) -> None:
        if type_ not in self._unknown_types and len(self._unknown_types) < 1_000:
            self._unknown_types.add(type_)
            log.error("no handler for tasks of type %r; they are offered again later", type_)
        self._give_back(attempt, f"no handler for type {type_!r}", UNKNOWN_TYPE_DELAY_S)


def _handling(handler: Handler) -> _Handling:
    if not callable(handler):
        raise InvalidArgument("handler", "must be callable")
    call = getattr(handler, "__call__", None)  # noqa: B004  # an object whose __call__ is a coroutine function
    return _Handling(handler, inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call))


def _encoded(result: object, task: Task) -> bytes:
    """What can't be kept is no reason to do the task again."""
    try:
        return encode_result(result)
    except (ResultTooLarge, TypeError, ValueError) as error:
        log.error("task %s (%s): its result is not kept: %s", task.id, task.type, error)
        return b""


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
