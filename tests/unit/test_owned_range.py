"""What a range knows: nothing settled is queued again, nothing stored is overlooked, memory is given back."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bucketsched.core import task_id as ids
from bucketsched.core.task import NO_FACTS, FactKind, Facts, StoredTask, TaskBody, TaskRow, bucket_of
from bucketsched.poller import owned_range
from bucketsched.poller.cursor import Cursor
from bucketsched.poller.limits import LIKELY_LATE_MS, RECENT_MS, REMEMBER_MS
from bucketsched.poller.open_buckets import BACKLOG_BUCKETS_MAX
from bucketsched.poller.owned_range import MARKED, QUEUED, OwnedRange, Phase
from bucketsched.ports import HintAnswer, Lease, Page

NS = bytes(16)
NOW = 1_750_000_020_000
BUCKET = bucket_of(NOW)


def row_at(due_ms: int, number: int = 0) -> TaskRow:
    return TaskRow(due_ms, NS, ids.mint(due_ms, 0, number), TaskBody("n", "q", "t"))


def active(heap_rows_max: int = 1_000) -> OwnedRange:
    owned = OwnedRange(Lease(0, 1, ()), [0], heap_rows_max)
    owned.open(BUCKET, {}, NOW)
    owned.phase = Phase.ACTIVE
    owned.buckets.extend(NOW, NOW)
    return owned


def read(owned: OwnedRange, *tasks: StoredTask, complete: bool = True) -> None:
    if owned.buckets.is_read(BUCKET):
        owned.buckets.rewind(BUCKET * 60_000, 0)
    cursor = cursor_of(owned)
    cursor.reading = True
    owned.absorb(cursor, Page(list(tasks), complete), (BUCKET + 1) * 60_000)


def cursor_of(owned: OwnedRange) -> Cursor:
    cursor = owned.buckets.cursor(BUCKET, 0)
    assert cursor is not None
    return cursor


def settle(owned: OwnedRange, row: TaskRow) -> None:
    owned.settle(row.ref, FactKind.DISPATCHED)
    owned.marked(row.ref)


def test_a_row_that_is_read_twice_is_queued_once() -> None:
    owned, row = active(), row_at(NOW + 5_000)
    read(owned, StoredTask(row))
    read(owned, StoredTask(row))
    assert len(owned.heap) == 1


def test_an_id_is_forgotten_only_when_it_is_marked_and_old() -> None:
    owned, row = active(), row_at(NOW + 1_000)
    read(owned, StoredTask(row))
    owned.settle(row.ref, FactKind.DISPATCHED)
    owned.sweep(NOW + 3_600_000)
    assert owned.status(row.ref) == FactKind.DISPATCHED
    owned.marked(row.ref)
    owned.sweep(NOW + 1_000 + REMEMBER_MS)
    assert owned.status(row.ref) == FactKind.DISPATCHED + MARKED
    owned.sweep(NOW + 1_001 + REMEMBER_MS)
    assert owned.status(row.ref) is None


def test_an_id_is_not_forgotten_while_a_read_from_before_its_mark_is_in_flight() -> None:
    owned, row = active(), row_at(NOW + 1_000)
    read(owned, StoredTask(row))
    number = owned.begin_read()
    settle(owned, row)
    owned.sweep(NOW + 3_600_000)
    assert not owned.admit(StoredTask(row)), "the read brings it without its mark"
    owned.end_read(number)
    owned.sweep(NOW + 3_600_000)
    assert owned.status(row.ref) is None


def test_a_read_that_begins_after_the_mark_holds_nothing_back() -> None:
    owned, row = active(), row_at(NOW + 1_000)
    read(owned, StoredTask(row))
    settle(owned, row)
    owned.begin_read()
    owned.sweep(NOW + 3_600_000)
    assert owned.status(row.ref) is None


def test_a_far_row_is_forgotten_as_soon_as_no_read_is_in_flight() -> None:
    owned, row = active(), row_at(NOW + 86_400_000)
    number = owned.begin_read()
    settle(owned, row)
    owned.sweep(NOW)
    assert owned.status(row.ref) is not None
    owned.end_read(number)
    owned.sweep(NOW)
    assert owned.status(row.ref) is None


def test_a_hint_of_a_row_that_may_be_forgotten_is_not_believed() -> None:
    owned, row = active(), row_at(NOW + 1_000)
    read(owned, StoredTask(row))
    settle(owned, row)
    owned.sweep(NOW + 1_001 + REMEMBER_MS)
    assert owned.hint(row) is None
    assert owned.hint(row_at(NOW - 1)) is None, "due before this owner began"


def test_a_hint_at_the_edge_of_a_partial_page_is_not_believed() -> None:
    owned = active()
    read(owned, StoredTask(row_at(NOW + 1_000)), complete=False)
    assert owned.hint(row_at(NOW + 1_000, 7)) is None
    assert owned.hint(row_at(NOW + 999, 7)) is HintAnswer.TAKEN
    assert len(owned.heap) == 2
    assert owned.hint(row_at(NOW + 1_001, 7)) is HintAnswer.TAKEN
    assert len(owned.heap) == 2, "behind the edge: it will be read"


def test_a_hint_during_a_read_waits_for_its_end() -> None:
    owned = active()
    cursor_of(owned).reading = True
    seen, unseen, cancelled = row_at(NOW + 1_000), row_at(NOW + 2_000), row_at(NOW + 3_000)
    assert [owned.hint(r) for r in (seen, unseen, cancelled)] == [HintAnswer.TAKEN] * 3
    assert len(owned.heap) == 0
    read(owned, StoredTask(seen), StoredTask(cancelled, Facts(cancelled_ms=NOW)))
    assert len(owned.heap) == 2
    assert owned.status(unseen.ref) == QUEUED
    assert owned.status(cancelled.ref) == FactKind.CANCELLED + MARKED


@pytest.mark.parametrize("phase", [Phase.RECOVERING, Phase.STOPPING, Phase.GONE, Phase.ALARMED])
def test_only_an_active_range_takes_hints(phase: Phase) -> None:
    owned = active()
    owned.phase = phase
    assert owned.hint(row_at(NOW + 1_000)) is HintAnswer.NOT_READY


def test_a_full_range_rewinds_instead_of_taking_a_hint() -> None:
    owned = active(heap_rows_max=2)
    read(owned)
    rows = [row_at(NOW + 1_000 + i) for i in range(5)]
    assert [owned.hint(row) for row in rows] == [HintAnswer.TAKEN] * 5
    assert owned.resident_rows == 3
    cursor = cursor_of(owned)
    assert (cursor.edge_ms, cursor.complete) == (NOW + 1_002, False)


def test_low_due_stops_at_the_first_row_that_is_not_journaled_and_trails_present_and_scan() -> None:
    owned = active()
    first, second = row_at(NOW + 100, 1), row_at(NOW + 200, 2)
    read(owned, StoredTask(first), StoredTask(second))
    owned.settle(first.ref, FactKind.DISPATCHED)
    late = NOW + 1_000_000
    owned.scanned_ms = late
    assert owned.open_low_due(late) == {BUCKET: second.due_ms}
    owned.settle(second.ref, FactKind.DISPATCHED)
    assert owned.open_low_due(late) == {BUCKET: (BUCKET + 1) * 60_000}
    assert owned.open_low_due(NOW + 31_000) == {BUCKET: NOW + 1_000}
    owned.scanned_ms = NOW + 30_500
    assert owned.open_low_due(late) == {BUCKET: NOW + 500}, "what no scan has seen is left to the next owner"
    owned.scanned_ms = late
    owned.buckets.rewind(NOW + 50, 0)
    assert owned.open_low_due(late) == {BUCKET: NOW + 50}


def test_a_stuck_row_holds_back_its_own_bucket_only() -> None:
    owned = active()
    read(owned, StoredTask(row_at(NOW + 100)))
    owned.buckets.extend(NOW, NOW + 180_000)
    for cursor in list(owned.buckets.unread()):
        cursor.reading = True
        owned.absorb(cursor, Page([], True), (cursor.bucket + 1) * 60_000)
    owned.scanned_ms = NOW + 3_600_000
    lows = owned.open_low_due(NOW + 3_600_000)
    assert lows.pop(BUCKET) == NOW + 100
    assert lows == {b: (b + 1) * 60_000 for b in range(BUCKET + 1, BUCKET + 4)}


def test_a_backlog_is_begun_oldest_first_and_a_few_buckets_at_a_time_and_never_before_the_present() -> None:
    owned = OwnedRange(Lease(0, 1, ()), [0], 10)
    owned.open(BUCKET - 1_440, {}, NOW)
    owned.buckets.extend(NOW, NOW + 60_000)
    present, backlog = [BUCKET, BUCKET + 1], list(range(BUCKET - 1_440, BUCKET - 1_440 + BACKLOG_BUCKETS_MAX))
    assert owned.buckets.all_begun() == backlog + present
    owned.phase = Phase.ACTIVE
    for _ in range(BACKLOG_BUCKETS_MAX):
        cursor = min(owned.buckets.unread(), key=lambda c: c.bucket)
        cursor.reading = True
        owned.absorb(cursor, Page([], True), (cursor.bucket + 1) * 60_000)
    owned.buckets.extend(NOW, NOW + 60_000)
    assert owned.buckets.all_begun()[:-2] == list(range(BUCKET - 1_440, BUCKET - 1_440 + 2 * BACKLOG_BUCKETS_MAX))
    assert set(owned.open_low_due(NOW)) == set(backlog)


def test_a_closing_bucket_admits_nothing() -> None:
    owned = active()
    read(owned)
    owned.closing = BUCKET
    assert owned.hint(row_at(NOW + 1_000)) is None
    owned.close(BUCKET)
    assert owned.closing is None
    assert owned.first_open_bucket == BUCKET + 1


def test_a_read_beside_a_closing_queues_nothing_in_its_bucket() -> None:
    owned, late = active(), row_at(NOW + 1_000)
    read(owned)
    owned.closing = BUCKET
    assert not owned.admit(StoredTask(late))
    owned.close(BUCKET)
    assert not owned.admit(StoredTask(late))


@pytest.mark.parametrize("fails", [True, False])
def test_hints_that_were_taken_during_a_read_survive_it(fails: bool) -> None:
    """One at the edge of the page: it may have been read, or not, so its place is read again."""
    owned = active()
    first = row_at(NOW + 1_000, 1)
    read(owned, StoredTask(first), complete=False)
    cursor = cursor_of(owned)
    cursor.reading = True
    edge, behind = row_at(NOW + 2_000, 3), row_at(NOW + 500, 3)
    assert [owned.hint(edge), owned.hint(behind)] == [HintAnswer.TAKEN] * 2
    if fails:
        owned.end_page(cursor)
    else:
        owned.absorb(cursor, Page([StoredTask(row_at(NOW + 2_000, 2))], False), (BUCKET + 1) * 60_000)
    assert owned.status(behind.ref) == QUEUED
    assert owned.status(edge.ref) == QUEUED or cursor_of(owned).edge_ms < edge.due_ms


def test_hints_beyond_what_may_be_held_are_asked_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_range, "HELD_HINTS_MAX", 2)
    owned = active()
    cursor_of(owned).reading = True
    answers = [owned.hint(row_at(NOW + 1_000 + i)) for i in range(3)]
    assert answers == [HintAnswer.TAKEN, HintAnswer.TAKEN, HintAnswer.NOT_READY]
    read(owned)
    assert owned.hint(row_at(NOW + 5_000)) is HintAnswer.TAKEN


def test_a_bucket_with_queued_rows_is_never_closed() -> None:
    owned = active()
    read(owned, StoredTask(row_at(NOW + 1_000)))
    with pytest.raises(AssertionError):
        owned.close(BUCKET)


def test_what_a_checkpoint_says_is_done_is_not_read_again() -> None:
    owned = OwnedRange(Lease(0, 1, ()), [0], 10)
    owned.open(BUCKET, {BUCKET: (BUCKET + 1) * 60_000, BUCKET + 1: (BUCKET + 1) * 60_000 + 7}, NOW)
    owned.buckets.extend(NOW, NOW + 60_000)
    assert owned.buckets.is_read(BUCKET)
    begun = owned.buckets.cursor(BUCKET + 1, 0)
    assert begun is not None
    assert begun.edge_ms == (BUCKET + 1) * 60_000 + 6


def shadow(*tasks: StoredTask) -> OwnedRange:
    """Read ahead of its lease."""
    owned = OwnedRange(Lease(0, 1, ()), [0], 1_000)
    owned.phase = Phase.PRELOADING
    owned.open(BUCKET, {}, NOW)
    owned.buckets.extend(NOW, NOW)
    read(owned, *tasks)
    return owned


def test_what_was_read_ahead_is_kept_but_for_what_the_journal_says() -> None:
    settled, queued = row_at(NOW + 1_000, 1), row_at(NOW + 2_000, 2)
    owned = shadow(StoredTask(settled), StoredTask(queued))
    owned.adopt(Lease(0, 5, ()))
    owned.replayed(settled.ref, FactKind.DISPATCHED)
    owned.resume(BUCKET, NOW + 1_500)
    owned.phase = Phase.ACTIVE
    assert owned.epoch == 5
    assert owned.status(settled.ref) == FactKind.DISPATCHED + MARKED
    assert owned.status(queued.ref) == QUEUED
    assert owned.queued[BUCKET] == 1
    assert (owned.scanned_ms, owned.remembered_from_ms) == (NOW, NOW + 1_500)


def test_a_read_from_before_the_lease_keeps_what_was_replayed_from_being_forgotten() -> None:
    row = row_at(NOW + 1_000)
    owned = shadow()
    number = owned.begin_read()
    owned.adopt(Lease(0, 5, ()))
    owned.replayed(row.ref, FactKind.DISPATCHED)
    owned.resume(BUCKET, NOW + 1_500)
    owned.sweep(NOW + 3_600_000)
    assert not owned.admit(StoredTask(row)), "the read brings it without its mark"
    owned.end_read(number)
    owned.sweep(NOW + 3_600_000)
    assert owned.status(row.ref) is None


def test_what_was_read_ahead_of_a_bucket_that_was_closed_meanwhile_is_dropped() -> None:
    late = row_at(NOW + 1_000, 1)
    owned = shadow(StoredTask(late))
    owned.buckets.rewind(BUCKET * 60_000, 0)
    cursor = cursor_of(owned)
    cursor.reading = True
    owned.adopt(Lease(0, 5, ()))
    owned.resume(BUCKET + 1, NOW + 61_000)
    owned.phase = Phase.ACTIVE
    assert owned.status(late.ref) is None
    assert owned.absorb(cursor, Page([StoredTask(row_at(NOW + 2_000, 2))], True), (BUCKET + 1) * 60_000) == 0
    assert not owned.queued[BUCKET]
    assert owned.open_low_due(NOW + 61_000) == {}
    for row in owned.heap.pop_due(NOW + 61_000, 10):
        owned.leave(row)
    assert owned.resident_rows == 0


class Range(RuleBasedStateMachine):
    """One partition with reads that see the past, hints that come late and again, cancels, dispatches and marks."""

    @initialize()
    def begin(self) -> None:
        self.now = NOW
        self.owned = active(heap_rows_max=6)
        self.stored: dict[bytes, TaskRow] = {}
        self.settled: dict[bytes, FactKind] = {}
        self.marked: set[bytes] = set()
        self.hints: list[TaskRow] = []
        self.taken: set[bytes] = set()
        self.page: tuple[int, list[StoredTask], bool] | None = None
        self.lookup: tuple[int, StoredTask] | None = None
        self.queued_before: set[bytes] = set()

    def snapshot(self, row: TaskRow) -> StoredTask:
        return StoredTask(row, Facts(dispatched_ms=1) if row.ref in self.marked else NO_FACTS)

    @rule(delay=st.integers(0, 30_000), number=st.integers(0, 3))
    def create(self, delay: int, number: int) -> None:
        row = row_at(min(self.now + delay, (BUCKET + 1) * 60_000 - 1), number)
        self.stored.setdefault(row.ref, row)
        self.hints.append(row)

    @precondition(lambda self: self.hints)
    @rule(data=st.data())
    def hint(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.hints))
        answer = self.owned.hint(row)
        if answer is HintAnswer.TAKEN:
            self.taken.add(row.ref)
        elif self.lookup is None:
            self.lookup = (self.owned.begin_read(), self.snapshot(row))
            self.taken.add(row.ref)

    @precondition(lambda self: self.lookup is not None)
    @rule()
    def end_lookup(self) -> None:
        assert self.lookup is not None
        number, task = self.lookup
        self.owned.admit(task)
        self.owned.end_read(number)
        self.lookup = None

    @precondition(lambda self: self.page is None and any(True for _ in self.owned.buckets.unread()))
    @rule(limit=st.integers(1, 3))
    def begin_page(self, limit: int) -> None:
        cursor = next(self.owned.buckets.unread())
        cursor.reading = True
        rows = sorted((r for r in self.stored.values() if r.ref > (cursor.after or b"")), key=lambda r: r.ref)
        page = [self.snapshot(r) for r in rows[:limit]]
        self.page = (self.owned.begin_read(), page, len(rows) <= limit)

    @precondition(lambda self: self.page is not None)
    @rule(fails=st.booleans())
    def end_page(self, fails: bool) -> None:
        assert self.page is not None
        (number, tasks, complete), self.page = self.page, None
        cursor = cursor_of(self.owned)
        if fails:
            self.owned.end_page(cursor)
        else:
            self.owned.absorb(cursor, Page(tasks, complete), (BUCKET + 1) * 60_000)
        self.owned.end_read(number)

    @rule()
    def dispatch(self) -> None:
        for row in self.owned.heap.pop_due(self.now, 2):
            if self.owned.status(row.ref) == QUEUED:
                self.commit(row.ref, FactKind.DISPATCHED)
            self.owned.leave(row)

    @precondition(lambda self: self.stored)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(sorted(self.stored.values(), key=lambda r: r.ref)))
        if row.ref in self.marked or self.owned.status(row.ref) not in (None, QUEUED):
            return  # the store, or the memory, says that it is settled
        self.commit(row.ref, FactKind.CANCELLED)

    def commit(self, ref: bytes, kind: FactKind) -> None:
        assert ref not in self.settled, "a row was settled twice"
        self.settled[ref] = kind
        self.owned.settle(ref, kind)

    @rule()
    def mark(self) -> None:
        for ref in self.settled:
            self.marked.add(ref)
            self.owned.marked(ref)

    @rule(ms=st.sampled_from([1, 500, 5_000, 40_000]))
    def pass_time(self, ms: int) -> None:
        self.now += ms
        self.owned.sweep(self.now)

    @invariant()
    def nothing_settled_is_queued(self) -> None:
        if hasattr(self, "settled"):
            assert all(self.owned.status(ref) != QUEUED for ref in self.settled)

    def teardown(self) -> None:
        """Once every read has ended and every hint is answered, every stored row is settled or queued."""
        if not hasattr(self, "owned"):
            return
        if self.lookup:
            self.end_lookup()
        if self.page:
            self.end_page(fails=False)
        for row in self.hints:
            if row.ref not in self.taken and self.owned.hint(row) is None:
                self.owned.admit(self.snapshot(row))
        while any(True for _ in self.owned.buckets.unread()):  # a full memory has sent hints back to the store
            self.begin_page(limit=3)
            self.end_page(fails=False)
        self.nothing_settled_is_queued()
        missing = [row for row in self.stored.values() if row.ref not in self.settled]
        assert all(self.owned.status(row.ref) == QUEUED for row in missing)


TestRange = Range.TestCase
TestRange.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def begun_at(low_due_ms: dict[int, int], now_ms: int) -> tuple[OwnedRange, int]:
    """A range that begins at a checkpoint, and from when on its present is loaded."""
    owned = OwnedRange(Lease(0, 1, ()), [0], 10)
    owned.open(BUCKET, low_due_ms, now_ms)
    owned.phase = Phase.ACTIVE
    owned.buckets.extend(now_ms - REMEMBER_MS, now_ms)
    begun = owned.buckets.cursor(bucket_of(now_ms), 0)
    assert begun is not None
    return owned, begun.edge_ms + 1


def test_what_a_recent_checkpoint_makes_likely_to_be_done_is_left_to_the_scan() -> None:
    written_ms = (BUCKET + 1) * 60_000 + 20_000
    low_ms = written_ms - REMEMBER_MS
    owned, loaded_from_ms = begun_at({BUCKET: low_ms}, written_ms + 4_000)
    assert loaded_from_ms == written_ms - LIKELY_LATE_MS
    assert owned.buckets.is_read(BUCKET)
    assert owned.scanned_ms - REMEMBER_MS == low_ms
    assert owned.open_low_due(written_ms + 9_000) == {BUCKET: low_ms}, "no checkpoint passes what was not scanned"
    owned.scanned_ms = written_ms + 4_000
    assert owned.open_low_due(written_ms + 4_000)[BUCKET] == low_ms + 4_000


def test_an_older_checkpoint_makes_nothing_likely() -> None:
    written_ms = BUCKET * 60_000 + 35_000
    now_ms = written_ms + RECENT_MS + 1
    owned, loaded_from_ms = begun_at({BUCKET: written_ms - REMEMBER_MS}, now_ms)
    assert loaded_from_ms == written_ms - REMEMBER_MS
    assert owned.scanned_ms == now_ms


def test_a_checkpoint_of_buckets_that_are_not_begun_passes_nothing_that_was_not_scanned() -> None:
    written_ms = (BUCKET + 1) * 60_000 + 20_000
    owned = OwnedRange(Lease(0, 1, ()), [0], 10)
    owned.open(BUCKET, {BUCKET: written_ms - REMEMBER_MS}, written_ms + 1_000)
    owned.phase = Phase.ACTIVE
    assert owned.open_low_due(written_ms + 1_000) == {BUCKET: written_ms - REMEMBER_MS}
