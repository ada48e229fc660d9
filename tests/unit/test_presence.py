"""What a writer remembers of presences."""

from __future__ import annotations

from bucketsched.core.presence import KnownPresences, Presence, presence_of
from bucketsched.core.task import BUCKET_MS, TaskBody, TaskRow
from bucketsched.core.task_id import mint


def row(minute: int, shard: int = 0, queue: str = "q", namespace: bytes = b"n" * 16, ms: int = 0) -> TaskRow:
    due_ms = minute * BUCKET_MS + ms
    return TaskRow(due_ms, namespace, mint(due_ms, shard, ms), TaskBody("n", queue, "t"))


def test_each_is_missing_once_until_it_is_stored() -> None:
    known = KnownPresences()
    rows = [row(5), row(5, ms=1), row(5, shard=1), row(6), row(5, queue="r"), row(5, namespace=b"m" * 16)]
    missing = known.missing(rows)
    assert len(missing) == 5
    assert set(missing) == {presence_of(each) for each in rows}
    assert known.missing(rows) == missing
    known.add(missing)
    assert known.missing(rows) == []
    assert known.missing([row(7)]) == [Presence(b"n" * 16, "q", 7, 0)]


def test_what_is_removed_is_missing_again() -> None:
    known = KnownPresences()
    known.add(known.missing([row(5), row(6)]))
    known.forget([presence_of(row(5))])
    assert known.missing([row(5), row(6)]) == [presence_of(row(5))]


def test_it_does_not_grow_without_bound() -> None:
    known = KnownPresences(count_max=3)
    for minute in range(10):
        known.add(known.missing([row(minute)]))
    assert len([m for m in range(10) if not known.missing([row(m)])]) <= 3


def test_a_day_is_that_of_utc() -> None:
    assert [presence_of(row(minute)).day for minute in (0, 1_439, 1_440)] == [0, 0, 1]
