"""The packed journal record: what goes in comes out, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.journal_record import JournalCorrupt, JournalRecord, Other, Section, decode, encode
from bucketsched.core.task import ATTEMPT_MAX, REF_BYTES, FactKind, RowRef, Stage, at_stage, stage_of

refs = st.binary(min_size=REF_BYTES, max_size=REF_BYTES)
buckets = st.integers(0, 2**64 - 1)
firsts = refs.map(lambda ref: at_stage(ref, Stage.DISPATCH))
plain = st.builds(Other, st.sampled_from([FactKind.DISPATCHED, FactKind.CANCELLED, FactKind.EXPIRED]), firsts)
failed = st.builds(Other, st.just(FactKind.FAILED), firsts, reason=st.text(st.characters(exclude_categories=["Cs"])))
moved = st.builds(
    Other,
    st.sampled_from([FactKind.MOVED, FactKind.SPAWNED]),
    st.builds(at_stage, refs, st.sampled_from([Stage.DISPATCH, Stage.REDRIVE])),
    new_due_ms=st.integers(0, 2**63),
    body=st.binary(),
)
outcomes = st.builds(
    Other,
    st.sampled_from([FactKind.SUCCEEDED, FactKind.RETRIED, FactKind.FAILED, FactKind.EXPIRED]),
    refs.map(lambda ref: at_stage(ref, Stage.OUTCOME)),
    new_due_ms=st.integers(0, 2**63),
    body=st.binary(),
)
sections = st.builds(
    Section,
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.lists(refs, max_size=5),
    st.lists(plain | failed | moved | outcomes, max_size=4),
    st.lists(buckets, max_size=4),
)
records = st.builds(
    JournalRecord,
    st.integers(0, 1023),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**63),
    st.lists(sections, max_size=4),
)


@given(records)
def test_a_record_comes_back_as_it_was(record: JournalRecord) -> None:
    assert decode(encode(record)) == record


@given(records, st.data())
def test_a_record_that_is_cut_off_is_refused(record: JournalRecord, data: st.DataObject) -> None:
    value = encode(record)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(JournalCorrupt):
        decode(value[:cut])


@given(records, st.binary(min_size=1, max_size=10))
def test_a_record_with_something_behind_it_is_refused(record: JournalRecord, rest: bytes) -> None:
    with pytest.raises(JournalCorrupt):
        decode(encode(record) + rest)


@given(st.binary(max_size=300))
def test_any_other_bytes_are_refused_and_nothing_else_is_raised(value: bytes) -> None:
    try:
        assert encode(decode(value)) == value
    except JournalCorrupt:
        pass


@given(records, st.data())
def test_a_damaged_record_is_refused_or_read_as_another_but_never_crashes(
    record: JournalRecord, data: st.DataObject
) -> None:
    value = bytearray(encode(record))
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(value))
    except JournalCorrupt:
        pass


def test_records_of_another_schema_are_refused() -> None:
    value = bytearray(encode(JournalRecord(0, b"n" * 16, 0, [])))
    value[2] += 1
    with pytest.raises(JournalCorrupt, match="schema 2"):
        decode(bytes(value))


def test_a_section_is_empty_only_with_nothing_in_it() -> None:
    ref = RowRef(1, b"n" * 16, b"t" * 16, 0, 1).pack()
    assert Section(1, 1).empty
    assert not Section(1, 1, dispatched=[ref]).empty
    assert not Section(1, 1, others=[Other(FactKind.CANCELLED, ref)]).empty
    assert not Section(1, 1, closed=[5]).empty


def test_a_dispatch_costs_48_bytes() -> None:
    ref = RowRef(1, b"n" * 16, b"t" * 16, 0, 1).pack()
    one, two = (len(encode(JournalRecord(0, b"n" * 16, 0, [Section(1, 1, [ref] * n)]))) for n in (1, 2))
    assert two - one == REF_BYTES == 48


@given(refs, st.sampled_from(list(Stage)))
def test_a_stage_is_all_that_changes_in_a_reference(ref: bytes, stage: Stage) -> None:
    first = at_stage(ref, Stage.DISPATCH)
    assert (stage_of(at_stage(ref, stage)), at_stage(at_stage(ref, stage), Stage.DISPATCH)) == (stage, first)
    assert RowRef.unpack(first)[:4] == RowRef.unpack(ref)[:4]
    assert RowRef.unpack(first).attempt == RowRef.unpack(ref).attempt & ATTEMPT_MAX
