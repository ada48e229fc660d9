"""The contract of TaskStore, sentence by sentence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_adapters import StoresUnderTest, fresh_bucket, namespace_id, row

from bucketsched.core import task_id as ids
from bucketsched.core.execution import Attempt, AttemptEnd
from bucketsched.core.presence import Partition
from bucketsched.core.task import (
    NO_BODY,
    FactKind,
    Facts,
    Mark,
    Priority,
    RowRef,
    Stage,
    StoredTask,
    TaskBody,
    TaskRow,
    at_stage,
    bucket_end_ms,
    bucket_start_ms,
)
from bucketsched.ports import ATTEMPTS_READ_MAX, TaskStore

SHARD = 3


async def put(tasks: TaskStore, *rows: TaskRow) -> None:
    assert await tasks.insert(rows) == [None] * len(rows)


async def fetch(tasks: TaskStore, stored: TaskRow) -> StoredTask | None:
    return await tasks.get(stored.due_ms, stored.namespace_id, stored.task_id)


async def read_all(
    tasks: TaskStore, bucket: int, shard: int = SHARD, limit: int = 1_000, until_ms: int = 0
) -> list[StoredTask]:
    """Pages through a partition as a loader does."""
    found: list[StoredTask] = []
    until_ms = until_ms or bucket_end_ms(bucket)
    for _ in range(10_000):
        page = await tasks.read_partition(bucket, shard, found[-1].row.ref if found else None, until_ms, limit)
        assert len(page.tasks) <= limit
        found += page.tasks
        if page.complete:
            return found
        assert page.tasks, "a page that is not complete must bring the reader on"
    raise AssertionError("paging does not end")


class TestInsert:
    async def test_what_is_written_is_read_back_unchanged(self, tasks: TaskStore) -> None:
        body = TaskBody(
            namespace="tenant-ä",
            queue="emails",
            type="send",
            payload=bytes(range(256)) * 16,
            metadata={"a": "1", "ключ": "значение"},
            priority=Priority.HIGH,
            nominal_due_ms=5,
            created_ms=1_700_000_000_123,
            content_type="application/json",
        )
        start = bucket_start_ms(fresh_bucket())
        written = row(start + 59_999, namespace_id(), body=body, generation=3, attempt=2)
        await put(tasks, written)
        read = await fetch(tasks, written)
        assert read == StoredTask(written, Facts())
        assert read is not None
        assert read.row.ref == written.ref

    async def test_an_empty_body_is_a_body(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id(), body=TaskBody("n", "q", "t"))
        await put(tasks, written)
        assert await fetch(tasks, written) == StoredTask(written)

    async def test_no_rows_no_answers(self, tasks: TaskStore) -> None:
        assert await tasks.insert([]) == []

    async def test_inserting_again_changes_nothing(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        written = row(bucket_start_ms(bucket), namespace_id())
        await put(tasks, written, written)
        await put(tasks, written)
        assert await read_all(tasks, bucket) == [StoredTask(written)]

    async def test_inserting_again_keeps_the_facts(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        await put(tasks, written)
        await tasks.mark([Mark(written.ref, FactKind.DISPATCHED, 12)])
        await put(tasks, written)
        assert await fetch(tasks, written) == StoredTask(written, Facts(dispatched_ms=12))

    async def test_a_fact_that_came_before_its_row_is_kept(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        await tasks.mark([Mark(written.ref, FactKind.CANCELLED, 12)])
        await put(tasks, written)
        assert await fetch(tasks, written) == StoredTask(written, Facts(cancelled_ms=12))

    async def test_namespaces_do_not_meet_even_with_one_task_id(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        mine = row(bucket_start_ms(bucket), namespace_id(), low_bits=5)
        theirs = TaskRow(mine.due_ms, namespace_id(), mine.task_id, TaskBody("other", "q", "t"))
        await put(tasks, mine, theirs)
        assert await fetch(tasks, mine) == StoredTask(mine)
        assert await fetch(tasks, theirs) == StoredTask(theirs)

    async def test_many_callers_at_once_each_get_their_answers(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        calls = [[row(start + n * 37 + i, namespace, shard=i % 4) for i in range(n % 7)] for n in range(40)]
        answers = await asyncio.gather(*(tasks.insert(call) for call in calls))
        assert answers == [[None] * len(call) for call in calls]
        found = [task.row for shard in range(4) for task in await read_all(tasks, bucket, shard)]
        assert sorted(r.ref for r in found) == sorted(r.ref for call in calls for r in call)

    async def test_rows_of_very_different_sizes_in_one_call(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        sizes = [0, 64 * 1024, 10, 64 * 1024, 64 * 1024, 1, 200_000, 30_000, 30_000]
        rows = [row(start + i, namespace, body=TaskBody("n", "q", "t", b"x" * n)) for i, n in enumerate(sizes)]
        await put(tasks, *rows)
        assert [len(task.row.body.payload) for task in await read_all(tasks, bucket)] == sizes

    async def test_a_cancelled_caller_does_not_disturb_the_others(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        calls = [asyncio.create_task(tasks.insert([row(start + n, namespace)])) for n in range(20)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert results[1::2] == [[None]] * 10
        offsets = {task.row.due_ms - start for task in await read_all(tasks, bucket)}
        assert offsets >= set(range(1, 20, 2))


class TestGet:
    async def test_what_is_not_there_is_none(self, tasks: TaskStore) -> None:
        missing = row(bucket_start_ms(fresh_bucket()), namespace_id())
        assert await fetch(tasks, missing) is None

    @pytest.mark.parametrize("minute", [(1 << 31) - 1, 1 << 31, ids.MINUTE_MAX])
    async def test_a_place_in_the_farthest_future_is_none(self, tasks: TaskStore, minute: int) -> None:
        due_ms = bucket_start_ms(minute)
        assert await tasks.get(due_ms, namespace_id(), ids.mint(due_ms, SHARD, 0)) is None

    async def test_the_place_is_due_namespace_and_id(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()) + 10, namespace_id())
        await put(tasks, written)
        assert await tasks.get(written.due_ms + 1, written.namespace_id, written.task_id) is None
        assert await tasks.get(written.due_ms, namespace_id(), written.task_id) is None

    async def test_a_row_may_live_elsewhere_than_its_id_says(self, tasks: TaskStore) -> None:
        """As after a move: the id keeps the shard, the row has another due time."""
        minted = row(bucket_start_ms(fresh_bucket()), namespace_id())
        bucket = fresh_bucket()
        moved = TaskRow(bucket_start_ms(bucket) + 7, minted.namespace_id, minted.task_id, minted.body, generation=1)
        await put(tasks, moved)
        assert await fetch(tasks, moved) == StoredTask(moved)
        assert await fetch(tasks, minted) is None
        assert await read_all(tasks, bucket) == [StoredTask(moved)]

    async def test_facts_without_a_body_are_no_row(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        missing = row(bucket_start_ms(bucket), namespace_id())
        await tasks.mark([Mark(missing.ref, FactKind.CANCELLED, 1)])
        assert await fetch(tasks, missing) is None
        assert await read_all(tasks, bucket) == []
        assert await tasks.pending_refs(bucket, [SHARD], missing.due_ms, missing.due_ms + 1) == []


class TestReadPartition:
    async def test_an_empty_partition_is_complete(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        page = await tasks.read_partition(bucket, SHARD, None, bucket_end_ms(bucket), 10)
        assert (page.tasks, page.complete) == ([], True)

    async def test_rows_come_in_due_order(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        await put(tasks, *[row(start + offset, namespace) for offset in (59_999, 0, 500, 7, 42_000)])
        offsets = [task.row.due_ms - start for task in await read_all(tasks, bucket)]
        assert offsets == [0, 7, 500, 42_000, 59_999]

    async def test_equal_due_times_come_by_namespace_and_id(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start = bucket_start_ms(bucket)
        rows = [row(start, ns) for ns in (namespace_id(), namespace_id(), namespace_id()) for _ in range(3)]
        await put(tasks, *rows)
        refs = [task.row.ref for task in await read_all(tasks, bucket, limit=2)]
        assert refs == sorted(r.ref for r in rows)

    async def test_until_is_exclusive(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        await put(tasks, row(start + 10, namespace), row(start + 11, namespace))
        page = await tasks.read_partition(bucket, SHARD, None, start + 11, 10)
        assert [task.row.due_ms for task in page.tasks] == [start + 10]
        assert page.complete, "the read reached until"

    async def test_after_is_exclusive_and_ignores_generation_and_attempt(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        first, second = row(start, namespace, low_bits=1), row(start, namespace, low_bits=2)
        await put(tasks, first, second)
        after = RowRef(start, namespace, first.task_id, 9, 9).pack()
        page = await tasks.read_partition(bucket, SHARD, after, bucket_end_ms(bucket), 10)
        assert [task.row for task in page.tasks] == [second]

    async def test_after_need_not_name_a_row(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        first, second = row(start, namespace), row(start + 9, namespace)
        await put(tasks, first, second)
        after = RowRef(start + 5, bytes(16), bytes(16), 0, 0).pack()
        page = await tasks.read_partition(bucket, SHARD, after, bucket_end_ms(bucket), 10)
        assert [task.row for task in page.tasks] == [second]

    async def test_after_at_or_behind_until_is_empty_and_complete(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        late = row(start + 50, namespace)
        await put(tasks, late)
        page = await tasks.read_partition(bucket, SHARD, late.ref, start + 20, 10)
        assert (page.tasks, page.complete) == ([], True)

    async def test_other_partitions_are_not_read(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        mine = row(start, namespace)
        await put(tasks, mine, row(start, namespace, shard=SHARD + 1), row(start + 60_000, namespace))
        assert await read_all(tasks, bucket) == [StoredTask(mine)]

    async def test_settled_rows_are_included(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        rows = [row(start + i, namespace) for i in range(3)]
        await put(tasks, *rows)
        await tasks.mark([Mark(rows[1].ref, FactKind.DISPATCHED, 4)])
        facts = [task.facts for task in await read_all(tasks, bucket)]
        assert facts == [Facts(), Facts(dispatched_ms=4), Facts()]

    async def test_pages_go_on_behind_facts_without_bodies(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        ghosts = [row(start + i, namespace) for i in range(5)]
        await tasks.mark([Mark(ghost.ref, FactKind.CANCELLED, 1) for ghost in ghosts])
        real = row(start + 9, namespace)
        await put(tasks, real)
        assert await read_all(tasks, bucket, limit=2) == [StoredTask(real)]

    async def test_an_undecodable_body_has_no_type_and_hides_nobody(self, stores: StoresUnderTest) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        bad, good = row(start, namespace), row(start + 1, namespace)
        await stores.plant(bad, b"\xff\xff\xff")
        await put(stores.tasks, good)
        found = await read_all(stores.tasks, bucket)
        assert [task.row.ref for task in found] == [bad.ref, good.ref]
        assert [task.row.body.type for task in found] == ["", "greet"]
        assert found[0].facts == Facts()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        places=st.lists(
            st.tuples(st.integers(0, 6), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=40, unique=True
        ),
        settled=st.sets(st.integers(0, 39)),
        limit=st.integers(1, 9),
        until=st.integers(0, 8),
    )
    async def test_paging_gives_every_row_once_and_in_order(
        self,
        tasks: TaskStore,
        places: list[tuple[int, int, int]],
        settled: set[int],
        limit: int,
        until: int,
    ) -> None:
        bucket = fresh_bucket()
        start, namespaces = bucket_start_ms(bucket), [namespace_id() for _ in range(3)]
        rows = [row(start + due, namespaces[n], low_bits=bits) for due, n, bits in places]
        await put(tasks, *rows)
        await tasks.mark([Mark(r.ref, FactKind.DISPATCHED, 1) for i, r in enumerate(rows) if i in settled])
        found = await read_all(tasks, bucket, limit=limit, until_ms=start + until)
        assert [task.row.ref for task in found] == sorted(r.ref for r in rows if r.due_ms < start + until)


class TestPendingRefs:
    async def test_only_rows_without_facts_in_the_window(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        rows = [row(start + offset, namespace, generation=2, attempt=3) for offset in (9, 10, 11, 12, 13, 20)]
        await put(tasks, *rows)
        await tasks.mark(
            [Mark(rows[2].ref, FactKind.DISPATCHED, 1), Mark(rows[3].ref, FactKind.MOVED, start + 60_000)],
        )
        refs = await tasks.pending_refs(bucket, [SHARD], start + 10, start + 20)
        assert sorted(refs) == [rows[1].ref, rows[4].ref]

    async def test_many_shards_in_one_call(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        rows = [row(start + shard, namespace, shard=shard) for shard in range(6)]
        await put(tasks, *rows)
        refs = await tasks.pending_refs(bucket, [1, 2, 4], start, bucket_end_ms(bucket))
        assert sorted(refs) == [rows[1].ref, rows[2].ref, rows[4].ref]

    async def test_no_shards_nothing_pending(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        assert await tasks.pending_refs(bucket, [], bucket_start_ms(bucket), bucket_end_ms(bucket)) == []

    async def test_more_rows_than_any_page_holds(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        rows = [row(start + i % 60_000, namespace, body=TaskBody("n", "q", "t")) for i in range(6_000)]
        for i in range(0, len(rows), 1_000):
            await put(tasks, *rows[i : i + 1_000])
        refs = await tasks.pending_refs(bucket, [SHARD], start, bucket_end_ms(bucket))
        assert sorted(refs) == sorted(r.ref for r in rows)


class TestMark:
    @pytest.mark.parametrize(
        ("kind", "reason", "facts"),
        [
            (FactKind.DISPATCHED, "", Facts(dispatched_ms=1_700_000_000_001)),
            (FactKind.CANCELLED, "", Facts(cancelled_ms=1_700_000_000_001)),
            (FactKind.FAILED, "too large: ä", Facts(failed_ms=1_700_000_000_001, failed_reason="too large: ä")),
            (FactKind.MOVED, "", Facts(moved_to_ms=1_700_000_000_001)),
            (FactKind.RETRIED, "", Facts(moved_to_ms=1_700_000_000_001)),
            (FactKind.SUCCEEDED, "", Facts(succeeded_ms=1_700_000_000_001)),
            (FactKind.EXPIRED, "", Facts(expired_ms=1_700_000_000_001)),
        ],
    )
    async def test_each_kind_is_stored_and_read_back(
        self, tasks: TaskStore, kind: FactKind, reason: str, facts: Facts
    ) -> None:
        bucket = fresh_bucket()
        written = row(bucket_start_ms(bucket), namespace_id())
        await put(tasks, written)
        await tasks.mark([Mark(written.ref, kind, 1_700_000_000_001, reason)])
        assert await fetch(tasks, written) == StoredTask(written, facts)
        assert await read_all(tasks, bucket) == [StoredTask(written, facts)]
        assert await tasks.pending_refs(bucket, [SHARD], written.due_ms, written.due_ms + 1) == []

    async def test_repeating_a_mark_changes_nothing(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        await put(tasks, written)
        mark = Mark(written.ref, FactKind.FAILED, 5, "why")
        await tasks.mark([mark, mark])
        await tasks.mark([mark])
        assert await fetch(tasks, written) == StoredTask(written, Facts(failed_ms=5, failed_reason="why"))

    async def test_the_stage_of_a_reference_makes_no_difference(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        mark = Mark(at_stage(written.ref, Stage.OUTCOME), FactKind.SUCCEEDED, 5)
        await tasks.mark([mark])
        await put(tasks, written)
        await tasks.mark([mark])
        assert await fetch(tasks, written) == StoredTask(written, Facts(succeeded_ms=5))

    async def test_facts_add_up(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        await put(tasks, written)
        await tasks.mark([Mark(written.ref, FactKind.CANCELLED, 5)])
        await tasks.mark([Mark(written.ref, FactKind.MOVED, 6)])
        assert await fetch(tasks, written) == StoredTask(written, Facts(cancelled_ms=5, moved_to_ms=6))

    async def test_of_moves_the_last_counts(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        await put(tasks, written)
        await tasks.mark([Mark(written.ref, FactKind.MOVED, 6)])
        await tasks.mark([Mark(written.ref, FactKind.MOVED, 5)])
        assert await fetch(tasks, written) == StoredTask(written, Facts(moved_to_ms=5))

    async def test_where_a_task_moved_is_known_without_its_row(self, tasks: TaskStore) -> None:
        """Rows expire; of one that has, the place where its task went on is left."""
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        moved, dispatched = row(start, namespace), row(start + 1, namespace)
        await tasks.mark([Mark(moved.ref, FactKind.MOVED, 7), Mark(dispatched.ref, FactKind.DISPATCHED, 7)])
        found = await fetch(tasks, moved)
        assert found is not None
        assert (found.row.body, found.facts) == (NO_BODY, Facts(moved_to_ms=7))
        assert await fetch(tasks, dispatched) is None
        assert await read_all(tasks, bucket) == []

    async def test_nothing_to_mark(self, tasks: TaskStore) -> None:
        await tasks.mark([])

    async def test_many_marks_over_many_partitions(self, tasks: TaskStore) -> None:
        bucket = fresh_bucket()
        start, namespace = bucket_start_ms(bucket), namespace_id()
        rows = [row(start + i, namespace, shard=i % 5) for i in range(500)]
        await put(tasks, *rows)
        await tasks.mark([Mark(r.ref, FactKind.DISPATCHED, r.due_ms) for r in rows])
        found = [task for shard in range(5) for task in await read_all(tasks, bucket, shard)]
        assert len(found) == 500
        assert all(task.facts == Facts(dispatched_ms=task.row.due_ms) for task in found)


def attempt(namespace: bytes, task_id: bytes, number: int, generation: int = 0, **said: Any) -> Attempt:
    return Attempt(namespace, task_id, generation, number, **said)


class TestAttempts:
    async def test_an_entry_comes_back_as_it_was(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        key, now_ms = (written.namespace_id, written.task_id), written.due_ms
        assert await tasks.attempts(*key) == []
        entries = [
            attempt(*key, 1, started_ms=now_ms, ended_ms=now_ms + 5, end=AttemptEnd.FAILED, worker="w: ä",
                    error_type="E", error_message="no", error_trace="here\nthere", retry_ms=now_ms + 9),
            attempt(*key, 2, ended_ms=now_ms + 20, end=AttemptEnd.TIMED_OUT),
            attempt(*key, 3, started_ms=now_ms + 30, worker="x"),
            attempt(*key, 1, 1, started_ms=now_ms + 40, ended_ms=now_ms + 41, end=AttemptEnd.SUCCEEDED,
                    result=b"\x00\xff"),
        ]  # fmt: skip
        await tasks.record_attempts(entries[::-1])
        assert await tasks.attempts(*key) == entries
        await tasks.record_attempts(entries)
        assert await tasks.attempts(*key) == entries
        other = namespace_id()
        assert await tasks.attempts(other, written.task_id) == []

    async def test_the_end_is_added_to_the_beginning(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        key, now_ms = (written.namespace_id, written.task_id), written.due_ms
        await tasks.record_attempts([attempt(*key, 1, started_ms=now_ms, worker="w")])
        whole = attempt(*key, 1, started_ms=now_ms, worker="w", ended_ms=now_ms + 1, end=AttemptEnd.SUCCEEDED)
        await tasks.record_attempts([whole])
        assert await tasks.attempts(*key) == [whole]
        await tasks.record_attempts([attempt(*key, 1, started_ms=now_ms, worker="w")])
        assert await tasks.attempts(*key) == [whole]

    async def test_of_very_many_the_last_are_read(self, tasks: TaskStore) -> None:
        written = row(bucket_start_ms(fresh_bucket()), namespace_id())
        key, now_ms = (written.namespace_id, written.task_id), written.due_ms
        many = [attempt(*key, number, started_ms=now_ms, worker="w") for number in range(1, ATTEMPTS_READ_MAX + 11)]
        await tasks.record_attempts(many)
        assert await tasks.attempts(*key) == many[10:]
        assert await tasks.attempts(*key, 3) == many[-3:]

    async def test_nothing_to_record(self, tasks: TaskStore) -> None:
        await tasks.record_attempts([])


async def all_partitions(
    tasks: TaskStore, namespace: bytes, queue: str, buckets: tuple[int, int], descending: bool = False
) -> list[Partition]:
    return await tasks.partitions(namespace, queue, *buckets, 10_000, descending)


class TestPartitions:
    async def test_those_of_a_queue_are_found_in_order_from_either_end(self, tasks: TaskStore) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        places = [(bucket, 3), (bucket, 200), (bucket + 1, 0), (bucket + 3_000, 7)]  # the last one days later
        for at, shard in reversed(places):
            await put(
                tasks, row(bucket_start_ms(at) + 5, namespace, shard), row(bucket_start_ms(at) + 9, namespace, shard)
            )
        window = (bucket, bucket + 3_001)
        assert await all_partitions(tasks, namespace, "default", window) == places
        assert await all_partitions(tasks, namespace, "default", window, True) == places[::-1]
        assert await tasks.partitions(namespace, "default", *window, 3) == places[:3]
        assert await tasks.partitions(namespace, "default", *window, 3, True) == places[:0:-1]

    async def test_the_first_bucket_is_included_and_the_last_is_not(self, tasks: TaskStore) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        for at in range(3):
            await put(tasks, row(bucket_start_ms(bucket + at), namespace))
        assert await all_partitions(tasks, namespace, "default", (bucket + 1, bucket + 2)) == [(bucket + 1, SHARD)]
        assert await all_partitions(tasks, namespace, "default", (bucket + 1, bucket + 1)) == []

    async def test_other_queues_and_namespaces_have_their_own(self, tasks: TaskStore) -> None:
        bucket, namespace, other = fresh_bucket(), namespace_id(), namespace_id()
        due_ms, body = bucket_start_ms(bucket), TaskBody("default", "elsewhere", "t")
        await put(tasks, row(due_ms, namespace), row(due_ms, namespace, 4, body=body), row(due_ms, other, 5))
        window = (bucket, bucket + 1)
        assert await all_partitions(tasks, namespace, "default", window) == [(bucket, SHARD)]
        assert await all_partitions(tasks, namespace, "elsewhere", window) == [(bucket, 4)]
        assert await all_partitions(tasks, other, "default", window) == [(bucket, 5)]
        assert await all_partitions(tasks, other, "elsewhere", window) == []

    async def test_what_was_found_once_is_found_when_more_is_inserted(self, tasks: TaskStore) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        for at in range(3):
            await put(tasks, row(bucket_start_ms(bucket) + at, namespace))
            assert await all_partitions(tasks, namespace, "default", (bucket, bucket + 1)) == [(bucket, SHARD)]

    async def test_a_row_that_has_moved_is_found_at_its_new_place(self, tasks: TaskStore) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        stored = row(bucket_start_ms(bucket), namespace)
        moved = TaskRow(bucket_start_ms(bucket + 2), namespace, stored.task_id, stored.body, 1)
        await put(tasks, stored)
        await put(tasks, moved)
        assert await all_partitions(tasks, namespace, "default", (bucket + 1, bucket + 3)) == [(bucket + 2, SHARD)]


def start_of(due_ms: int) -> bytes:
    """Before all rows of this due time."""
    return RowRef(due_ms, bytes(16), bytes(16), 0, 0).pack()


class TestScan:
    async def test_many_partitions_are_read_at_once_in_either_direction(self, tasks: TaskStore) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        partitions = [(bucket, 3), (bucket, 9), (bucket + 1, 3)]
        rows = {p: [row(bucket_start_ms(p[0]) + ms, namespace, p[1]) for ms in (1, 2, 3)] for p in partitions}
        await put(tasks, *(each for group in rows.values() for each in group))
        wanted = [*partitions, (bucket + 1, 8)]
        pages = await tasks.scan(wanted, start_of(0), 2)
        assert [[t.row for t in page.tasks] for page in pages] == [*(rows[p][:2] for p in partitions), []]
        assert [page.complete for page in pages] == [False, False, False, True]
        pages = await tasks.scan(wanted, start_of(bucket_end_ms(bucket + 1)), 2, descending=True)
        assert [[t.row for t in page.tasks] for page in pages] == [*(rows[p][:0:-1] for p in partitions), []]
        assert [page.complete for page in pages] == [False, False, False, True]

    @pytest.mark.parametrize("descending", [False, True])
    async def test_pages_of_every_size_bring_each_row_once(self, tasks: TaskStore, descending: bool) -> None:
        bucket, namespaces = fresh_bucket(), [namespace_id(), namespace_id()]
        due_ms = bucket_start_ms(bucket)
        rows = [row(due_ms + ms // 2, namespaces[ms % 2], low_bits=ms) for ms in range(9)]
        await put(tasks, *rows)
        rows.sort(key=lambda each: each.ref, reverse=descending)
        for limit in (1, 2, 8, 9, 10):
            found: list[TaskRow] = []
            start = start_of(bucket_end_ms(bucket) if descending else 0)
            for _ in range(20):
                (page,) = await tasks.scan([(bucket, SHARD)], start, limit, descending)
                assert len(page.tasks) <= limit
                found += [stored.row for stored in page.tasks]
                if page.complete:
                    break
                start = page.tasks[-1].row.ref
            assert found == rows

    @pytest.mark.parametrize("descending", [False, True])
    async def test_facts_are_told_and_facts_without_a_row_are_passed_over(
        self, tasks: TaskStore, descending: bool
    ) -> None:
        bucket, namespace = fresh_bucket(), namespace_id()
        bare = [row(bucket_start_ms(bucket) + ms, namespace) for ms in (1, 2, 3, 5, 6, 7)]
        stored = row(bucket_start_ms(bucket) + 4, namespace)
        await put(tasks, stored)
        await tasks.mark([Mark(each.ref, FactKind.DISPATCHED, 5) for each in [stored, *bare]])
        start = start_of(bucket_end_ms(bucket) if descending else 0)
        (page,) = await tasks.scan([(bucket, SHARD)], start, 2, descending)
        assert page.tasks == [StoredTask(stored, Facts(dispatched_ms=5))]
