"""Every clock keeps the promises of ports.Clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.core.clock_discipline import Look
from bucketsched.ports import Clock

ERROR_MS = 7


@pytest.fixture(params=["system", "manual"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock(ERROR_MS) if request.param == "system" else ManualClock(error_ms=ERROR_MS)


async def passing(clock: Clock) -> Callable[[], None]:
    """Keeps a manual clock going, 1 ms a turn of the loop."""
    if not isinstance(clock, ManualClock):
        return lambda: None

    async def tick() -> None:
        while True:
            clock.advance_ms(1)
            await asyncio.sleep(0)

    task = asyncio.create_task(tick())
    return lambda: (task.cancel(), None)[1]


def test_the_bounds_enclose_now_by_the_error(clock: Clock) -> None:
    before = clock.now_ms()
    earliest, latest = clock.earliest_ms(), clock.latest_ms()
    after = clock.now_ms()
    assert before - ERROR_MS <= earliest <= after - ERROR_MS
    assert before + ERROR_MS <= latest <= after + ERROR_MS + 1


def test_time_is_given_in_milliseconds_since_1970(clock: Clock) -> None:
    assert isinstance(clock.now_ms(), int)
    assert 1_700_000_000_000 < clock.now_ms() < 10_000_000_000_000


async def test_a_sleep_takes_about_as_long_as_asked(clock: Clock) -> None:
    stop = await passing(clock)
    wall, start = clock.now_ms(), clock.monotonic()
    await asyncio.wait_for(clock.sleep(0.05), 10)
    stop()
    assert clock.monotonic() - start >= 0.05 - 0.005
    assert clock.now_ms() - wall >= 45


async def test_sleeps_end_in_the_order_of_their_wake_times(clock: Clock) -> None:
    woken: list[int] = []

    async def sleeper(ms: int) -> None:
        await clock.sleep(ms / 1000)
        woken.append(ms)

    stop = await passing(clock)
    await asyncio.wait_for(asyncio.gather(*(sleeper(ms) for ms in (90, 10, 50))), 10)
    stop()
    assert woken == [10, 50, 90]


async def test_a_sleep_can_be_cancelled(clock: Clock) -> None:
    task = asyncio.create_task(clock.sleep(3600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if isinstance(clock, ManualClock):
        assert clock.next_wake_ms() is None


async def test_sleeping_for_nothing_lets_others_run(clock: Clock) -> None:
    ran = asyncio.Event()
    asyncio.get_running_loop().call_soon(ran.set)
    await clock.sleep(0)
    assert ran.is_set()


def test_the_system_clock_rounds_its_bounds_away_from_now() -> None:
    clock = SystemClock(2, look=lambda: Look(5, 1_000_000_000_000_000_001), boot_ns=lambda: 5)
    assert (clock.earliest_ms(), clock.now_ms(), clock.latest_ms()) == (999_999_999_998, 10**12, 10**12 + 3)


async def test_a_manual_clock_stands_until_it_is_advanced() -> None:
    clock = ManualClock(now_ms=5_000)
    task = asyncio.create_task(clock.sleep(0.1))
    await asyncio.sleep(0.01)
    assert clock.next_wake_ms() == 100
    clock.advance_ms(99)
    await asyncio.sleep(0.01)
    assert not task.done()
    clock.advance_ms(1)
    await asyncio.wait_for(task, 5)
    assert clock.now_ms() == 5_100


async def test_stepping_the_wall_time_wakes_nobody() -> None:
    clock = ManualClock(now_ms=5_000)
    task = asyncio.create_task(clock.sleep(0.1))
    await asyncio.sleep(0)
    clock.step_ms(-4_000)
    await asyncio.sleep(0.01)
    assert (clock.now_ms(), clock.monotonic(), task.done()) == (1_000, 0.0, False)
    clock.advance_ms(100)
    await asyncio.wait_for(task, 5)
