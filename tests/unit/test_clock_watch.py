"""Who asks the witnesses, when, and what a poller does about the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from poller_world import Pollers, some_pollers
from structlog.testing import capture_logs

from bucketsched.adapters.system_clock import LOOK_NS, SystemClock
from bucketsched.app.clock_watch import CHECK_S, ClockWatch
from bucketsched.core.clock_discipline import NS_PER_MS, NS_PER_S, ClockLimits, Look
from bucketsched.core.clock_discipline import Testimony as Said
from bucketsched.core.clock_votes import Interval
from bucketsched.core.errors import Unavailable

TRUTH_NS = 1_700_000_000 * NS_PER_S


class Kernel:
    """Clocks that the test moves."""

    def __init__(self) -> None:
        self.boot, self.off_ns, self.looks = 5 * NS_PER_S, 0, 0

    def look(self) -> Look:
        self.looks += 1
        return Look(self.boot, self.boot + TRUTH_NS + self.off_ns)

    def boot_ns(self) -> int:
        return self.boot

    def clock(self) -> SystemClock:
        return SystemClock(limits=ClockLimits(2 * NS_PER_MS, alone=False), look=self.look, boot_ns=self.boot_ns)


class Witness:
    """Right, if it answers."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.answers, self.asked, self.closed = kernel, True, 0, False

    async def testify(self, boot_ns: Callable[[], int]) -> list[Said]:
        self.asked += 1
        if not self.answers:
            raise Unavailable("it is away")
        true_ns = boot_ns() + TRUTH_NS
        return [Said("w", boot_ns(), boot_ns(), Interval(true_ns, true_ns + NS_PER_MS))]

    async def close(self) -> None:
        self.closed = True


# ---------------------------------------------------------------- reading


def test_the_wall_clock_is_looked_at_once_a_second_however_often_the_time_is_read() -> None:
    kernel = Kernel()
    clock = kernel.clock()
    for _ in range(1_000):
        kernel.boot += LOOK_NS // 100
        assert clock.now_ms() == (kernel.boot + TRUTH_NS) // NS_PER_MS
        assert clock.earliest_ms() == clock.now_ms() - 2
    assert kernel.looks <= 1 + 10


def test_a_step_of_the_kernel_does_not_move_the_time_until_a_witness_confirms_it() -> None:
    kernel = Kernel()
    clock, before_ns = kernel.clock(), kernel.boot + TRUTH_NS
    kernel.off_ns = 3_600 * NS_PER_S
    kernel.boot += 2 * LOOK_NS
    with capture_logs() as logs:
        assert clock.now_ms() == (before_ns + 2 * LOOK_NS) // NS_PER_MS
        stepped_ns = kernel.boot + TRUTH_NS + kernel.off_ns
        clock.hear([Said("w", kernel.boot, kernel.boot, Interval(stepped_ns, stepped_ns))])
        assert clock.now_ms() == stepped_ns // NS_PER_MS
    assert [(log["event"], log["by_ms"]) for log in logs if "by_ms" in log] == [
        ("the kernel's clock was stepped", 3_600_000.0),
        ("the clock follows the kernel's: witnesses confirm it", 3_600_000.0),
    ]


# ---------------------------------------------------------------- asking


class Paced(SystemClock):
    """Sleeps by the test's clocks: time passes as fast as the loop turns."""

    kernel: Kernel

    def monotonic(self) -> float:
        return self.kernel.boot / NS_PER_S

    async def sleep(self, seconds: float) -> None:
        self.kernel.boot += round(seconds * NS_PER_S)
        await asyncio.sleep(0)


async def watched(kernel: Kernel, witnesses: list[Witness]) -> tuple[Paced, asyncio.Task[None]]:
    clock = Paced(limits=ClockLimits(alone=False), look=kernel.look, boot_ns=kernel.boot_ns)
    clock.kernel = kernel
    return clock, asyncio.create_task(ClockWatch(clock, witnesses).run())


async def turn(kernel: Kernel, seconds: float) -> None:
    until = kernel.boot + seconds * NS_PER_S
    for _ in iter(lambda: kernel.boot < until, False):
        await asyncio.sleep(0)


async def test_witnesses_are_asked_every_few_seconds_and_at_once_after_a_step() -> None:
    kernel = Kernel()
    witness = Witness(kernel)
    clock, task = await watched(kernel, [witness])
    await turn(kernel, 10 * CHECK_S)
    assert clock.objection() == ""
    assert 9 <= witness.asked <= 12
    asked = witness.asked
    kernel.off_ns = 3_600 * NS_PER_S
    await turn(kernel, 2)
    assert witness.asked > asked, "not in its turn"
    assert clock.discipline.kernel_off_ns > 3_500 * NS_PER_S
    assert clock.now_ms() == (kernel.boot + TRUTH_NS) // NS_PER_MS
    task.cancel()


async def test_a_witness_that_is_away_is_told_of_and_asked_again() -> None:
    kernel = Kernel()
    away, other = Witness(kernel), Witness(kernel)
    away.answers = False
    with capture_logs() as logs:
        clock, task = await watched(kernel, [away])
        await turn(kernel, 20)
        assert clock.objection() == "no witness has confirmed the clock yet"
        assert away.asked > 20, "nothing can begin without it"
        task.cancel()
        clock, task = await watched(kernel, [away, other])
        await turn(kernel, 2)
        assert clock.objection() == "", "one is enough"
        task.cancel()
    assert any(log["event"] == "a witness of the time can't be heard" and log["recurring"] for log in logs)


async def test_witnesses_are_let_go() -> None:
    kernel = Kernel()
    witnesses = [Witness(kernel), Witness(kernel)]
    await ClockWatch(kernel.clock(), witnesses).close()
    assert all(witness.closed for witness in witnesses)


# ---------------------------------------------------------------- what a poller does


@pytest.fixture
async def pollers() -> AsyncIterator[Pollers]:
    async with some_pollers() as made:
        yield made


async def test_a_poller_whose_clock_is_not_trusted_is_a_member_without_a_lane(pollers: Pollers) -> None:
    reason = "off"
    role = pollers.start("one", lambda: reason)
    await pollers.world.pass_ms(5_000)
    assert role.lane is None
    [member] = pollers.memberships[0].members()
    assert (member.member_id, member.lane) == ("one", -1)
    reason = ""
    await pollers.world.until(lambda: pollers.active(role) == 2)


async def test_a_poller_whose_clock_goes_wrong_gives_its_ranges_to_others(pollers: Pollers) -> None:
    world, reasons = pollers.world, {"one": "", "two": ""}
    one, two = (pollers.start(name, lambda name=name: reasons[name]) for name in reasons)
    await world.until(lambda: pollers.active(one) == pollers.active(two) == 1)
    row = world.row(3_000)
    await world.create(row)
    reasons["one"] = "off"
    await world.until(lambda: pollers.active(two) == 2)
    await world.until(lambda: one.lane is None)
    await world.until(lambda: row.ref in world.dispatched())
    reasons["one"] = ""
    await world.until(lambda: pollers.active(one) == pollers.active(two) == 1)
    world.check()


async def test_a_poller_that_is_alone_goes_on(pollers: Pollers) -> None:
    world, reason = pollers.world, ""
    role = pollers.start("one", lambda: reason)
    await world.until(lambda: pollers.active(role) == 2)
    reason = "off"
    await world.pass_ms(10_000)
    assert pollers.active(role) == 2


async def test_where_all_would_step_aside_one_stays(pollers: Pollers) -> None:
    world, reason = pollers.world, ""
    roles = [pollers.start(name, lambda: reason) for name in ("one", "two")]
    await world.until(lambda: all(pollers.active(role) == 1 for role in roles))
    reason = "off"
    await world.pass_ms(20_000)
    assert sorted(pollers.active(role) for role in roles) == [0, 2]


async def test_a_cluster_that_is_stopped_as_a_whole_waits_for_nobody(pollers: Pollers) -> None:
    world = pollers.world
    roles = [pollers.start(name) for name in ("one", "two")]
    await world.until(lambda: all(pollers.active(role) == 1 for role in roles))
    leaving = [asyncio.create_task(role.leave(60)) for role in roles]
    await world.until(lambda: all(task.done() for task in leaving), within_ms=1_000)
    assert sum(pollers.active(role) for role in roles) > 0, "what is left is released by the end of work"
