"""Rows, facts and what they fold to; cluster constants and checkpoints."""

from __future__ import annotations

import uuid
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core import failpoints
from bucketsched.core import task_id as ids
from bucketsched.core.checkpoint import Checkpoint, record_hash
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import ConfigError
from bucketsched.core.task import (
    BUCKET_MS,
    NO_FACTS,
    REF_BYTES,
    Facts,
    RowRef,
    TaskBody,
    TaskRow,
    TaskState,
    bucket_end_ms,
    bucket_of,
    bucket_start_ms,
    fold,
)

ID = st.binary(min_size=16, max_size=16)
refs = st.builds(RowRef, st.integers(0, 2**63), ID, ID, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@given(refs)
def test_a_reference_survives_packing(ref: RowRef) -> None:
    packed = ref.pack()
    assert len(packed) == REF_BYTES
    assert RowRef.unpack(packed) == ref


@given(refs, refs)
def test_packed_references_sort_as_rows_do(a: RowRef, b: RowRef) -> None:
    assert (a.pack() < b.pack()) == (tuple(a) < tuple(b))


@given(st.integers(0, 2**52))
def test_a_bucket_is_the_minute_of_its_due_times(due_ms: int) -> None:
    bucket = bucket_of(due_ms)
    assert bucket_start_ms(bucket) <= due_ms < bucket_end_ms(bucket)
    assert bucket_end_ms(bucket) == bucket_start_ms(bucket + 1) == bucket_start_ms(bucket) + BUCKET_MS


def test_a_row_knows_its_reference_and_bucket() -> None:
    row = TaskRow(120_001, b"n" * 16, ids.mint(120_001, 5, 1), TaskBody("n", "q", "t"), 2, 3)
    assert RowRef.unpack(row.ref) == (120_001, b"n" * 16, row.task_id, 2, 3)
    assert row.bucket == 2


def test_rows_are_equal_by_what_is_stored() -> None:
    task_id = ids.mint(1, 1, 1)
    assert TaskRow(1, b"n" * 16, task_id, TaskBody("n", "q", "t")) == TaskRow(
        1, b"n" * 16, task_id, TaskBody("n", "q", "t")
    )


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (Facts(), TaskState.PENDING),
        (Facts(dispatched_ms=1), TaskState.DISPATCHED),
        (Facts(dispatched_ms=0), TaskState.DISPATCHED),
        (Facts(cancelled_ms=0), TaskState.CANCELLED),
        (Facts(failed_ms=0, failed_reason="too large"), TaskState.FAILED),
    ],
)
def test_facts_fold_to_a_state(facts: Facts, state: TaskState) -> None:
    assert fold(facts) is state
    assert facts.settled == (state is not TaskState.PENDING)


def test_only_a_row_without_any_fact_may_be_dispatched() -> None:
    names = ("dispatched_ms", "cancelled_ms", "failed_ms", "moved_to_ms")
    for values in product((None, 0, 5), repeat=len(names)):
        facts = Facts(**dict(zip(names, values, strict=True)))
        assert facts.settled == any(value is not None for value in values)
    assert not NO_FACTS.settled


def constants(**given: Any) -> ClusterConstants:
    return ClusterConstants(uuid.UUID(int=1), **given)


@pytest.mark.parametrize(("shards", "ranges"), [(256, 64), (1, 1), (12, 4), (4096, 1)])
def test_ranges_cut_the_shards_into_equal_blocks(shards: int, ranges: int) -> None:
    cluster = constants(shards=shards, ranges=ranges)
    covered = [shard for range_id in range(ranges) for shard in cluster.shards_of(range_id)]
    assert covered == list(range(shards))
    assert all(shard in cluster.shards_of(cluster.range_of(shard)) for shard in range(shards))


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"shards": 0}, "shards"),
        ({"shards": 4097, "ranges": 1}, "shards"),
        ({"ranges": 0}, "ranges"),
        ({"ranges": 3}, "ranges"),
        ({"shards": 4, "ranges": 8}, "ranges"),
        ({"horizon_ms": 999}, "horizon"),
        ({"horizon_ms": 3_600_001}, "horizon"),
        ({"grace_ms": 999}, "grace"),
        ({"grace_ms": 86_400_001}, "grace"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": 1025}, "lanes"),
        ({"retention_ms": 4_199_999}, "retention"),
    ],
)
def test_constants_that_can_not_work_are_refused_in_one_line(given: dict[str, int], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        constants(**given)
    assert "\n" not in str(caught.value)


def test_two_clusters_share_neither_journal_nor_fencing() -> None:
    one, other = ClusterConstants(uuid.UUID(int=1)), ClusterConstants(uuid.UUID(int=2))
    assert one.journal_name != other.journal_name
    assert one.transactional_id(0) != other.transactional_id(0)
    assert one.transactional_id(0) != one.transactional_id(1)


checkpoint_orders = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 2))


@given(checkpoint_orders, checkpoint_orders)
def test_checkpoints_are_ordered_by_epoch_then_sequence(a: tuple[int, int], b: tuple[int, int]) -> None:
    first, second = (Checkpoint(*order, "j", 0, -1, b"", 0).order for order in (a, b))
    assert (first < second) == (a < b)
    assert 0 < first < 2**63


@pytest.mark.parametrize("order", [(2**31, 0), (0, 2**32), (-1, 0), (0, -1)])
def test_a_checkpoint_beyond_its_bounds_is_a_bug(order: tuple[int, int]) -> None:
    with pytest.raises(AssertionError):
        _ = Checkpoint(*order, "j", 0, -1, b"", 0).order


@given(st.binary(), st.binary())
def test_a_record_is_known_by_its_hash(a: bytes, b: bytes) -> None:
    assert len(record_hash(a)) == 16
    assert (record_hash(a) == record_hash(b)) == (a == b)


def test_failpoints_tell_their_hook_and_refuse_unknown_names() -> None:
    reached: list[str] = []
    failpoints.reach("create.stored")
    failpoints.install(reached.append)
    try:
        failpoints.reach("create.stored")
        with pytest.raises(AssertionError):
            failpoints.reach("nowhere")
    finally:
        failpoints.install(None)
    failpoints.reach("create.stored")
    assert reached == ["create.stored"]
