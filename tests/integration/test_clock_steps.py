"""Real processes whose wall clock is set while they run: nothing early, nothing held up, and the wrong one lets go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.faketime import FakeClock
from tests.nodes import Cluster, Process, now_ms, until

from bucketsched import Client, CreatedTask, NewTask, Task, Worker

PATIENT = {"zookeeper__session_timeout_ms": 10_000}
"""Clocks are the matter here, not how soon a session ends on a busy machine."""
STEPS_S = [5, -5, 3_600, -3_600]
LATE_MS_MAX = 30_000
"""Far below an hour, far above what a busy machine takes."""
READING_MS = 10
"""How exactly the two clocks of a busy machine are read at one instant."""
DUE_IN_MS = range(500, 3_500, 250)
FAR_MS = 1_800_000
"""Half an hour: a step of an hour would make it due."""


@dataclass
class Echo:
    """A worker that writes down what it gets, and when it truly was."""

    got: dict[str, tuple[int, Task]] = field(default_factory=dict)


@asynccontextmanager
async def echoing(client: Client) -> AsyncIterator[Echo]:
    echo, worker = Echo(), Worker(client, concurrency=1_000)

    @worker.default
    async def write_down(task: Task) -> None:
        echo.got.setdefault(task.id, (now_ms(), task))

    running = asyncio.create_task(worker.run(handle_signals=False))
    try:
        yield echo
    finally:
        worker.stop()
        await running


async def created(client: Client, due_ms: list[int]) -> list[CreatedTask]:
    tasks = [NewTask("t", b"x", due=datetime.fromtimestamp(ms / 1000, UTC)) for ms in due_ms]
    answers = await client.create_many(tasks)
    assert all(isinstance(answer, CreatedTask) for answer in answers), answers
    return [answer for answer in answers if isinstance(answer, CreatedTask)]


async def never_early_never_late(client: Client, clock: FakeClock, process: Process) -> None:
    """Before, during and after each step."""
    async with echoing(client) as echo:
        far = await created(client, [now_ms() + FAR_MS])
        for step_s in STEPS_S:
            for shift_s in (step_s, 0):
                start_ms = now_ms()
                near = await created(client, [start_ms + ms for ms in DUE_IN_MS])
                await asyncio.sleep(1)
                clock.shift(shift_s)
                near += await created(client, [now_ms() + ms for ms in DUE_IN_MS])
                await until(lambda near=near: all(task.id in echo.got for task in near), f"{shift_s} s: all came")
                for task in near:
                    at_ms, _ = echo.got[task.id]
                    late_ms = at_ms - round(task.due.timestamp() * 1000)
                    assert -READING_MS <= late_ms <= LATE_MS_MAX, (shift_s, late_ms)
        assert far[0].id not in echo.got
    seen = "the kernel's clock was stepped"
    await until(lambda: process.err().count(seen) == 2 * len(STEPS_S), "every step is seen")


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    return make_cluster(shards=16, ranges=8)


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[tuple[Process, FakeClock]]:
    clock = FakeClock(tmp_path)
    addresses = ["--grpc-address", "127.0.0.1:0", "--metrics-address", "127.0.0.1:0"]
    environment = clock.environment | {"BUCKETSCHED_LOG__FORMAT": "json"}
    process = Process("dev", ["dev", "--output", "json", *addresses], tmp_path, environment)
    yield process, clock
    process.end()
    process.show()


async def test_embedded_steps_neither_fire_early_nor_stall(dev: tuple[Process, FakeClock]) -> None:
    process, clock = dev
    async with Client(await process.ready()) as client:
        await never_early_never_late(client, clock, process)


@pytest.mark.stack
async def test_steps_in_a_cluster_neither_fire_early_nor_stall(cluster: Cluster) -> None:
    clock = FakeClock(cluster.folder)
    process = cluster.start("one", environment=clock.environment, **PATIENT)
    async with Client(await process.ready()) as client:
        await never_early_never_late(client, clock, process)
    says = process.events("the kernel's clock is off")[-1]["says"]
    assert {"zookeeper"} < set(says), "a Kafka broker, too"


@pytest.mark.stack
@pytest.mark.alone
async def test_a_node_300_ms_off_is_told_so_and_one_2_s_off_lets_go(cluster: Cluster) -> None:
    right, clock = FakeClock(cluster.folder / "right"), FakeClock(cluster.folder / "wrong")
    one = cluster.start("one", environment=right.environment, **PATIENT)
    two = cluster.start("two", environment=clock.environment, **PATIENT)
    await asyncio.gather(one.ready(), two.ready())
    await cluster.settled(one, two)

    clock.shift(0.3)
    await until(lambda: two.events("the kernel's clock is off"), "it is told so")
    told = two.events("the kernel's clock is off")[-1]
    assert 200 < told["off_ms"] < 310
    assert "zookeeper" in told["says"]

    clock.shift(2)
    await until(lambda: two.events("giving the ranges up"), "it lets go")
    await cluster.settled(one)
    assert not one.events("the kernel's clock is off")
    assert not one.events("giving the ranges up")

    clock.shift(0)
    await cluster.settled(one, two)


@pytest.mark.stack
async def test_a_node_that_starts_2_s_off_takes_nothing_but_serves(cluster: Cluster) -> None:
    clock = FakeClock(cluster.folder)
    clock.shift(-2)
    wrong = cluster.start("wrong", environment=clock.environment, **PATIENT)
    await wrong.ready()
    await until(lambda: wrong.events("no ranges are taken"), "it says so")
    right = cluster.start("right", **PATIENT)
    await right.ready()
    await cluster.settled(right)
    assert not wrong.events("range taken")
    clock.shift(0)
    await cluster.settled(right, wrong)
