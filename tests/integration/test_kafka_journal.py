"""The journal on a real broker, with failures that only a network has: lost and late requests, lost answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from kafka_proxy import ADD_PARTITIONS, END_TXN, PRODUCE, KafkaProxy, always, gates, never, once
from kafka_world import DEADLINE_S, KafkaWorld, message, records
from tools.stack import Addresses

from bucketsched import config
from bucketsched.adapters.kafka import connection, routes
from bucketsched.adapters.kafka.journal import COMMIT_S_MAX, KafkaJournal
from bucketsched.adapters.kafka.reader import RETRY_S_MAX
from bucketsched.adapters.kafka.stream import INIT_S_MAX
from bucketsched.adapters.kafka.topic_map import UNKNOWN_WAIT_S
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from bucketsched.ports import CommitRefused

pytestmark = pytest.mark.stack
SLACK_S = 3.0
"""For a busy machine, on top of a named limit."""
REQUEST_TIMEOUT_MS = 1_000
"""So that tests of lost answers take less time."""


@pytest.fixture(autouse=True)
def _short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "REQUEST_TIMEOUT_MS", REQUEST_TIMEOUT_MS)


@pytest.fixture
async def world(stack: Addresses, topic_prefix: str) -> AsyncIterator[KafkaWorld]:
    world = KafkaWorld(config.load(str(stack.settings)).kafka, topic_prefix)
    await world.start()
    yield world
    await world.close()


@pytest.fixture
async def proxy(stack: Addresses) -> AsyncIterator[KafkaProxy]:
    proxy = KafkaProxy(stack.kafka)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def journal(world: KafkaWorld) -> KafkaJournal:
    return await world.started(0)


@pytest.fixture
async def shaky(world: KafkaWorld, proxy: KafkaProxy) -> KafkaJournal:
    """A journal behind the proxy, with one transaction behind it."""
    journal = await world.started(0, bootstrap=proxy.address)
    await journal.commit([], b"first")
    return journal


# ---------------------------------------------------------------- messages that can't be sent


async def test_a_message_too_large_for_its_topic_does_not_commit_its_neighbours(
    world: KafkaWorld, journal: KafkaJournal
) -> None:
    """The broker refuses one batch only when all are sent: the record of the others must not commit."""
    plain, tight = await world.made(), await world.made(max_message_bytes="5000")
    batch = [message(plain, b"a"), message(tight, bytes(10_000)), message(plain, b"b")]
    with pytest.raises(CommitRefused) as refused:
        await journal.commit(batch, b"must not be seen")
    assert set(refused.value.culprits) == {1}
    await journal.commit([batch[0], batch[2]], b"the rest")
    assert await world.visible(plain, 2) == [b"a", b"b"]
    assert await records(journal, 0) == [b"the rest"]


async def test_a_topic_that_takes_less_than_a_batch_gets_smaller_ones(world: KafkaWorld, journal: KafkaJournal) -> None:
    tight = await world.made(max_message_bytes="5000")
    batch = [message(tight, b"%03d" % i + bytes(1_000)) for i in range(40)]
    blamed: dict[int, str] = {}
    for _ in range(10):
        try:
            await journal.commit(batch, b"record")
            break
        except CommitRefused as refused:
            blamed |= refused.culprits
    assert blamed == {}
    assert [value[:3] for value in await world.visible(tight, 40)] == [b"%03d" % i for i in range(40)]
    assert await records(journal, 0) == [b"record"]


async def test_a_refused_batch_leaves_its_partition_usable(world: KafkaWorld, journal: KafkaJournal) -> None:
    """Sequence numbers move only for what is in the log; else the next batch there would be out of order."""
    tight = await world.made(max_message_bytes="5000")
    for i in range(3):
        await journal.commit([message(tight, b"%d" % i)], b"%d" % i)
        with pytest.raises(CommitRefused):
            await journal.commit([message(tight, bytes(10_000))], b"must not be seen")
    assert await world.visible(tight, 3) == [b"0", b"1", b"2"]
    assert await records(journal, 0) == [b"0", b"1", b"2"]


async def test_an_unknown_topic_is_sick_for_a_while_then_its_messages_are_given_up_and_it_is_not_created(
    world: KafkaWorld, journal: KafkaJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, unknown = await world.made(), world.queue()
    batch = [message(plain, b"a"), message(unknown, b"b")]
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(CommitRefused) as refused:
            await journal.commit(batch, b"must not be seen")
        assert (refused.value.culprits, refused.value.sick_topics) == ({}, {unknown.topic})
        assert time.monotonic() - began < UNKNOWN_WAIT_S + SLACK_S
    monkeypatch.setattr(routes, "MISSING_S_MAX", 0)
    with pytest.raises(CommitRefused) as refused:
        await journal.commit(batch, b"must not be seen")
    assert set(refused.value.culprits) == {1}
    assert unknown.topic not in await world.topic_names()
    assert await records(journal, 0) == []


async def test_a_topic_that_is_made_after_it_was_refused_is_found(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = world.queue()
    with pytest.raises(CommitRefused):
        await journal.commit([message(queue, b"a")], b"record")
    await world.topics.ensure(queue)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await journal.commit([message(queue, b"a")], b"record")
                break
            except CommitRefused:
                await asyncio.sleep(0.1)
    assert await world.visible(queue, 1) == [b"a"]


async def test_a_record_too_large_for_the_journal_blames_no_message(world: KafkaWorld, journal: KafkaJournal) -> None:
    queue = await world.made()
    with pytest.raises(CommitRefused) as refused:
        await journal.commit([message(queue, b"a")], bytes(world.settings.message_bytes_max))
    assert refused.value.culprits == {}
    await journal.commit([message(queue, b"b")], b"record")
    assert await world.visible(queue, 1) == [b"b"]


async def test_messages_without_key_share_a_partition_and_those_with_one_keep_theirs(
    world: KafkaWorld, journal: KafkaJournal
) -> None:
    queue = await world.made(partitions=4)
    for _ in range(8):
        placed = await journal._routes.place([message(queue, b"x") for _ in range(50)])
        assert len(placed) == 1
    places = [set(await journal._routes.place([message(queue, b"x", key=b"k")])) for _ in range(8)]
    assert len(set().union(*places)) == 1
    assert len({place for _ in range(8) for place in await journal._routes.place([message(queue, b"x")])}) == 4


# ---------------------------------------------------------------- EndTxn


async def test_every_transaction_has_one_end(world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal) -> None:
    tight = await world.made(max_message_bytes="5000")
    for i in range(5):
        await shaky.commit([message(tight, b"x")], b"%d" % i)
        with pytest.raises(CommitRefused):
            await shaky.commit([message(tight, bytes(10_000))], b"must not be seen")
    assert proxy.seen[END_TXN] == 1 + 2 * 5


async def test_a_commit_whose_answer_is_lost_is_unknown_and_the_journal_tells(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    queue, ends = await world.made(), proxy.seen[END_TXN]
    proxy.lose_answer = once(END_TXN)
    with pytest.raises(OutcomeUnknown):
        await shaky.commit([message(queue, b"a")], b"in doubt")
    assert proxy.seen[END_TXN] == ends + 1, "EndTxn was repeated: the second could end a later transaction"
    with pytest.raises(OwnershipLost):
        await shaky.commit([], b"before init")
    await shaky.init()
    assert await records(shaky, 0) == [b"first", b"in doubt"]
    assert await world.visible(queue, 1) == [b"a"]


async def test_a_commit_whose_request_is_lost_is_unknown_and_the_journal_tells(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    queue = await world.made()
    proxy.lose_request = once(END_TXN)
    with pytest.raises(OutcomeUnknown):
        await shaky.commit([message(queue, b"a")], b"in doubt")
    await shaky.init()
    assert await records(shaky, 0) == [b"first"]
    await shaky.commit([message(queue, b"b")], b"next")
    assert await world.visible(queue, 1) == [b"b"]
    assert await records(shaky, 0) == [b"first", b"next"]


async def test_a_late_end_does_not_end_a_later_transaction(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    """The broker can't tell transactions of one epoch apart, so only a new epoch may go on."""
    late, punctual, reader = asyncio.Event(), asyncio.Event(), await world.started(1)
    proxy.hold_request = gates(END_TXN, late, punctual)
    with pytest.raises(OutcomeUnknown):
        await shaky.commit([], b"in doubt")
    await shaky.init()
    second = asyncio.create_task(shaky.commit([], b"second"))
    await asyncio.wait_for(proxy.saw(END_TXN, 3), DEADLINE_S)
    late.set()
    reading = asyncio.create_task(records(reader, 0))
    await asyncio.sleep(0.5)
    assert not reading.done(), "the late EndTxn has ended the second transaction"
    punctual.set()
    await second
    assert await reading == [b"first", b"second"]


# ---------------------------------------------------------------- Produce, AddPartitionsToTxn


async def test_a_batch_whose_answer_is_lost_is_there_once(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    queue = await world.made()
    proxy.lose_answer = once(PRODUCE)
    await shaky.commit([message(queue, b"a")], b"record")
    await shaky.commit([message(queue, b"b")], b"next")
    assert await world.visible(queue, 2) == [b"a", b"b"]
    assert await records(shaky, 0) == [b"first", b"record", b"next"]


async def test_batches_that_never_arrive_leave_the_outcome_unknown_and_nothing_visible(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    queue = await world.made()
    proxy.lose_request = always(PRODUCE)
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        await shaky.commit([message(queue, b"a")], b"must not be seen")
    assert time.monotonic() - began < COMMIT_S_MAX + SLACK_S
    proxy.lose_request = never
    await shaky.init()
    await shaky.commit([message(queue, b"b")], b"next")
    assert await world.visible(queue, 1) == [b"b"]
    assert await records(shaky, 0) == [b"first", b"next"]


async def test_partitions_whose_registration_is_not_answered_are_registered_again(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    proxy.lose_answer = once(ADD_PARTITIONS)
    await shaky.commit([], b"record")
    assert await records(shaky, 0) == [b"first", b"record"]


# ---------------------------------------------------------------- fencing and closing


async def test_closing_aborts_what_is_open(world: KafkaWorld, proxy: KafkaProxy) -> None:
    """Else it would hold back all read_committed readers until its time-out."""
    queue = await world.made()
    journal = await world.started(0, bootstrap=proxy.address, transaction_timeout_ms=60_000)
    await journal.commit([message(queue, b"a")], b"first")
    proxy.lose_answer = always(PRODUCE)
    produced = proxy.seen[PRODUCE]
    committing = asyncio.create_task(journal.commit([message(queue, b"b")], b"must not be seen"))
    await asyncio.wait_for(proxy.saw(PRODUCE, produced + 1), DEADLINE_S)
    await asyncio.sleep(0.1)  # the broker has the batch; only its answer is lost
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    await asyncio.wait_for(journal.close(), DEADLINE_S)
    other = await world.started(1)
    await other.commit([message(queue, b"c")], b"of 1")
    assert await world.visible(queue, 2) == [b"a", b"c"]
    assert await records(other, 0) == [b"first"]


@pytest.mark.alone
async def test_a_fenced_journal_closes_soon_and_silently(world: KafkaWorld, journal: KafkaJournal) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await world.started(0)
    with pytest.raises(OwnershipLost):
        await journal.commit([], b"stale")
    began = time.monotonic()
    await journal.close()
    assert time.monotonic() - began < 1.0
    del journal
    await asyncio.sleep(0.05)
    assert complaints == []


async def test_an_idle_lane_goes_on_without_init(world: KafkaWorld, journal: KafkaJournal) -> None:
    """Fencing one lane leaves others alone, and so do inits of others."""
    other = await world.started(1)
    await journal.commit([], b"a")
    await other.fence(2)
    await other.init()
    await journal.commit([], b"b")
    assert await records(other, 0) == [b"a", b"b"]


# ---------------------------------------------------------------- reading


async def test_a_lane_with_aborted_transactions_only_reads_as_empty(world: KafkaWorld, proxy: KafkaProxy) -> None:
    """The position must pass aborted records and markers, not wait to equal the end."""
    reader, never_set = await world.started(1), asyncio.Event()
    for i in range(3):
        journal = await world.started(0, bootstrap=proxy.address)
        proxy.hold_request = gates(END_TXN, never_set)
        committing = asyncio.create_task(journal.commit([], b"must not be seen"))
        await asyncio.wait_for(proxy.saw(END_TXN, i + 1), DEADLINE_S)
        committing.cancel()
        await reader.fence(0)
    assert await reader.end(0) > await reader.start(0)
    assert await records(reader, 0) == []


async def test_the_end_is_behind_a_commit_that_was_just_answered(world: KafkaWorld, journal: KafkaJournal) -> None:
    """Its markers may not be written yet, so the last stable offset may lie before it."""
    reader = await world.started(1)
    for i in range(100):
        offset = await journal.commit([], b"%d" % i)
        assert await reader.end(0) > offset
        seen = [e.offset async for entries in reader.read(0, offset) for e in entries]
        assert seen == [offset]


async def test_what_is_committed_after_the_snapshot_is_not_read(world: KafkaWorld, journal: KafkaJournal) -> None:
    first = await journal.commit([], b"before")
    end = await journal.end(0)
    await journal.commit([], b"after")
    seen = [entry.value async for entries in journal._reader.read(0, first, end) for entry in entries]
    assert seen == [b"before"]


async def test_reading_waits_for_a_transaction_that_is_open_below_the_end(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    reader, gate = await world.started(1), asyncio.Event()
    proxy.hold_request = gates(END_TXN, gate)
    committing = asyncio.create_task(shaky.commit([], b"second"))
    await asyncio.wait_for(proxy.saw(END_TXN, 2), DEADLINE_S)
    reading = asyncio.create_task(records(reader, 0))
    await asyncio.sleep(0.2)
    assert not reading.done()
    gate.set()
    await committing
    assert await reading == [b"first", b"second"]


async def test_what_was_trimmed_is_not_read(world: KafkaWorld, journal: KafkaJournal) -> None:
    offsets = [await journal.commit([], b"%d" % i) for i in range(6)]
    await world.trim(journal.name, 0, offsets[3])
    assert await journal.start(0) == offsets[3]
    assert await records(journal, 0) == [b"3", b"4", b"5"]
    with pytest.raises(Unavailable):
        [entries async for entries in journal.read(0, offsets[0])]


# ---------------------------------------------------------------- without a broker


async def assert_bounded(work: object, seconds: float, *errors: type[Exception]) -> None:
    began = time.monotonic()
    with pytest.raises(errors):
        await work  # type: ignore[misc]
    assert time.monotonic() - began < seconds + SLACK_S


async def drained(journal: KafkaJournal) -> None:
    [entries async for entries in journal.read(0, 0)]


async def test_with_the_broker_gone_every_call_answers_and_afterwards_all_is_well(
    world: KafkaWorld, proxy: KafkaProxy, shaky: KafkaJournal
) -> None:
    queue = await world.made()
    await shaky.commit([message(queue, b"a")], b"second")
    await proxy.stop()
    await assert_bounded(shaky.commit([message(queue, b"b")], b"lost"), COMMIT_S_MAX, CommitRefused, OutcomeUnknown)
    await asyncio.gather(
        assert_bounded(shaky.start(0), RETRY_S_MAX, Unavailable),
        assert_bounded(shaky.end(0), RETRY_S_MAX, Unavailable),
        assert_bounded(drained(shaky), RETRY_S_MAX, Unavailable),
        assert_bounded(shaky.fence(1), INIT_S_MAX, Unavailable),
    )
    await assert_bounded(shaky.init(), INIT_S_MAX, Unavailable)
    await proxy.start()
    await shaky.init()
    await shaky.commit([message(queue, b"c")], b"third")
    assert await records(shaky, 0) == [b"first", b"second", b"third"]
    assert await world.visible(queue, 2) == [b"a", b"c"]


async def test_with_a_silent_broker_every_call_answers(world: KafkaWorld, proxy: KafkaProxy) -> None:
    journal = await world.started(0, bootstrap=proxy.address)
    proxy.lose_request = lambda key: True
    await assert_bounded(journal.commit([], b"lost"), COMMIT_S_MAX, CommitRefused, OutcomeUnknown)
    await asyncio.gather(
        assert_bounded(journal.end(0), RETRY_S_MAX, Unavailable),
        assert_bounded(journal.fence(1), INIT_S_MAX, Unavailable),
    )
    began = time.monotonic()
    await journal.close()
    assert time.monotonic() - began < REQUEST_TIMEOUT_MS / 1000 + SLACK_S
