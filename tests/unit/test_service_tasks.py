"""A create is acknowledged when its dispatch is certain, and not before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from service_world import CLUSTER, NAMESPACE_ID, NOW_MS, ServiceWorld, until

from bucketsched.core import failpoints
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import InvalidArgument, NotFound, NotWritten, OutcomeUnknown, Unavailable
from bucketsched.core.task import FactKind, Facts, Mark, Priority, TaskBody, TaskRow, bucket_end_ms, bucket_of
from bucketsched.core.validation import Limits, NewTask
from bucketsched.ports import CancelResult, HintAnswer
from bucketsched.service import tasks as tasks_module
from bucketsched.service.hints import Hints
from bucketsched.service.tasks import Created, CreateResult, CreateUnavailable

FAR_MS = NOW_MS + 3_600_000
OVER_MS = NOW_MS - 5 * 60_000


@pytest.fixture
async def world() -> AsyncIterator[ServiceWorld]:
    world = await ServiceWorld().prepare()
    yield world
    await world.tasks.close()


def task(**given: Any) -> NewTask:
    return NewTask(**{"type": "mail", **given})


def again(due_ms: int, **given: Any) -> NewTask:
    """A task that a client sends with an id of its own."""
    return task(due_ms=due_ms, task_id=ids.text(ids.mint(due_ms, 9, 4711)), **given)


async def create(world: ServiceWorld, new: NewTask, timeout_s: float | None = None) -> CreateResult:
    (result,) = await world.tasks.create_many([new], timeout_s)
    return result


async def created(world: ServiceWorld, new: NewTask, timeout_s: float | None = None) -> Created:
    result = await create(world, new, timeout_s)
    assert isinstance(result, Created), result
    return result


# ---------------------------------------------------------------- what is stored


async def test_a_task_is_stored_as_it_was_asked_for(world: ServiceWorld) -> None:
    new = task(payload=b"p\0", metadata={"k": "v"}, due_ms=FAR_MS, priority=Priority.HIGH, content_type="a/b")
    result = await created(world, new)
    stored = await world.tasks.get("default", ids.text(result.task_id))
    assert stored.row.body == TaskBody(
        "default", "default", "mail", b"p\0", {"k": "v"}, Priority.HIGH, FAR_MS, NOW_MS, "a/b"
    )
    assert (stored.row.due_ms, stored.row.generation, stored.row.attempt) == (FAR_MS, 0, 1)
    assert ids.home_of(result.task_id).due_ms == result.due_ms == FAR_MS
    assert stored.facts == Facts()


async def test_a_due_time_in_the_past_runs_now(world: ServiceWorld) -> None:
    result = await created(world, task(due_ms=-5))
    stored = await world.tasks.get("default", ids.text(result.task_id))
    assert (stored.row.due_ms, stored.row.body.nominal_due_ms, result.due_ms) == (NOW_MS, -5, -5)


async def test_server_minted_ids_spread_over_all_shards(world: ServiceWorld) -> None:
    results = await world.tasks.create_many([task(due_ms=FAR_MS)] * 1000 + [])
    minted = {result.task_id for result in results if isinstance(result, Created)}
    assert len(minted) == 1000
    used = {ids.shard_in(task_id) for task_id in minted}
    assert len(used) > 200
    assert max(used) < CLUSTER.shards


async def test_a_client_minted_id_is_the_place_of_the_row(world: ServiceWorld) -> None:
    await created(world, again(FAR_MS))
    (row,) = await world.rows(bucket_of(FAR_MS))
    assert (row.task_id, row.due_ms) == (ids.mint(FAR_MS, 9, 4711), FAR_MS)


async def test_every_item_of_a_batch_has_its_own_answer(world: ServiceWorld) -> None:
    results = await world.tasks.create_many(
        [
            task(due_ms=FAR_MS),
            task(type=""),
            task(queue="nowhere"),
            task(namespace="nobody"),
            task(delay_ms=-1),
            task(due_ms=FAR_MS, payload=b"last"),
        ]
    )
    kinds = [type(result) for result in results]
    assert kinds == [Created, InvalidArgument, NotFound, NotFound, InvalidArgument, Created]
    fields = [getattr(result, "field", None) for result in results]
    assert fields == [None, "type", "queue", "namespace", "delay", None]
    assert sorted(row.body.payload for row in await world.rows(bucket_of(FAR_MS))) == [b"", b"last"]


async def test_a_batch_has_a_limit() -> None:
    world = await ServiceWorld(limits=Limits(batch_tasks_max=2)).prepare()
    await world.tasks.create_many([task(due_ms=FAR_MS)] * 2)
    with pytest.raises(InvalidArgument, match="requests: must be at most 2, are 3"):
        await world.tasks.create_many([task(due_ms=FAR_MS)] * 3)
    assert await world.tasks.create_many([]) == []


async def test_an_id_twice_in_a_batch_is_one_row(world: ServiceWorld) -> None:
    results = await world.tasks.create_many([again(FAR_MS), again(FAR_MS), again(FAR_MS, payload=b"other")])
    assert [type(result) for result in results] == [Created, Created, InvalidArgument]
    (row,) = await world.rows(bucket_of(FAR_MS))
    assert row.body.payload == b""
    await world.tasks.create_many([again(NOW_MS), again(NOW_MS)])
    assert [len(rows) for rows in world.owners.hinted] == [1]


async def test_one_id_in_two_namespaces_is_two_tasks(world: ServiceWorld) -> None:
    await world.catalog.create_namespace(Namespace("other", b"o" * 16, 0))
    await world.catalog.create_queue(Queue(b"o" * 16, "other", "default", QueueKind.WORKER))
    await world.tasks.create_many([again(FAR_MS, payload=b"1"), again(FAR_MS, payload=b"2", namespace="other")])
    task_id = ids.text(ids.mint(FAR_MS, 9, 4711))
    assert (await world.tasks.get("default", task_id)).row.body.payload == b"1"
    assert (await world.tasks.get("other", task_id)).row.body.payload == b"2"


# ---------------------------------------------------------------- a store in trouble


@pytest.mark.parametrize("error", [NotWritten("no"), OutcomeUnknown("perhaps")])
@pytest.mark.parametrize("applied", [False, True])
async def test_a_write_that_did_not_succeed_is_repeated_with_the_same_id(
    world: ServiceWorld, error: Exception, applied: bool
) -> None:
    world.store.fail_next("insert", error, applied=applied, times=3)
    result = await created(world, task(due_ms=FAR_MS))
    assert world.store.calls["insert"] == 4
    (row,) = await world.rows(bucket_of(FAR_MS))
    assert row.task_id == result.task_id


async def test_what_could_not_be_stored_in_time_is_never_acknowledged(world: ServiceWorld) -> None:
    world.store.down = True
    result = await create(world, task(due_ms=NOW_MS))
    assert isinstance(result, CreateUnavailable)
    assert ids.text(result.task_id) in str(result)
    assert world.clock.monotonic() == pytest.approx(10, abs=0.6)
    assert not world.owners.hinted, "a row that is not stored is not hinted"
    world.store.down = False
    retried = await created(world, task(task_id=ids.text(result.task_id), due_ms=NOW_MS))
    assert retried.task_id == result.task_id


async def test_the_clients_deadline_is_kept(world: ServiceWorld) -> None:
    world.store.down = True
    await create(world, task(due_ms=FAR_MS), timeout_s=2.5)
    assert world.clock.monotonic() == pytest.approx(2.5, abs=0.6)


async def test_a_store_that_hangs_does_not_hang_the_client(world: ServiceWorld) -> None:
    world.store.hold("insert")
    result = await asyncio.wait_for(create(world, task(due_ms=FAR_MS), timeout_s=0.05), 5)
    assert isinstance(result, Unavailable)


async def test_queues_that_can_not_be_looked_up_make_their_tasks_unavailable(world: ServiceWorld) -> None:
    world.catalog.down = True
    result = await create(world, task(due_ms=FAR_MS))
    assert isinstance(result, Unavailable)
    assert world.store.calls["insert"] == 0


# ---------------------------------------------------------------- hints


@pytest.mark.parametrize(
    ("ahead_ms", "hinted"),
    [(0, True), (60_000, True), (125_000, True), (149_876, True), (149_877, False), (3_600_000, False)],
)
async def test_owners_are_told_of_what_they_may_have_loaded_past(
    world: ServiceWorld, ahead_ms: int, hinted: bool
) -> None:
    """Whole buckets are loaded: the last one begins within the horizon (and a margin) and ends 149.877 s from now."""
    assert NOW_MS % 60_000 == 30_123
    result = await created(world, task(due_ms=NOW_MS + ahead_ms))
    assert [row.task_id for rows in world.owners.hinted for row in rows] == [result.task_id] * hinted
    assert not world.owners.admitted


async def test_a_batch_is_hinted_in_one_call_after_it_is_stored(world: ServiceWorld) -> None:
    stored_before: list[int] = []
    world.owners.on_hint = lambda row: stored_before.append(world.store.calls["insert"]) or HintAnswer.TAKEN
    await world.tasks.create_many([task(delay_ms=ms) for ms in (1, 2, 3, 7_200_000)])
    assert [len(rows) for rows in world.owners.hinted] == [3]
    assert stored_before == [1, 1, 1]


@pytest.mark.parametrize("answer", [None, HintAnswer.NOT_OWNER, HintAnswer.NOT_READY, HintAnswer.NO_ROW])
async def test_an_unanswered_hint_is_repeated_behind_the_answer_until_it_is_taken(
    world: ServiceWorld, answer: HintAnswer | None
) -> None:
    world.owners.on_hint = lambda row: HintAnswer.TAKEN if len(world.owners.hinted) > 4 else answer
    await created(world, task(delay_ms=60_000))
    await until(lambda: len(world.owners.hinted) > 4)
    await asyncio.sleep(0.02)
    assert len(world.owners.hinted) == 5, "once taken it is hinted no more"


async def test_a_create_waits_only_a_moment_for_owners_that_do_not_answer(world: ServiceWorld) -> None:
    world.owners.silent = True
    started = asyncio.get_running_loop().time()
    await created(world, task(delay_ms=60_000))
    assert 0.04 < asyncio.get_running_loop().time() - started < 2
    assert world.clock.monotonic() == 0


async def test_hints_are_given_up_a_minute_after_due(world: ServiceWorld) -> None:
    world.owners.on_hint = lambda row: None
    await created(world, task(delay_ms=5_000))
    await until(lambda: world.tasks._hints.rows_behind == 0)
    assert 65 < world.clock.monotonic() < 70


async def test_twenty_seconds_late_a_task_needs_its_hints_answer(world: ServiceWorld) -> None:
    world.owners.silent = True
    in_time = NOW_MS - tasks_module.UNANSWERED_UNTIL_MS + 1
    await created(world, again(in_time), timeout_s=0.2)
    too_late = NOW_MS - tasks_module.UNANSWERED_UNTIL_MS
    assert bucket_of(too_late) == bucket_of(NOW_MS)

    async def time_passes() -> None:
        await asyncio.sleep(0.1)
        world.clock.advance_ms(1000)

    waiting = asyncio.create_task(create(world, again(too_late), timeout_s=0.5))
    await time_passes()
    assert isinstance(await asyncio.wait_for(waiting, 5), CreateUnavailable)
    assert [row.due_ms for row in await world.rows(bucket_of(too_late))].count(too_late) == 1, "stored all the same"


async def test_twenty_seconds_late_a_task_is_acknowledged_with_the_answer(world: ServiceWorld) -> None:
    world.owners.on_hint = lambda row: HintAnswer.TAKEN if len(world.owners.hinted) > 5 else HintAnswer.NOT_READY
    await created(world, again(NOW_MS - 20_000))
    assert len(world.owners.hinted) == 6
    assert not world.owners.admitted


async def test_late_and_early_tasks_of_a_batch_wait_each_for_their_own(world: ServiceWorld) -> None:
    late_ms = NOW_MS - 20_000
    world.owners.on_hint = lambda row: None if row.due_ms == late_ms else HintAnswer.TAKEN
    late, early, far = await world.tasks.create_many([again(late_ms), task(delay_ms=10), task(due_ms=FAR_MS)])
    assert [type(result) for result in (late, early, far)] == [CreateUnavailable, Created, Created]


async def test_with_too_many_hints_behind_creates_wait_for_theirs(world: ServiceWorld) -> None:
    world.tasks._hints = Hints(world.owners, world.clock, rows_behind_max=1)
    world.owners.on_hint = lambda row: None
    one, other = await world.tasks.create_many([task(delay_ms=60_000), task(delay_ms=60_000)], timeout_s=3)
    assert isinstance(one, Unavailable)
    assert isinstance(other, Unavailable)
    assert world.tasks._hints.rows_behind == 0
    assert isinstance(await create(world, task(delay_ms=60_000), timeout_s=3), Created)
    await world.tasks.close()


async def test_owners_that_fail_in_an_unexpected_way_are_asked_again(world: ServiceWorld) -> None:
    def fail_first(row: TaskRow) -> HintAnswer:
        if len(world.owners.hinted) < 3:
            raise RuntimeError("a bug")
        return HintAnswer.TAKEN

    world.owners.on_hint = fail_first
    await created(world, again(NOW_MS - 20_000))
    assert len(world.owners.hinted) == 3


async def test_the_failpoint_lies_between_storing_and_hinting(world: ServiceWorld) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        assert name == "create.stored"
        raise Killed

    failpoints.install(kill)
    try:
        with pytest.raises(Killed):
            await create(world, task(delay_ms=10))
    finally:
        failpoints.install(None)
    assert len(await world.rows(bucket_of(NOW_MS))) == 1
    assert not world.owners.hinted


# ---------------------------------------------------------------- buckets that are over


@pytest.mark.parametrize(("after_ms", "asked"), [(60_000, False), (60_001, True)])
async def test_a_minute_after_its_buckets_end_the_owner_has_to_admit_a_task(
    world: ServiceWorld, after_ms: int, asked: bool
) -> None:
    due_ms = NOW_MS - 120_000
    world.clock.step_ms(bucket_end_ms(bucket_of(due_ms)) + after_ms - NOW_MS)
    await created(world, again(due_ms))
    assert (bool(world.owners.admitted), bool(world.owners.hinted)) == (asked, not asked)


async def test_how_late_it_is_is_asked_of_the_clock_at_its_worst() -> None:
    world = await ServiceWorld(clock_error_ms=1_000).prepare()
    due_ms = NOW_MS - 120_000
    world.clock.step_ms(bucket_end_ms(bucket_of(due_ms)) + 59_001 - NOW_MS)
    await created(world, again(due_ms))
    assert world.owners.admitted


async def test_with_a_short_grace_the_owner_is_asked_before_the_bucket_can_be_closed() -> None:
    constants = ClusterConstants(uuid.UUID(int=7), grace_ms=2_000)
    world = await ServiceWorld(constants).prepare()
    due_ms = NOW_MS - 60_000
    end_ms = bucket_end_ms(bucket_of(due_ms))
    for after_ms, asked in ((1_000, 0), (1_001, 1)):
        world.clock.step_ms(end_ms + after_ms - world.clock.now_ms())
        await created(world, again(due_ms))
        assert len(world.owners.admitted) == asked


async def test_a_task_that_the_owner_does_not_find_is_stored_again_and_admitted(world: ServiceWorld) -> None:
    world.owners.on_admit = lambda row: HintAnswer.NO_ROW if len(world.owners.admitted) < 3 else HintAnswer.TAKEN
    await created(world, again(OVER_MS))
    assert (world.store.calls["insert"], len(world.owners.admitted)) == (3, 3)


@pytest.mark.parametrize("answer", [None, HintAnswer.NOT_OWNER, HintAnswer.NOT_READY])
async def test_an_admission_is_asked_for_until_there_is_an_answer(
    world: ServiceWorld, answer: HintAnswer | None
) -> None:
    world.owners.on_admit = lambda row: HintAnswer.TAKEN if len(world.owners.admitted) > 3 else answer
    await created(world, again(OVER_MS))
    assert len(world.owners.admitted) == 4


async def test_without_admission_there_is_no_acknowledgement(world: ServiceWorld) -> None:
    world.owners.on_admit = lambda row: None
    result = await create(world, again(OVER_MS), timeout_s=2)
    assert isinstance(result, CreateUnavailable)
    assert world.clock.monotonic() == pytest.approx(2, abs=0.6)


async def test_a_bucket_that_ends_while_hints_are_unanswered_needs_the_admission(world: ServiceWorld) -> None:
    def slow(row: TaskRow) -> None:
        world.clock.step_ms(200_000)

    world.owners.on_hint = slow
    world.owners.on_admit = lambda row: None
    assert isinstance(await create(world, task(delay_ms=0), timeout_s=2), CreateUnavailable)
    world.owners.on_admit = lambda row: HintAnswer.TAKEN
    assert isinstance(await create(world, task(delay_ms=0), timeout_s=2), Created)


async def test_a_slow_write_that_outlasts_its_bucket_needs_the_admission(world: ServiceWorld) -> None:
    world.store.hold("insert")
    waiting = asyncio.create_task(create(world, task(delay_ms=0), timeout_s=3600))
    await until(lambda: world.store.calls["insert"] == 1)
    world.clock.step_ms(200_000)
    world.store.let_go("insert")
    assert isinstance(await asyncio.wait_for(waiting, 5), Created)
    assert len(world.owners.admitted) == 1
    assert not world.owners.hinted


async def test_many_admissions_are_bounded_and_all_answered(world: ServiceWorld) -> None:
    results = await world.tasks.create_many(
        [task(due_ms=OVER_MS, task_id=ids.text(ids.mint(OVER_MS, n % 256, n))) for n in range(300)]
    )
    assert all(isinstance(result, Created) for result in results)
    assert len(world.owners.admitted) == 300


# ---------------------------------------------------------------- get and cancel


async def test_a_moved_task_is_found_at_its_new_place(world: ServiceWorld) -> None:
    result = await created(world, task(due_ms=FAR_MS))
    (row,) = await world.rows(bucket_of(FAR_MS))
    moved = TaskRow(FAR_MS + 600_000, NAMESPACE_ID, row.task_id, row.body, generation=1)
    await world.store.insert([moved])
    await world.store.mark([Mark(row.ref, FactKind.MOVED, moved.due_ms)])
    stored = await world.tasks.get("default", ids.text(result.task_id))
    assert (stored.row.due_ms, stored.row.generation) == (FAR_MS + 600_000, 1)


async def test_following_moves_ends(world: ServiceWorld) -> None:
    result = await created(world, task(due_ms=FAR_MS))
    (row,) = await world.rows(bucket_of(FAR_MS))
    await world.store.mark([Mark(row.ref, FactKind.MOVED, FAR_MS)])
    with pytest.raises(Unavailable):
        await world.tasks.get("default", ids.text(result.task_id))


async def test_what_does_not_exist_is_not_found(world: ServiceWorld) -> None:
    unknown = ids.text(ids.mint(FAR_MS, 1, 1))
    world.owners.on_cancel = lambda task_id: CancelResult.NOT_FOUND
    for call in (world.tasks.get, world.tasks.cancel):
        with pytest.raises(NotFound, match="task_id"):
            await call("default", unknown)
        with pytest.raises(NotFound, match="namespace"):
            await call("nobody", unknown)


@pytest.mark.parametrize("task_id", ["", "a/b", "..", "x" * 2**20])
async def test_ids_that_are_none_are_invalid(world: ServiceWorld, task_id: str) -> None:
    for call in (world.tasks.get, world.tasks.cancel):
        with pytest.raises(InvalidArgument, match="task_id"):
            await call("default", task_id)


@pytest.mark.parametrize("result", [r for r in CancelResult if r is not CancelResult.NOT_FOUND])
async def test_the_owner_decides_what_becomes_of_a_cancel(world: ServiceWorld, result: CancelResult) -> None:
    world.owners.on_cancel = lambda task_id: result
    assert await world.tasks.cancel("default", ids.text(ids.mint(FAR_MS, 1, 1))) is result


async def test_without_an_owner_a_cancel_is_unavailable_and_nothing_is_written(world: ServiceWorld) -> None:
    created_ = await created(world, task(due_ms=FAR_MS))
    world.owners.on_cancel = lambda task_id: None
    with pytest.raises(Unavailable):
        await world.tasks.cancel("default", ids.text(created_.task_id))
    assert world.store.calls["mark"] == 0
