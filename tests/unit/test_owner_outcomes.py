"""How the ends of attempts are told to owners: in batches, until they answer, and nothing waits for the slowest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import pytest
from delivery_world import NAMESPACE_ID, quiet, until

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryTaskStore
from bucketsched.core import task_id as ids
from bucketsched.core.errors import Unavailable
from bucketsched.core.execution import Attempt, AttemptEnd, AttemptReport, EndResult
from bucketsched.delivery.outcomes import OutcomesLimits, OwnerOutcomes

LIMITS = OutcomesLimits(reports_per_call_max=10, calls_in_flight_max=2, begun_max=3)


class FakeOwners:
    """Answers as a test says; where `gate` is set, not before it is over."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.answers: list[EndResult | Exception | None] = []
        self.gate: asyncio.Event | None = None

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        self.calls.append(len(reports))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else EndResult.TAKEN
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(reports)


class World:
    def __init__(self) -> None:
        self.owners, self.store, self.clock = FakeOwners(), MemoryTaskStore(), ManualClock()
        self.outcomes = OwnerOutcomes(self.owners, self.store, self.clock, LIMITS)
        self.told: list[EndResult] = []
        self._count = 0

    def attempt(self, end: AttemptEnd | None = AttemptEnd.SUCCEEDED, **said: str) -> Attempt:
        self._count += 1
        task_id = ids.mint(self.clock.now_ms(), 0, self._count)
        return Attempt(NAMESPACE_ID, task_id, 0, 1, self.clock.now_ms(), self.clock.now_ms(), end, "w", **said)

    def end(self, count: int = 1, end: AttemptEnd = AttemptEnd.SUCCEEDED, **said: str) -> None:
        for _ in range(count):
            self.outcomes.ended(AttemptReport(self.attempt(end, **said), self.clock.now_ms()), self.told.append)

    async def later(self, ms: int, step_ms: int = 50) -> None:
        for _ in range(0, ms, step_ms):
            await quiet(20)
            self.clock.advance_ms(step_ms)
        await quiet(20)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    running = asyncio.create_task(world.outcomes.run())
    yield world
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_what_ends_together_is_told_together_in_bounded_calls(world: World) -> None:
    world.owners.gate = asyncio.Event()
    world.end(45)
    await quiet()
    assert world.owners.calls == [10, 10]
    assert not world.told
    world.owners.gate.set()
    await until(lambda: len(world.told) == 45)
    assert world.owners.calls == [10, 10, 10, 10, 5]
    assert (set(world.told), world.outcomes.waiting) == ({EndResult.TAKEN}, 0)


async def test_what_is_not_answered_is_told_again_and_holds_up_no_other(world: World) -> None:
    world.owners.answers = [None, RuntimeError("a bug"), Unavailable("away")]
    world.end()
    await quiet()
    world.owners.answers.insert(0, EndResult.TAKEN)
    world.end()
    await until(lambda: len(world.told) == 1)
    await world.later(5_000)
    assert len(world.told) == 2
    assert len(world.owners.calls) == 5


@pytest.mark.parametrize("answer", [EndResult.ALREADY_ENDED, EndResult.NOT_FOUND])
async def test_what_changes_nothing_is_not_counted(
    world: World, answer: EndResult, caplog: pytest.LogCaptureFixture
) -> None:
    world.owners.answers = [answer]
    world.end()
    await until(lambda: world.told == [answer])
    assert not world.outcomes.counts
    assert answer.value in caplog.text


async def test_failures_are_logged_and_counted_in_the_same_moment(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        world.end(2)
        world.end(1, AttemptEnd.FAILED, error_type="ValueError", error_message="no such customer")
        await until(lambda: len(world.told) == 3)
    assert world.outcomes.counts == {AttemptEnd.SUCCEEDED: 2, AttemptEnd.FAILED: 1}
    (record,) = caplog.records
    assert record.message.endswith("attempt 1: ValueError: no such customer")
    said = vars(record)
    assert (said["end"], said["worker"], said["error_type"]) == ("FAILED", "w", "ValueError")


async def test_only_what_goes_on_for_a_while_is_noted_as_at_work(world: World) -> None:
    quick, slow = world.attempt(None), world.attempt(None)
    world.outcomes.began(quick)
    world.outcomes.began(slow)
    world.outcomes.ended(AttemptReport(quick, 0), world.told.append)
    await world.later(1_200)
    assert await world.store.attempts(NAMESPACE_ID, slow.task_id) == [slow]
    assert await world.store.attempts(NAMESPACE_ID, quick.task_id) == []


async def test_what_is_noted_is_bounded_and_may_get_lost(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.store.fail_next("record_attempts", Unavailable("away"))
    for _ in range(2):
        begun = [world.attempt(None) for _ in range(5)]
        for attempt in begun:
            world.outcomes.began(attempt)
        await world.later(1_200)
    assert [len(await world.store.attempts(NAMESPACE_ID, attempt.task_id)) for attempt in begun] == [1, 1, 1, 0, 0]
    assert "not noted" in caplog.text
