"""What users of other schedulers have met, tried here; `tests/cases/field_reports.jsonl` tells where each is."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from lane_world import NAMESPACE, Process, World
from service_world import NAMESPACE_ID, NOW_MS, ServiceWorld

from bucketsched.client.model import NewTask as Asked
from bucketsched.client.model import ServerInfo
from bucketsched.client.request import build
from bucketsched.config import LimitSettings
from bucketsched.core import task_id as ids
from bucketsched.core.durations import duration_ms, timestamp_ms
from bucketsched.core.errors import BucketschedError, InvalidArgument
from bucketsched.core.message import Message
from bucketsched.core.task import BUCKET_MS, Priority, RowRef, TaskState, fold
from bucketsched.core.validation import Limits, NewTask
from bucketsched.ports import CancelResult, CommitRefused
from bucketsched.service.tasks import Created

DAY_MS = 86_400_000
SECONDS_MAX = 315_576_000_000
"""What a protobuf Duration may hold."""


@pytest.fixture
async def service() -> AsyncIterator[ServiceWorld]:
    world = await ServiceWorld().prepare()
    yield world
    await world.tasks.close()


async def running(world: World, **limits: float) -> Process:
    process = await world.process(**limits)
    await world.pass_ms(100)
    return process


# ---------------------------------------------------------------- long waits


async def test_tasks_that_wait_longer_than_any_lease_come_once(world: World) -> None:
    """Three processes; leases, sessions and checkpoints come and go many times before anything is due."""
    processes = [await world.process(name, ranges=range(0)) for name in "abc"]
    await processes[0].lane.take(0)
    await processes[1].lane.take(1)
    rows = [world.row(60_000 + number * 5, number % 4) for number in range(200)]
    await world.create(*rows)
    for turn in range(5):
        await world.pass_ms(10_000, step_ms=100)
        loser, taker = processes[turn % 3], processes[(turn + 1) % 3]
        for range_id in list(loser.lane.active()):
            await loser.lane.give_up(range_id)
            await taker.lane.take(range_id)
    assert world.dispatched() == []
    await world.until(lambda: len(world.dispatched()) == len(rows))
    await world.pass_ms(5_000, step_ms=100)
    world.check()


async def test_far_tasks_take_no_memory_and_cost_nothing(world: World) -> None:
    process = await running(world)
    far = [world.row(30 * DAY_MS + number * 100, number % 4) for number in range(5_000)]
    await world.create(*far, hint=process)
    ranges = process.lane.dispatcher._ranges
    assert sum(owned.resident_rows for owned in ranges.values()) == 0
    assert all(len(owned._known) == 0 for owned in ranges.values())
    await process.crash()
    reads = world.store.calls["read_partition"]
    other = await world.process("other")
    await world.pass_ms(2_000)
    assert world.store.calls["read_partition"] - reads < 50, "a start reads the present, not what waits"
    near = [world.row(3_000 + number, number % 4) for number in range(100)]
    await world.create(*near, hint=other)
    await world.until(lambda: len(world.dispatched()) == len(near), 5_000)
    assert max(at_ms - RowRef.unpack(ref).due_ms for at_ms, ref in world.visible) < 200
    assert sum(owned.resident_rows for owned in other.lane.dispatcher._ranges.values()) == 0


async def test_with_a_far_task_only_it_idles(world: World) -> None:
    process = await running(world)
    await world.create(world.row(60 * DAY_MS), hint=process)
    await world.pass_ms(5_000, step_ms=100)
    calls, turns = sum(world.store.calls.values()), 0
    collect = process.lane.dispatcher._collect

    def counting() -> object:
        nonlocal turns
        turns += 1
        return collect()

    process.lane.dispatcher._collect = counting  # type: ignore[method-assign,assignment]
    await world.pass_ms(60_000, step_ms=250)
    assert turns <= 60, "it sleeps, and looks again now and then"
    assert sum(world.store.calls.values()) - calls < 400, "scans of the present, and nothing else"


@pytest.mark.parametrize("delay_ms", [2**31 - 1, 2**31, 25 * DAY_MS, 30 * DAY_MS, 400 * DAY_MS])
async def test_delays_beyond_32_bits_are_kept_to_the_millisecond(service: ServiceWorld, delay_ms: int) -> None:
    (created,) = await service.tasks.create_many([NewTask("t", delay_ms=delay_ms)])
    assert isinstance(created, Created)
    assert created.due_ms == NOW_MS + delay_ms
    stored = await service.tasks.get("default", ids.text(created.task_id))
    assert (stored.row.due_ms, stored.row.body.nominal_due_ms) == (NOW_MS + delay_ms, NOW_MS + delay_ms)


async def test_such_tasks_do_not_come_now(world: World) -> None:
    process = await running(world)
    rows = [world.row(delay) for delay in (2**31 - 1, 2**31, 25 * DAY_MS, 30 * DAY_MS)]
    await world.create(*rows, hint=process)
    await world.pass_ms(10_000, step_ms=100)
    assert world.dispatched() == []


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(2**63 - 1, 0), (-(2**63), 0), (SECONDS_MAX, 0), (SECONDS_MAX, 999_999_999), (10 * 366 * 86_400, 0), (0, -1)],
)
async def test_absurd_delays_are_refused(service: ServiceWorld, seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument):
        await refused(service, NewTask("t", delay_ms=duration_ms(seconds, nanos, "delay")))
    assert not service.store.calls["insert"]


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [
        (2**63 - 1, 0),
        (253_402_300_799, 999_999_999),  # the last instant of the year 9999
        (253_402_300_800, 0),  # and the one after it
        (-62_135_596_801, 0),
        (0, 1_000_000_000),
    ],
)
async def test_instants_that_are_none_or_too_far_are_refused(service: ServiceWorld, seconds: int, nanos: int) -> None:
    with pytest.raises(InvalidArgument):
        await refused(service, NewTask("t", due_ms=timestamp_ms(seconds, nanos, "due_time")))


async def refused(service: ServiceWorld, task: NewTask) -> None:
    """Raises the error that the create is answered."""
    (result,) = await service.tasks.create_many([task])
    if isinstance(result, Exception):
        raise result


async def test_the_second_after_32_bits_is_an_instant_like_any_other() -> None:
    world = ServiceWorld(limits=Limits(delay_ms_max=20 * 366 * DAY_MS))
    await world.prepare()
    due_ms = 2**31 * 1_000
    (created,) = await world.tasks.create_many([NewTask("t", due_ms=due_ms)])
    assert isinstance(created, Created)
    assert (await world.tasks.get("default", ids.text(created.task_id))).row.due_ms == due_ms


@pytest.mark.parametrize("delay", [1e300, math.nan, math.inf, -math.inf, -1.0, "1e5", timedelta.max, True])
def test_the_sdk_refuses_delays_that_are_none(delay: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        build(Asked("t", delay=delay), "default", "default", NOW_MS * 1_000_000, SERVER)  # type: ignore[arg-type]
    assert caught.value.field == "delay"


SERVER = ServerInfo("1", "embedded", 256, 64 * 1024, 1_000, 400 * DAY_MS)


@pytest.mark.parametrize(("limit_days", "fits", "fails"), [(30, 29, 31), (400, 399, 401), (24.5, 24, 25)])
async def test_the_longest_delay_is_what_was_set(limit_days: float, fits: int, fails: int) -> None:
    limits = Limits(delay_ms_max=int(LimitSettings(delay_days_max=limit_days).delay_days_max * DAY_MS))
    world = await ServiceWorld(limits=limits).prepare()
    (created,) = await world.tasks.create_many([NewTask("t", delay_ms=fits * DAY_MS)])
    assert isinstance(created, Created)
    with pytest.raises(InvalidArgument, match="must be at most") as caught:
        await refused(world, NewTask("t", delay_ms=fails * DAY_MS))
    assert f"{limit_days:g} days" in str(caught.value) or "588 h" in str(caught.value), caught.value
    (exactly,) = await world.tasks.create_many([NewTask("t", delay_ms=limits.delay_ms_max)])
    assert isinstance(exactly, Created)


# ---------------------------------------------------------------- the instant itself


async def test_boundaries_of_seconds_and_buckets_are_neither_early_nor_lost(world: World) -> None:
    """Also with a crash around the boundary: progress is saved after the data."""
    process = await running(world)
    now_ms = world.clock.now_ms()
    boundary = now_ms - now_ms % BUCKET_MS + BUCKET_MS
    second = now_ms - now_ms % 1_000 + 2_000
    dues = [base + part for base in (second, boundary - 1_000, boundary) for part in (0, 1, 499, 500, 999)]
    rows = [world.row(due - now_ms, number % 4) for number, due in enumerate(dues * 10)]
    await world.create(*rows, hint=process)
    await world.pass_ms(boundary - now_ms + 1, step_ms=7)
    await process.crash()
    other = await world.process("other")
    await world.until(lambda: len(world.dispatched()) == len(rows))
    assert other.lane.active()
    world.check()


@pytest.mark.parametrize("early_ms", [1, 5, 900])
async def test_a_timer_that_wakes_early_sends_nothing_and_then_once(world: World, early_ms: int) -> None:
    sleep = world.clock.sleep

    async def hasty(seconds: float) -> None:
        await sleep(max(0.0, seconds - early_ms / 1_000))

    world.clock.sleep = hasty  # type: ignore[method-assign]
    process = await running(world)
    rows = [world.row(1_000), world.row(2_000), world.row(3_000)]
    await world.create(*rows, hint=process)
    await world.pass_ms(5_000, step_ms=1)
    assert world.dispatched() == [row.ref for row in rows]
    world.check()


def test_a_leap_second_has_no_name() -> None:
    """Python's datetime knows none, and a Timestamp is without them: whoever writes :60 is told so."""
    with pytest.raises(ValueError, match="second must be in"):
        datetime(2016, 12, 31, 23, 59, 60, tzinfo=UTC)
    assert timestamp_ms(1_483_228_800, 0, "due_time") - timestamp_ms(1_483_228_799, 0, "due_time") == 1_000


# ---------------------------------------------------------------- cancel


async def test_a_cancel_outlives_every_process(world: World) -> None:
    process = await running(world)
    row, other = world.row(20_000), world.row(20_000, shard=3)
    await world.create(row, other, hint=process)
    assert await process.lane.cancel(NAMESPACE, row.task_id) is CancelResult.CANCELLED
    await process.crash()
    await world.pass_ms(25_000, step_ms=500)
    await world.process("later")
    await world.until(lambda: other.ref in world.dispatched())
    await world.pass_ms(10_000, step_ms=100)
    assert world.dispatched() == [other.ref]
    stored = await world.store.get(row.due_ms, NAMESPACE, row.task_id)
    assert stored is not None
    assert fold(stored.facts) is TaskState.CANCELLED


async def test_a_cancel_without_a_poller_is_refused_not_forgotten(service: ServiceWorld) -> None:
    """Only its owner can promise that a task does not go, so there is no answer that it could break."""
    (created,) = await service.tasks.create_many([NewTask("t", delay_ms=60_000)])
    assert isinstance(created, Created)
    service.owners.on_cancel = lambda task_id: None
    with pytest.raises(BucketschedError, match="no owner"):
        await service.tasks.cancel("default", ids.text(created.task_id))
    stored = await service.store.get(created.due_ms, NAMESPACE_ID, created.task_id)
    assert stored is not None
    assert fold(stored.facts) is TaskState.PENDING


# ---------------------------------------------------------------- payloads and names


@pytest.mark.parametrize(
    "payload", [b"", b"null", bytes(range(256)), b"\x00", "\U0001f680".encode(), b'"\\ud800"', bytes(64 * 1024)]
)
async def test_payloads_are_bytes_and_come_back_as_they_were(service: ServiceWorld, payload: bytes) -> None:
    (created,) = await service.tasks.create_many([NewTask("t", payload=payload)])
    assert isinstance(created, Created)
    assert (await service.tasks.get("default", ids.text(created.task_id))).row.body.payload == payload


@pytest.mark.parametrize("value", ["a\x00b", "\x00", "line\nbreak", "\x7f"])
async def test_metadata_that_no_header_can_hold_is_refused_before_it_is_stored(
    service: ServiceWorld, value: str
) -> None:
    for metadata in ({"key": value}, {value: "value"}):
        with pytest.raises(InvalidArgument) as caught:
            await refused(service, NewTask("t", metadata=metadata))
        assert caught.value.field == "metadata"
    assert not service.store.calls["insert"]


def test_the_sdk_refuses_lone_surrogates() -> None:
    for asked in (Asked("\ud800"), Asked("t", queue="\ud800"), Asked("t", metadata={"k": "\ud800"})):
        with pytest.raises(InvalidArgument, match="surrogates"):
            build(asked, "default", "default", NOW_MS * 1_000_000, SERVER)


@pytest.mark.parametrize(("over", "accepted"), [(-1, True), (0, True), (1, False)])
async def test_a_payload_is_too_large_at_its_creation_or_never(
    service: ServiceWorld, over: int, accepted: bool
) -> None:
    (result,) = await service.tasks.create_many([NewTask("t", payload=bytes(64 * 1024 + over))])
    assert isinstance(result, Created) is accepted
    if not accepted:
        assert isinstance(result, InvalidArgument)
        assert "65536" in str(result)


async def test_one_that_its_topic_does_not_take_is_given_up_and_blocks_nobody(world: World) -> None:
    process = await running(world)
    big, small = world.row(1_000), [world.row(1_000 + number, number % 4) for number in range(1, 1_000)]
    await world.create(big, *small, hint=process)
    commit = process.journal.commit

    async def refusing(messages: Sequence[Message], record: bytes) -> int:
        culprits = {index: "too large" for index, message in enumerate(messages) if message.ref == big.ref}
        if culprits:
            raise CommitRefused("MESSAGE_TOO_LARGE", culprits)
        return await commit(messages, record)

    process.journal.commit = refusing  # type: ignore[method-assign]
    await world.until(lambda: len(world.dispatched()) == len(small), 10_000)
    await world.pass_ms(2_000)
    stored = await world.store.get(big.due_ms, NAMESPACE, big.task_id)
    assert stored is not None
    assert (fold(stored.facts), stored.facts.failed_reason) == (TaskState.FAILED, "too large")
    world.check()


@pytest.mark.parametrize(
    "task_id",
    ["a/b", "a:b", "a b", "%2F", "a?b#c", ".", "..", "日本", "é", "e\u0301", "<script>", "x" * 300, "x" * (1 << 20),
     "01c8c0b2-aaa0-8002-9a4e-4ea70154a87f\n", "{01c8c0b2-aaa0-8002-9a4e-4ea70154a87f}",
     "01C8C0B2-AAA0-8002-9A4E-4EA70154A87G", " 01c8c0b2-aaa0-8002-9a4e-4ea70154a87f"],
)  # fmt: skip
async def test_a_task_id_is_a_uuid_and_nothing_else(service: ServiceWorld, task_id: str) -> None:
    for call in (
        service.tasks.get("default", task_id),
        service.tasks.cancel("default", task_id),
        refused(service, NewTask("t", task_id=task_id)),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call
        assert caught.value.field == "task_id"
        assert len(str(caught.value)) < 2_000


# ---------------------------------------------------------------- priorities


async def test_low_priority_does_not_starve(world: World) -> None:
    """Twice as much of high priority falls due as can go; what is low goes once it has waited its ageing twice over."""
    process = await running(world, transaction_interval_ms=100, transaction_tasks_max=10, ageing_ms=2_000)
    low = [world.row(5_000, number % 4, priority=Priority.LOW) for number in range(20)]
    high = [world.row(1_000 + number * 5, number % 4, priority=Priority.HIGH) for number in range(3_000)]
    await world.create(*low, *high, hint=process)
    await world.until(lambda: set(world.dispatched()) >= {row.ref for row in low}, 60_000)
    order = {ref: place for place, ref in enumerate(world.dispatched())}
    older = sum(row.due_ms <= low[0].due_ms for row in high)
    assert min(order[row.ref] for row in low) > older, "what is high and as old goes first"
    assert len(world.dispatched()) < len(high), "and it did not wait for the end of the flood"


async def test_of_what_is_due_together_the_higher_goes_first(world: World) -> None:
    process = await running(world, transaction_tasks_max=1)
    due = 1_000
    rows = [world.row(due, number % 4, priority=Priority(number % 3)) for number in range(30)]
    await world.create(*rows, hint=process)
    await world.until(lambda: len(world.dispatched()) == len(rows))
    rank = {row.ref: row.body.priority for row in rows}
    ranks = [rank[ref] for ref in world.dispatched()]
    assert ranks == sorted(ranks)
