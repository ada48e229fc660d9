"""Every journal keeps the promises of ports.Journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from journal_harness import ADAPTERS, JournalHarness, collect, journal_harness, message

from bucketsched.core.catalog import Queue
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost
from bucketsched.core.journal_record import JournalRecord, encode
from bucketsched.core.message import Headers
from bucketsched.ports import CommitRefused, Journal, JournalEntry

DEADLINE_S = 20.0


@pytest.fixture(params=ADAPTERS)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[JournalHarness]:
    async with journal_harness(request.param, request) as opened:
        yield opened


@pytest.fixture
async def journal(harness: JournalHarness) -> Journal:
    return await started(harness, 0)


@pytest.fixture
async def queue(harness: JournalHarness) -> Queue:
    return await harness.make_queue()


async def started(harness: JournalHarness, lane: int) -> Journal:
    journal = harness.open(lane)
    await journal.init()
    return journal


async def records(journal: Journal, lane: int) -> list[bytes]:
    """All committed records of a lane."""
    return [entry.value for entry in await entries(journal, lane, await journal.start(lane))]


async def entries(journal: Journal, lane: int, start: int) -> list[JournalEntry]:
    return await asyncio.wait_for(collect(journal.read(lane, start)), DEADLINE_S)


async def values(harness: JournalHarness, queue: Queue, count: int) -> list[bytes]:
    return [value for _, value in await harness.visible(queue, count)]


# ---------------------------------------------------------------- names


async def test_all_lanes_have_the_journals_name_and_each_its_own_number(harness: JournalHarness) -> None:
    journals = [harness.open(lane) for lane in range(3)]
    assert len({journal.name for journal in journals}) == 1
    assert journals[0].name
    assert [journal.lane for journal in journals] == [0, 1, 2]


# ---------------------------------------------------------------- commit


async def test_a_commit_makes_messages_and_record_visible(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    offset = await journal.commit([message(queue, b"one"), message(queue, b"two")], b"record")
    assert await values(harness, queue, 2) == [b"one", b"two"]
    assert await entries(journal, 0, offset) == [JournalEntry(offset, b"record")]


async def test_commits_keep_their_order(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    offsets = [await journal.commit([message(queue, b"%d" % i)], b"record %d" % i) for i in range(10)]
    assert offsets == sorted(set(offsets))
    assert await entries(journal, 0, await journal.start(0)) == [
        JournalEntry(offset, b"record %d" % i) for i, offset in enumerate(offsets)
    ]
    assert await values(harness, queue, 10) == [b"%d" % i for i in range(10)]


async def test_a_commit_may_carry_a_record_only(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    await journal.commit([], b"record")
    assert await records(journal, 0) == [b"record"]
    assert await harness.visible(queue, 0) == []


async def test_a_commit_may_go_to_several_queues(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    other = await harness.make_queue()
    await journal.commit([message(queue, b"a"), message(other, b"b"), message(queue, b"c")], b"record")
    assert await values(harness, queue, 2) == [b"a", b"c"]
    assert await values(harness, other, 1) == [b"b"]


async def test_a_commit_carries_thousands_of_messages(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    sent = [b"%d" % i for i in range(2_000)]
    await journal.commit([message(queue, value) for value in sent], b"r" * 100_000)
    assert await values(harness, queue, 2_000) == sent
    assert await records(journal, 0) == [b"r" * 100_000]


async def test_headers_and_value_arrive_unchanged(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    headers: Headers = [("ce_id", b"1"), ("empty", b""), ("twice", b"a"), ("twice", b"b"), ("raw", bytes(range(256)))]
    await journal.commit([message(queue, bytes(range(256)), headers), message(queue, b"", [])], b"\0record\xff")
    assert await harness.visible(queue, 2) == [(headers, bytes(range(256))), ([], b"")]
    assert await records(journal, 0) == [b"\0record\xff"]


async def test_lanes_are_apart(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    other = await started(harness, 1)
    await journal.commit([message(queue, b"a")], b"of 0")
    await other.commit([message(queue, b"b")], b"of 1")
    await journal.commit([message(queue, b"c")], b"of 0 again")
    for reader in (journal, other):
        assert await records(reader, 0) == [b"of 0", b"of 0 again"]
        assert await records(reader, 1) == [b"of 1"]
        assert await records(reader, 2) == []
    assert await values(harness, queue, 3) == [b"a", b"b", b"c"]


# ---------------------------------------------------------------- refused


async def test_too_large_a_message_is_named_and_its_neighbours_are_not_committed(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    small, large = message(queue, b"small"), message(queue, bytes(harness.message_bytes_max))
    with pytest.raises(CommitRefused) as refused:
        await journal.commit([small, large, small], b"must not be seen")
    assert set(refused.value.culprits) == {1}
    assert refused.value.culprits[1]
    assert await records(journal, 0) == []
    assert await harness.visible(queue, 0) == []


async def test_after_a_refusal_the_rest_can_be_committed(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    batch = [message(queue, bytes(harness.message_bytes_max) if i % 2 else b"%d" % i) for i in range(6)]
    with pytest.raises(CommitRefused) as refused:
        await journal.commit(batch, b"record")
    culprits = refused.value.culprits
    assert set(culprits) == {1, 3, 5}
    await journal.commit([m for i, m in enumerate(batch) if i not in culprits], b"record")
    assert await values(harness, queue, 3) == [b"0", b"2", b"4"]
    assert await records(journal, 0) == [b"record"]


# ---------------------------------------------------------------- init


async def test_nothing_is_committed_before_init(harness: JournalHarness, queue: Queue) -> None:
    journal = harness.open(0)
    with pytest.raises(OwnershipLost):
        await journal.commit([message(queue, b"x")], b"record")
    assert await records(journal, 0) == []


async def test_an_older_producer_is_fenced_by_init(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    await journal.commit([message(queue, b"before")], b"before")
    younger = await started(harness, 0)
    with pytest.raises(OwnershipLost):
        await journal.commit([message(queue, b"stale")], b"stale")
    await younger.commit([message(queue, b"after")], b"after")
    assert await values(harness, queue, 2) == [b"before", b"after"]
    assert await records(younger, 0) == [b"before", b"after"]


async def test_a_fenced_producer_stays_fenced_until_init(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    await started(harness, 0)
    for _ in range(2):
        with pytest.raises(OwnershipLost):
            await journal.commit([message(queue, b"stale")], b"stale")
    assert await records(journal, 0) == []


async def test_the_last_init_wins(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    other = await started(harness, 0)
    await journal.init()
    await journal.commit([message(queue, b"back")], b"back")
    with pytest.raises(OwnershipLost):
        await other.commit([message(queue, b"stale")], b"stale")
    assert await records(other, 0) == [b"back"]
    assert await values(harness, queue, 1) == [b"back"]


async def test_init_may_be_repeated(journal: Journal, queue: Queue) -> None:
    await journal.init()
    await journal.commit([message(queue, b"x")], b"one")
    await journal.init()
    await journal.commit([message(queue, b"x")], b"two")
    assert await records(journal, 0) == [b"one", b"two"]


async def test_init_of_one_lane_leaves_the_others_alone(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    await started(harness, 1)
    await journal.commit([message(queue, b"x")], b"record")
    assert await records(journal, 0) == [b"record"]


# ---------------------------------------------------------------- fence


async def test_another_lane_fences_a_writer(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    taker = await started(harness, 1)
    await journal.commit([message(queue, b"before")], b"before")
    await taker.fence(0)
    with pytest.raises(OwnershipLost):
        await journal.commit([message(queue, b"stale")], b"stale")
    await taker.commit([message(queue, b"taker")], b"of the taker")
    assert await records(taker, 0) == [b"before"]
    assert await records(taker, 1) == [b"of the taker"]
    assert await values(harness, queue, 2) == [b"before", b"taker"]


async def test_a_writer_that_was_fenced_goes_on_after_init(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    taker = await started(harness, 1)
    await taker.fence(0)
    await journal.init()
    await journal.commit([message(queue, b"x")], b"record")
    assert await records(taker, 0) == [b"record"]


async def test_a_lane_that_nobody_wrote_can_be_fenced(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    await journal.fence(2)
    await journal.fence(2)
    await journal.commit([message(queue, b"x")], b"record")
    assert await records(journal, 2) == []
    assert await records(journal, 0) == [b"record"]


async def test_whoever_commits_while_fenced_is_either_seen_or_refused(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    """What the fencer reads after the fence is all that there will ever be."""
    taker = await started(harness, 1)
    answered: list[bytes] = []
    some = asyncio.Event()

    async def write() -> None:
        for i in range(10_000):
            await journal.commit([message(queue, b"%d" % i)], b"%d" % i)
            answered.append(b"%d" % i)
            if i == 5:
                some.set()

    writer = asyncio.create_task(write())
    await asyncio.wait_for(some.wait(), DEADLINE_S)
    await taker.fence(0)
    seen = await records(taker, 0)
    # Kafka may answer an EndTxn that meets the fence with UNKNOWN: the fencer knows what became of it.
    with pytest.raises((OwnershipLost, OutcomeUnknown)):
        await asyncio.wait_for(writer, DEADLINE_S)
    assert seen == await records(taker, 0)
    assert seen[: len(answered)] == answered
    assert len(seen) <= len(answered) + 1
    assert await values(harness, queue, len(seen)) == seen


# ---------------------------------------------------------------- reading


async def test_an_empty_lane_has_nothing_to_read(journal: Journal) -> None:
    start, end = await journal.start(0), await journal.end(0)
    assert 0 <= start <= end
    assert await entries(journal, 0, start) == []
    assert await entries(journal, 0, end) == []


async def test_start_and_end_enclose_the_records(journal: Journal, queue: Queue) -> None:
    before = await journal.end(0)
    offsets = [await journal.commit([message(queue, b"x")], b"%d" % i) for i in range(3)]
    assert await journal.start(0) <= offsets[0]
    assert before <= offsets[0]
    end = await journal.end(0)
    assert end > offsets[-1]
    assert await entries(journal, 0, end) == []
    assert await journal.commit([], b"later") >= end
    assert [entry.value for entry in await entries(journal, 0, end)] == [b"later"]


async def test_reading_begins_where_it_is_asked_to(harness: JournalHarness, journal: Journal, queue: Queue) -> None:
    """Offsets have gaps: where aborted transactions were, and where Kafka keeps its control markers."""
    offsets = []
    for i in range(6):
        offsets.append(await journal.commit([message(queue, b"x")], b"%d" % i))
        if i % 2:
            await journal.init()
    for i, offset in enumerate(offsets):
        assert [e.offset for e in await entries(journal, 0, offset)] == offsets[i:]
        assert [e.offset for e in await entries(journal, 0, offset + 1)] == offsets[i + 1 :]


async def test_reading_ends_at_the_end_as_it_stood(harness: JournalHarness, journal: Journal) -> None:
    before = [await journal.commit([], b"before %d" % i) for i in range(3)]
    seen: list[JournalEntry] = []
    async for batch in harness.open(1).read(0, before[0]):
        seen += batch
        await journal.commit([], b"during")
    assert [entry.offset for entry in seen] == before


async def test_reading_ends_while_others_commit(harness: JournalHarness, journal: Journal) -> None:
    first = await journal.commit([], b"first")
    stop = False

    async def write() -> None:
        while not stop:
            await journal.commit([], b"more")

    writer = asyncio.create_task(write())
    seen = await entries(harness.open(1), 0, first)
    stop = True
    await asyncio.wait_for(writer, DEADLINE_S)
    assert seen[0] == JournalEntry(first, b"first")


async def test_many_records_are_read_in_order(journal: Journal) -> None:
    offsets = [await journal.commit([], b"%d" % i) for i in range(300)]
    assert await entries(journal, 0, offsets[0]) == [JournalEntry(o, b"%d" % i) for i, o in enumerate(offsets)]


async def test_an_instance_that_does_not_write_can_read(harness: JournalHarness, journal: Journal) -> None:
    await journal.commit([], b"record")
    reader = harness.open(0)
    assert await records(reader, 0) == [b"record"]
    await journal.commit([], b"not fenced by a reader")


# ---------------------------------------------------------------- trimming


def packed(at_ms: int, number: int = 0) -> bytes:
    """A record as lanes write them."""
    return encode(JournalRecord(0, number.to_bytes(16, "big"), at_ms, []))


async def instant() -> int:
    """A millisecond that has only just begun."""
    began = now = time.time_ns() // 1_000_000
    while now <= began + 1:
        await asyncio.sleep(0.001)
        now = time.time_ns() // 1_000_000
    return now


async def test_records_are_found_by_their_time(harness: JournalHarness, journal: Journal) -> None:
    instants, offsets = [], []
    for number in range(3):
        instants.append(await instant())
        offsets.append(await journal.commit([], packed(instants[-1], number)))
        await journal.init()
    after = await instant()
    reader = harness.open(1)
    assert [await reader.find(0, at_ms) for at_ms in (0, *instants)] == [offsets[0], *offsets]
    assert await reader.find(0, after) is None
    assert await reader.find(2, 0) is None


async def test_what_was_never_committed_is_not_found(journal: Journal, harness: JournalHarness, queue: Queue) -> None:
    """It leaves a gap, which has a time of its own on Kafka."""
    first = await journal.commit([], packed(await instant(), 1))
    between = await instant()
    with pytest.raises(CommitRefused):
        await journal.commit([message(queue, bytes(harness.message_bytes_max))], packed(await instant(), 2))
    assert await journal.find(0, between) is None
    second = await journal.commit([], packed(await instant(), 3))
    assert (await journal.find(0, 0), await journal.find(0, between)) == (first, second)


async def trimmed(journal: Journal, lane: int, before: int) -> None:
    while await journal.trim(lane, before):
        pass


async def test_what_is_trimmed_is_gone_and_the_rest_is_as_it_was(
    harness: JournalHarness, journal: Journal, queue: Queue
) -> None:
    offsets = [await journal.commit([message(queue, b"%d" % i)], packed(i, i)) for i in range(6)]
    other = await started(harness, 1)
    await other.commit([], b"of the other")
    before = await entries(journal, 0, offsets[3])
    end = await journal.end(0)
    await trimmed(other, 0, offsets[3])
    assert await journal.start(0) == offsets[3]
    assert await journal.end(0) == end
    assert await entries(journal, 0, offsets[3]) == before
    assert await records(journal, 1) == [b"of the other"]
    later = await journal.commit([], b"later")
    assert later >= end
    assert await values(harness, queue, 6) == [b"%d" % i for i in range(6)], "messages are not the journal's"


async def test_trimming_again_and_less_changes_nothing(journal: Journal) -> None:
    offsets = [await journal.commit([], b"%d" % i) for i in range(6)]
    for before in (offsets[4], offsets[4], offsets[1], 0):
        await trimmed(journal, 0, before)
        assert await journal.start(0) == offsets[4]
    assert await records(journal, 0) == [b"4", b"5"]


async def test_trimming_beyond_the_end_leaves_an_empty_lane_with_its_offsets(journal: Journal) -> None:
    last = [await journal.commit([], b"%d" % i) for i in range(3)][-1]
    await trimmed(journal, 0, last + 1_000)
    assert await records(journal, 0) == []
    assert await journal.commit([], b"later") > last
    assert await records(journal, 0) == [b"later"]


async def test_a_lane_that_nobody_wrote_can_be_trimmed(journal: Journal) -> None:
    await trimmed(journal, 2, 10)
    assert await journal.start(2) == await journal.end(2)


# ---------------------------------------------------------------- close


async def test_close_lets_go(harness: JournalHarness, journal: Journal) -> None:
    await journal.commit([], b"record")
    await asyncio.wait_for(journal.close(), DEADLINE_S)
    await asyncio.wait_for(journal.close(), DEADLINE_S)
    heir = await started(harness, 0)
    await heir.commit([], b"of the heir")
    assert await records(heir, 0) == [b"record", b"of the heir"]


async def test_an_instance_that_was_never_initialised_can_be_closed(harness: JournalHarness) -> None:
    await asyncio.wait_for(harness.open(0).close(), DEADLINE_S)
