"""The contract of CheckpointStore."""

from __future__ import annotations

import asyncio
import secrets

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_adapters import StoresUnderTest

from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint, CheckpointCorrupt, epoch_of, sequence_of
from bucketsched.ports import CheckpointStore


def fresh_range() -> int:
    """A range that no other test uses."""
    return 1_000 + secrets.randbelow(1 << 30)


def checkpoint(epoch: int, sequence: int, offset: int = 0) -> Checkpoint:
    return Checkpoint(epoch, sequence, "journal", 3, offset, b"h" * 16, 29_000_000, {29_000_000: 1_740_000_000_001})


async def test_a_range_without_checkpoint_is_none(checkpoints: CheckpointStore) -> None:
    assert await checkpoints.load(fresh_range()) is None


async def test_what_is_saved_is_loaded_unchanged(checkpoints: CheckpointStore) -> None:
    range_id = fresh_range()
    saved = Checkpoint(
        epoch=(1 << 31) - 1,
        sequence=(1 << 32) - 2,
        journal="bucketsched-x-journal",
        lane=31,
        applied_offset=1 << 40,
        applied_hash=bytes(range(16)),
        first_open_bucket=29_000_000,
        low_due_ms={29_000_000: 1_740_000_000_001, 29_000_003: 1_740_000_180_000},
    )
    await checkpoints.save(range_id, saved)
    assert await checkpoints.load(range_id) == saved


async def test_the_first_checkpoint_of_a_cluster(checkpoints: CheckpointStore) -> None:
    range_id = fresh_range()
    first = Checkpoint(0, 0, "journal", 0, NO_OFFSET, b"", 29_000_000)
    await checkpoints.save(range_id, first)
    assert await checkpoints.load(range_id) == first


async def test_a_later_sequence_replaces(checkpoints: CheckpointStore) -> None:
    range_id = fresh_range()
    await checkpoints.save(range_id, checkpoint(4, 1))
    await checkpoints.save(range_id, checkpoint(4, 2))
    assert await checkpoints.load(range_id) == checkpoint(4, 2)


async def test_a_zombies_late_write_has_no_effect(checkpoints: CheckpointStore) -> None:
    """Its sequence may be far ahead: the epoch decides."""
    range_id = fresh_range()
    await checkpoints.save(range_id, checkpoint(5, 0))
    await checkpoints.save(range_id, checkpoint(4, 1_000_000, offset=99))
    assert await checkpoints.load(range_id) == checkpoint(5, 0)


async def test_a_shorter_or_emptier_later_one_wins_whole(checkpoints: CheckpointStore) -> None:
    range_id = fresh_range()
    await checkpoints.save(range_id, checkpoint(1, 1))
    later = Checkpoint(1, 2, "", 0, NO_OFFSET, b"", 0)
    await checkpoints.save(range_id, later)
    assert await checkpoints.load(range_id) == later


async def test_ranges_do_not_meet(checkpoints: CheckpointStore) -> None:
    one, two = fresh_range(), fresh_range()
    await checkpoints.save(one, checkpoint(1, 1))
    assert await checkpoints.load(two) is None


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b""])
async def test_one_that_can_not_be_decoded_says_so_and_can_be_replaced(stores: StoresUnderTest, body: bytes) -> None:
    """No bytes at all are a message of their own, but not the checkpoint that the write said it was."""
    range_id, order = fresh_range(), checkpoint(7, 12).order
    await stores.plant_checkpoint(range_id, order, body)
    with pytest.raises(CheckpointCorrupt) as caught:
        await stores.checkpoints.load(range_id)
    assert (epoch_of(caught.value.order), sequence_of(caught.value.order)) == (7, 12)
    await stores.checkpoints.save(range_id, checkpoint(7, 11))
    with pytest.raises(CheckpointCorrupt):
        await stores.checkpoints.load(range_id)
    await stores.checkpoints.save(range_id, checkpoint(7, 13))
    assert await stores.checkpoints.load(range_id) == checkpoint(7, 13)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    orders=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12, unique=True),
    at_once=st.booleans(),
)
async def test_the_highest_order_wins_whatever_the_order_of_arrival(
    checkpoints: CheckpointStore, orders: list[tuple[int, int]], at_once: bool
) -> None:
    range_id = fresh_range()
    saves = [checkpoints.save(range_id, checkpoint(*order, offset=i)) for i, order in enumerate(orders)]
    if at_once:
        await asyncio.gather(*saves)
    else:
        for save in saves:
            await save
    highest = max(orders)
    assert await checkpoints.load(range_id) == checkpoint(*highest, offset=orders.index(highest))
