"""The SDK's worker against a real server in this process."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from delivery_world import DeliveryWorld, quiet, until
from worker_server import WorkerServer

from bucketsched import Client, NoRetry, RetryAfter, Task, Worker
from bucketsched.client import worker as worker_module
from bucketsched.client.outcome import failure_of
from bucketsched.client.worker_link import REASON_LENGTH_MAX, WorkerLink
from bucketsched.core.execution import (
    ERROR_MESSAGE_CHARACTERS_MAX,
    ERROR_TRACE_CHARACTERS_MAX,
    RESULT_BYTES_MAX,
    AttemptEnd,
)
from bucketsched.errors import FailedPrecondition, InvalidArgument, NotFound
from bucketsched.stubs.v1 import worker_pb2


@pytest.fixture
def world() -> DeliveryWorld:
    return DeliveryWorld()


@pytest.fixture
async def server(world: DeliveryWorld) -> AsyncIterator[WorkerServer]:
    async with WorkerServer(world) as server:
        yield server


@asynccontextmanager
async def running(worker: Worker, stop: bool = True) -> AsyncIterator[asyncio.Task[None]]:
    run = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield run
        if stop:
            worker.stop()
            await asyncio.wait_for(run, 10)
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


def recorder(worker: Worker, gate: asyncio.Event | None = None) -> list[Task]:
    """Registers a handler that writes down what it gets, and then waits for the gate."""
    seen: list[Task] = []

    @worker.default
    async def handle(task: Task) -> None:
        seen.append(task)
        if gate is not None:
            await gate.wait()

    return seen


async def test_handlers_run_by_type_and_what_they_finish_is_done(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs")
    seen: list[tuple[str, str]] = []

    @worker.task("greet")
    async def greet(task: Task) -> None:
        seen.append(("greet", task.text()))

    @worker.task("count")
    def count(task: Task) -> None:
        assert threading.current_thread() is not threading.main_thread()
        seen.append(("count", str(task.json()["n"])))

    @worker.default
    async def other(task: Task) -> None:
        seen.append(("other", task.type))

    async with running(worker):
        world.dispatch(task_type="greet", payload=b"hello")
        world.dispatch(task_type="count", payload=b'{"n": 3}')
        world.dispatch(task_type="unheard-of")
        await until(lambda: world.undelivered == 0)
    assert sorted(seen) == [("count", "3"), ("greet", "hello"), ("other", "unheard-of")]


async def test_a_task_carries_everything(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs", lease=30)
    seen = recorder(worker)
    async with running(worker):
        (task_id,) = world.dispatch(payload=b"\xff", due_ms=1_750_000_000_123)
        await until(lambda: seen)
    (task,) = seen
    assert (task.id, task.key) == (task_id, f"{task_id}/0/1")
    assert (task.due_ms, task.dispatched_ms) == (1_750_000_000_123, 1_750_000_000_126)
    assert task.due.isoformat() == "2025-06-15T15:06:40.123000+00:00"
    assert (task.namespace, task.queue, task.metadata, task.epoch) == ("default", "jobs", {"k": "v"}, 7)
    assert 25 < task.lease_expires.timestamp() - time.time() < 31
    with pytest.raises(UnicodeDecodeError):
        task.text()


async def test_a_handler_that_raises_has_failed(
    world: DeliveryWorld, server: WorkerServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(server.address, "jobs")

    @worker.task("plain")
    async def plain(task: Task) -> None:
        raise RuntimeError("not yet")

    @worker.task("final")
    def final(task: Task) -> None:
        raise NoRetry("no such customer") from KeyError("customer")

    @worker.task("later")
    async def later(task: Task) -> None:
        raise RetryAfter(2.5)

    async with running(worker):
        for kind in ("plain", "final", "later"):
            world.dispatch(task_type=kind)
        await until(lambda: world.undelivered == 0)
    told = {report.attempt.error_type: report for report in server.outcomes.reports}
    assert {report.attempt.end for report in told.values()} == {AttemptEnd.FAILED}
    assert {name: (r.final, r.pause_ms_least) for name, r in told.items()} == {
        "RuntimeError": (False, 0), "KeyError": (True, 0), "RetryAfter": (False, 2_500),
    }  # fmt: skip
    failure = told["RuntimeError"].attempt
    assert failure.error_message == "not yet"
    assert failure.error_trace.startswith("Traceback")
    assert failure.error_trace.endswith("RuntimeError: not yet\n")
    assert (failure.worker, failure.started_ms > 0) == (worker.worker_id, True)
    assert told["KeyError"].attempt.error_message == "'customer'"
    assert caplog.text.count("the handler failed") == 3


@pytest.mark.parametrize(
    ("returned", "kept"),
    [(None, b""), (b"\x00", b"\x00"), ("\u00e4", b"\xc3\xa4"), ({"a": [1]}, b'{"a":[1]}'), (object(), b""),
     (b"x" * (RESULT_BYTES_MAX + 1), b"")],
)  # fmt: skip
async def test_what_a_handler_returns_is_the_result(
    world: DeliveryWorld, server: WorkerServer, caplog: pytest.LogCaptureFixture, returned: object, kept: bytes
) -> None:
    """What can't be kept is no reason to do the task again."""
    worker = Worker(server.address, "jobs")

    @worker.default
    def handle(task: Task) -> object:
        return returned

    async with running(worker):
        world.dispatch()
        await until(lambda: world.undelivered == 0)
    (report,) = server.outcomes.reports
    assert (report.attempt.end, report.attempt.result) == (AttemptEnd.SUCCEEDED, kept)
    assert ("its result is not kept" in caplog.text) == (returned is not None and not kept)


async def test_a_handler_that_takes_too_long_has_failed(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs", timeout=0.05)

    @worker.default
    async def handle(task: Task) -> None:
        await asyncio.sleep(60)

    async with running(worker):
        world.dispatch()
        await until(lambda: world.undelivered == 0)
    assert [report.attempt.error_type for report in server.outcomes.reports] == ["TimeoutError"]


async def test_the_lease_of_what_is_at_work_is_extended(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs", lease=1)
    go_on = asyncio.Event()

    @worker.default
    async def handle(task: Task) -> None:
        await go_on.wait()

    async with running(worker):
        world.dispatch()
        await until(lambda: server.outcomes.begun)
        await asyncio.sleep(1.5)  # it is by the lapse of time that an attempt would time out
        assert not server.outcomes.reports
        go_on.set()
        await until(lambda: world.undelivered == 0)
    assert [report.attempt.end for report in server.outcomes.reports] == [AttemptEnd.SUCCEEDED]


async def test_a_reason_that_is_no_utf_8_is_sent_all_the_same() -> None:
    link = WorkerLink("127.0.0.1:1", worker_pb2.WorkerHello(), lambda *_: None, lambda: None)
    link.nack(1, "not yet \ud800" + "x" * 10_000, 0)
    (said,) = link._said
    assert said.nack.reason.startswith("not yet ?x")
    assert len(said.nack.reason) == REASON_LENGTH_MAX


async def test_a_type_without_a_handler_waits_for_a_worker_that_has_one(
    world: DeliveryWorld, server: WorkerServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_module, "UNKNOWN_TYPE_DELAY_S", 0.05)
    worker = Worker(server.address, "jobs")
    done: list[str] = []

    @worker.task("known")
    async def known(task: Task) -> None:
        done.append(task.id)

    async with running(worker):
        world.dispatch(task_type="unknown")
        (task_id,) = world.dispatch(task_type="known")
        await until(lambda: done == [task_id])
        await until(lambda: "no handler for tasks of type 'unknown'" in caplog.text)
        other = Worker(server.address, "jobs")
        seen = recorder(other)
        async with running(other):
            await until(lambda: seen)
    assert world.undelivered == 0


async def test_no_more_than_concurrency_run_at_once(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs", concurrency=3)
    active, most = 0, 0

    @worker.default
    async def handle(task: Task) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.002)
        active -= 1

    async with running(worker):
        world.dispatch(40)
        await until(lambda: world.undelivered == 0)
    assert most == 3


async def test_an_attempt_never_runs_twice_at_a_time(world: DeliveryWorld, server: WorkerServer) -> None:
    """Also when it is offered again while it runs, as its stream broke: the new lease is taken over, and ended."""
    gate = asyncio.Event()
    worker = Worker(server.address, "jobs")
    seen = recorder(worker, gate)
    async with running(worker):
        world.dispatch()
        await until(lambda: seen)
        (attempt,) = worker._attempts.values()
        (feed,) = server.hub._feeds.values()
        feed.workers[0].end()
        await until(lambda: len(attempt.leases) > 1)
        gate.set()
        await until(lambda: world.undelivered == 0)
    assert len(seen) == 1


async def test_an_attempt_that_two_servers_offer_is_run_once_and_acknowledged_to_both(world: DeliveryWorld) -> None:
    gate = asyncio.Event()
    other_world = DeliveryWorld()
    async with WorkerServer(world) as first, WorkerServer(other_world) as second:
        first.addresses = [first.address, second.address]
        worker = Worker(first.address, "jobs")
        seen = recorder(worker, gate)
        async with running(worker):
            world.dispatch()
            other_world.dispatch()  # the same task
            await until(lambda: [len(attempt.leases) for attempt in worker._attempts.values()] == [2])
            gate.set()
            await until(lambda: (world.undelivered, other_world.undelivered) == (0, 0))
    assert len(seen) == 1


async def test_more_offers_than_places_wait_for_one(world: DeliveryWorld) -> None:
    """Every server offers at least one; the worker still keeps to its concurrency."""
    gate = asyncio.Event()
    other_world = DeliveryWorld(first=1_000)
    async with WorkerServer(world) as first, WorkerServer(other_world) as second:
        first.addresses = [first.address, second.address]
        worker = Worker(first.address, "jobs", concurrency=1)
        seen = recorder(worker, gate)
        async with running(worker):
            world.dispatch()
            other_world.dispatch()
            await until(lambda: len(worker._attempts) == 2)
            await quiet()
            assert len(seen) == 1
            gate.set()
            await until(lambda: (world.undelivered, other_world.undelivered) == (0, 0))
    assert len(seen) == 2


async def test_what_was_done_is_acknowledged_again_and_not_run_again(
    world: DeliveryWorld, server: WorkerServer
) -> None:
    worker = Worker(server.address, "jobs")
    seen = recorder(worker)
    message = world.message()
    async with running(worker):
        world.commit(message)
        await until(lambda: world.undelivered == 0)
        world.commit(message)  # as after an ack that was lost
        await until(lambda: world.undelivered == 0)
    assert len(seen) == 1


async def test_stopping_finishes_what_runs_and_leaves_the_rest(world: DeliveryWorld, server: WorkerServer) -> None:
    gate = asyncio.Event()
    worker = Worker(server.address, "jobs", concurrency=2)
    seen = recorder(worker, gate)
    async with running(worker, stop=False) as run:
        world.dispatch(5)
        await until(lambda: len(seen) == 2)
        worker.stop()
        await asyncio.sleep(0.05)
        assert not run.done()
        gate.set()
        await asyncio.wait_for(run, 10)
    assert len(seen) == 2
    await until(lambda: world.undelivered == 3)


async def test_stopping_does_not_wait_longer_than_the_grace(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs", grace=0.05)
    seen = recorder(worker, asyncio.Event())
    async with running(worker):
        world.dispatch()
        await until(lambda: seen)
    other = Worker(server.address, "jobs")
    again = recorder(other)
    async with running(other):
        await until(lambda: again)  # given back, long before its lease is over
    assert again[0].id == seen[0].id


async def test_a_second_stop_does_not_wait_at_all(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs")
    seen = recorder(worker, asyncio.Event())
    async with running(worker):
        world.dispatch()
        await until(lambda: seen)
        worker.stop()
        await asyncio.sleep(0.02)
    assert world.undelivered == 1


async def test_sigterm_stops_it_in_order(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs")
    seen = recorder(worker)
    run = asyncio.create_task(worker.run())
    world.dispatch()
    await until(lambda: seen)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(run, 10)
    assert world.undelivered == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_it_comes_back_after_the_server_was_away(world: DeliveryWorld) -> None:
    async with WorkerServer(world) as server:
        worker = Worker(server.address, "jobs")
        seen = recorder(worker)
        run = asyncio.create_task(worker.run(handle_signals=False))
        world.dispatch()
        await until(lambda: world.undelivered == 0)
        await server.stop()
        world.dispatch()
        async with WorkerServer(world, server.address):
            await until(lambda: world.undelivered == 0, 20)
            worker.stop()
            await asyncio.wait_for(run, 10)
    assert len(seen) == 2


async def test_an_ack_survives_the_loss_of_its_stream(world: DeliveryWorld, server: WorkerServer) -> None:
    gate = asyncio.Event()
    worker = Worker(server.address, "jobs", concurrency=1)
    seen = recorder(worker, gate)
    async with running(worker):
        world.dispatch()
        await until(lambda: seen)
        (attachment,) = next(iter(server.hub._feeds.values())).workers
        attachment.detach()  # the server ends the stream, as if the connection had been lost
        await until(lambda: not any(link.attached.is_set() for link in worker._links.values()))
        gate.set()
        await until(lambda: world.undelivered == 0)
    assert len(seen) == 1


async def test_it_attaches_to_every_server_and_follows_changes(world: DeliveryWorld) -> None:
    other_world = DeliveryWorld(first=1_000)
    async with WorkerServer(world) as first, WorkerServer(other_world) as second:
        first.addresses = [first.address, second.address]
        worker = Worker(first.address, "jobs", concurrency=10)
        seen = recorder(worker)
        async with running(worker):
            world.dispatch(3)
            other_world.dispatch(3)
            await until(lambda: (world.undelivered, other_world.undelivered) == (0, 0))
            (attachment,) = next(iter(second.hub._feeds.values())).workers
            assert attachment.max_in_flight == 5
            first.addresses = [first.address]
            worker._refresh.set()
            await until(lambda: not next(iter(second.hub._feeds.values())).workers if second.hub._feeds else True)
            (attachment,) = next(iter(first.hub._feeds.values())).workers
            await until(lambda: attachment.max_in_flight == 10)
    assert len(seen) == 6


async def test_what_came_from_a_server_that_is_listed_no_more_is_acknowledged_there(world: DeliveryWorld) -> None:
    other_world = DeliveryWorld(first=1_000)
    gate = asyncio.Event()
    async with WorkerServer(world) as first, WorkerServer(other_world) as second:
        first.addresses = [first.address, second.address]
        worker = Worker(first.address, "jobs")
        seen = recorder(worker, gate)
        async with running(worker):
            other_world.dispatch()
            await until(lambda: seen)
            first.addresses = [first.address]
            worker._refresh.set()
            (attachment,) = next(iter(second.hub._feeds.values())).workers
            await until(lambda: attachment.max_in_flight == 0)
            other_world.dispatch()  # it takes nothing new from there
            gate.set()
            await until(lambda: other_world.undelivered == 1)
            await until(lambda: len(worker._link_runs) == 1)
    assert len(seen) == 1


async def test_a_queue_that_has_no_workers_is_refused(server: WorkerServer) -> None:
    for queue, error in (("nowhere", NotFound), ("events", FailedPrecondition)):
        worker = Worker(server.address, queue)
        recorder(worker)
        with pytest.raises(error) as caught:
            await asyncio.wait_for(worker.run(handle_signals=False), 10)
        assert caught.value.field == "queue"  # type: ignore[attr-defined]


async def test_it_waits_for_a_server_that_is_not_there_yet(world: DeliveryWorld) -> None:
    async with WorkerServer(world) as server:
        address = server.address
    worker = Worker(address, "jobs")
    recorder(worker)
    async with running(worker):
        await asyncio.sleep(0.1)
        async with WorkerServer(world, address):
            await asyncio.wait_for(worker.attached(), 20)
            world.dispatch()
            await until(lambda: world.undelivered == 0)


async def test_cancelling_run_leaves_nothing_behind(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs")
    seen = recorder(worker, asyncio.Event())
    before = asyncio.all_tasks()
    run = asyncio.create_task(worker.run(handle_signals=False))
    world.dispatch()
    await until(lambda: seen)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    ours = lambda: {task for task in asyncio.all_tasks() - before if "bucketsched/client" in str(task)}  # noqa: E731
    await until(lambda: not ours())


async def test_a_given_client_is_used_and_stays_open(world: DeliveryWorld, server: WorkerServer) -> None:
    async with Client(server.address) as client:
        worker = Worker(client, "jobs")
        recorder(worker)
        async with running(worker):
            world.dispatch()
            await until(lambda: world.undelivered == 0)
        assert await client.worker_addresses("jobs") == [server.address]


async def test_threads_see_the_context_of_the_worker(world: DeliveryWorld, server: WorkerServer) -> None:
    tenant = contextvars.ContextVar("tenant", default="")
    tenant.set("acme")
    worker = Worker(server.address, "jobs")
    seen: list[str] = []

    @worker.default
    def handle(task: Task) -> None:
        seen.append(tenant.get())

    async with running(worker):
        world.dispatch()
        await until(lambda: seen == ["acme"])


class CallableHandler:
    """A handler with state."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, task: Task) -> None:
        self.seen.append(task.id)


async def test_objects_and_lambdas_can_be_handlers(world: DeliveryWorld, server: WorkerServer) -> None:
    worker = Worker(server.address, "jobs")
    handler = CallableHandler()
    worker.task("a")(handler)
    worker.task("b")(lambda task: handler(task))
    async with running(worker):
        world.dispatch(task_type="a")
        world.dispatch(task_type="b")
        await until(lambda: world.undelivered == 0)
    assert len(handler.seen) == 2


def test_handlers_are_registered_once() -> None:
    worker = Worker()
    recorder(worker)
    with pytest.raises(InvalidArgument):
        recorder(worker)
    worker.task("a")(print)
    with pytest.raises(InvalidArgument):
        worker.task("a")(print)
    with pytest.raises(InvalidArgument):
        worker.task("b")("nothing to call")  # type: ignore[type-var]


async def test_a_worker_without_handlers_does_not_start() -> None:
    with pytest.raises(FailedPrecondition):
        await Worker().run()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("concurrency", 0), ("concurrency", 10_001), ("lease", 0.5), ("lease", 43_201), ("lease", float("nan"))],
)
def test_settings_are_checked(setting: str, value: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Worker(**{setting: value})
    assert caught.value.field == setting


def test_a_worker_is_of_its_clients_namespace() -> None:
    with pytest.raises(InvalidArgument):
        Worker(Client(namespace="a"), namespace="b")


def test_what_no_message_can_hold_is_told_all_the_same() -> None:
    said = failure_of(RuntimeError("not \ud800 yet" + "x" * 10_000), 7)
    assert said.error_message.startswith("not ? yetx")
    assert len(said.error_message) == ERROR_MESSAGE_CHARACTERS_MAX
    assert len(said.error_trace) == ERROR_TRACE_CHARACTERS_MAX
