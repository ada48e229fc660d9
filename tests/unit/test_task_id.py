"""A task's id is where its row is."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core import task_id as ids
from bucketsched.core.errors import InvalidArgument
from bucketsched.core.task import BUCKET_MS

due_times = st.integers(0, (ids.MINUTE_MAX + 1) * BUCKET_MS - 1)
shards = st.integers(0, ids.SHARDS_MAX - 1)
bits = st.integers(0, 2**80 - 1)


@given(due_times, shards, bits)
def test_an_id_carries_due_time_and_shard(due_ms: int, shard: int, random_bits: int) -> None:
    raw = ids.mint(due_ms, shard, random_bits)
    assert ids.home_of(raw) == (due_ms, shard)
    assert ids.shard_in(raw) == shard


@given(due_times, shards, bits)
def test_an_id_is_a_uuid_of_version_8_and_survives_its_text(due_ms: int, shard: int, random_bits: int) -> None:
    raw = ids.mint(due_ms, shard, random_bits)
    parsed = uuid.UUID(bytes=raw)
    assert (parsed.version, parsed.variant) == (8, uuid.RFC_4122)
    assert ids.text(raw) == str(parsed)
    assert ids.parse(ids.text(raw), ids.SHARDS_MAX) == raw


@given(due_times, due_times, shards, shards, bits, bits)
def test_ids_sort_by_due_time(due_a: int, due_b: int, shard_a: int, shard_b: int, bits_a: int, bits_b: int) -> None:
    raw_a, raw_b = ids.mint(due_a, shard_a, bits_a), ids.mint(due_b, shard_b, bits_b)
    if due_a != due_b:
        assert (raw_a < raw_b) == (due_a < due_b) == (ids.text(raw_a) < ids.text(raw_b))


@given(due_times, shards, st.integers(0, 2**62 - 1), st.integers(0, 2**62 - 1))
def test_all_62_random_bits_count(due_ms: int, shard: int, bits_a: int, bits_b: int) -> None:
    assert (ids.mint(due_ms, shard, bits_a) == ids.mint(due_ms, shard, bits_b)) == (bits_a == bits_b)


def test_ids_of_one_millisecond_and_shard_do_not_collide() -> None:
    generator = random.SystemRandom()
    minted = {ids.mint(1_764_472_099_123, 7, generator.getrandbits(62)) for _ in range(10_000)}
    assert len(minted) == 10_000


GOOD = "01c0b8d2-9c40-8007-9d0e-5f0c1a2b3c4d"


def test_a_good_id_is_parsed_in_any_case() -> None:
    assert ids.parse(GOOD, 256) == ids.parse(GOOD.upper(), 256) == bytes.fromhex(GOOD.replace("-", ""))


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x" * 36,
        GOOD.replace("-", ""),
        "{" + GOOD + "}",
        "urn:uuid:" + GOOD,
        GOOD + "\n",
        GOOD[:-1] + "\n",
        " " + GOOD[1:],
        "+" + GOOD[1:],
        "0_1" + GOOD[3:],
        "0x1" + GOOD[3:],
        "٠" + GOOD[1:],
        "０" + GOOD[1:],
        GOOD[:7] + "--" + GOOD[9:],
        GOOD.replace("-", "/"),
        GOOD * 30_000,
    ],
)
def test_other_spellings_are_refused(value: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        ids.parse(value, 256, "id")
    assert caught.value.field == "id"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("01c0b8d2-9c40-4007-9d0e-5f0c1a2b3c4d", "version 8"),
        ("01c0b8d2-9c40-7007-9d0e-5f0c1a2b3c4d", "version 8"),
        ("01c0b8d2-9c40-8007-1d0e-5f0c1a2b3c4d", "version 8"),
        ("01c0b8d2-9c40-8007-fd0e-5f0c1a2b3c4d", "version 8"),
        ("00000000-0000-0000-0000-000000000000", "version 8"),
        ("01c0b8d2-ea60-8007-9d0e-5f0c1a2b3c4d", "millisecond below 60000"),
        ("01c0b8d2-ffff-8007-9d0e-5f0c1a2b3c4d", "millisecond below 60000"),
        ("01c0b8d2-9c40-8100-9d0e-5f0c1a2b3c4d", "shard below 256"),
    ],
)
def test_uuids_that_this_cluster_did_not_mint_are_refused(value: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        ids.parse(value, 256)


@given(st.text(max_size=40))
def test_parsing_never_fails_in_another_way(value: str) -> None:
    try:
        assert ids.text(ids.parse(value, 4)) == value.lower()
    except InvalidArgument:
        pass
