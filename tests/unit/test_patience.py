"""A start waits for servers that boot, says so now and then, and not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.app.patience import Patience
from bucketsched.core.errors import ConfigError, Unavailable


class Booting:
    """A server that answers from some time on."""

    def __init__(self, clock: ManualClock, after_s: float) -> None:
        self._clock, self._at, self.asked = clock, clock.monotonic() + after_s, 0

    async def answer(self) -> str:
        self.asked += 1
        if self._clock.monotonic() < self._at:
            raise Unavailable("it boots")
        return "here"


async def waited(clock: ManualClock, task: asyncio.Task[str], until: Callable[[], bool]) -> None:
    while not until():
        clock.advance_ms(100)
        for _ in range(10):
            await asyncio.sleep(0)
        assert clock.monotonic() < 1_000_000


async def test_it_waits_and_says_so_now_and_then() -> None:
    clock = ManualClock()
    server, patience = Booting(clock, 20), Patience(clock, 60)
    with capture_logs() as logs:
        task = asyncio.create_task(patience.wait(server.answer))
        await waited(clock, task, task.done)
    assert await task == "here"
    assert 20 <= server.asked <= 23
    assert [log["error"] for log in logs] == ["it boots"] * 4


async def test_all_waits_of_a_start_are_bounded_together() -> None:
    clock, began = ManualClock(), ManualClock().monotonic()
    patience = Patience(clock, 30)
    first = asyncio.create_task(patience.wait(Booting(clock, 20).answer))
    await waited(clock, first, first.done)
    second = asyncio.create_task(patience.wait(Booting(clock, 3_600).answer))
    await waited(clock, second, second.done)
    assert isinstance(second.exception(), Unavailable)
    assert 30 <= clock.monotonic() - began < 32


async def test_what_is_wrong_ends_it_at_once() -> None:
    async def wrong() -> str:
        raise ConfigError("no such keyspace")

    with pytest.raises(ConfigError):
        await Patience(ManualClock(), 60).wait(wrong)
    with capture_logs() as logs, pytest.raises(Unavailable):
        await Patience(clock := ManualClock(), 0).wait(Booting(clock, 1).answer)
    assert logs == [], "it is told by the line that the start ends with"
