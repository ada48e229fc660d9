"""What a transactional stream makes of each answer, told apart without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from bucketsched.adapters.kafka import stream as module
from bucketsched.adapters.kafka.batches import Batch, Item, Producer, pack
from bucketsched.adapters.kafka.codes import Code
from bucketsched.adapters.kafka.connection import Connection, NotSent, Unanswered
from bucketsched.adapters.kafka.stream import Coordinator, Refused, State, Stream
from bucketsched.adapters.kafka.topic_map import TopicMap
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost, Unavailable

PLACE = ("topic", 0)
OTHER = ("other", 3)
LOST = object()
"""An answer that does not come."""


class FakeBrokers:
    """Answers requests from scripts, one list of codes (or LOST) per kind; empty: no error. Keeps what was asked."""

    def __init__(self) -> None:
        self.script: dict[type[Any], list[Any]] = {}
        self.asked: list[type[Any]] = []
        self.refreshed = 0

    async def transaction_coordinator(self, transactional_id: str) -> int:
        return 1

    async def send(self, node: int, request: Any, group: int = 0) -> Any:
        self.asked.append(type(request))
        script = self.script.get(type(request), [])
        code = script.pop(0) if script else Code.NONE
        if code is LOST:
            raise Unanswered("lost")
        if code is NotSent:
            raise NotSent("not sent")
        if isinstance(request, ProduceRequest):
            topics = [(t, [(p, _of(code, t), 7, -1, 0) for p, _ in ps]) for t, ps in request._topics]
            return SimpleNamespace(topics=topics)
        if isinstance(request, AddPartitionsToTxnRequest):
            return SimpleNamespace(errors=[(t, [(p, _of(code, t)) for p in ps]) for t, ps in request._topics])
        return SimpleNamespace(error_code=code, producer_id=5, producer_epoch=9)

    async def refresh(self, names: list[str]) -> None:
        self.refreshed += 1

    def leader(self, topic: str, partition: int) -> int:
        return 1

    def count(self, kind: type[Any]) -> int:
        return self.asked.count(kind)


def _of(code: Any, topic: str) -> int:
    return int(code.get(topic, Code.NONE) if isinstance(code, dict) else code)


@pytest.fixture
def brokers() -> FakeBrokers:
    return FakeBrokers()


@pytest.fixture
def stream(brokers: FakeBrokers) -> Stream:
    connection = cast(Connection, brokers)
    coordinator = Coordinator(connection, "id")
    return Stream(connection, cast(TopicMap, brokers), coordinator, Producer(5, 9))


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the stream wanted to sleep; it does not."""
    wanted: list[float] = []
    sleep = asyncio.sleep

    async def nap(seconds: float) -> None:
        wanted.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", nap)
    return wanted


def packer(stream: Stream, *places: tuple[str, int], count: int = 1) -> Callable[[], list[Batch]]:
    items = [Item(i, None, b"value", []) for i in range(count)]
    return lambda: [b for p in places for b in pack(p, items, stream.producer, stream.sequence(p), 10_000)]


async def commit(stream: Stream, *places: tuple[str, int]) -> dict[tuple[str, int], list[int]]:
    chosen = places or (PLACE,)
    return await stream.commit(chosen, packer(stream, *chosen))


async def test_a_transaction_asks_three_times(stream: Stream, brokers: FakeBrokers) -> None:
    assert await commit(stream) == {PLACE: [7]}
    assert brokers.asked == [AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest]
    assert stream.usable


# ---------------------------------------------------------------- fenced, or looks like it

FENCING = [
    Code.INVALID_PRODUCER_EPOCH,
    Code.PRODUCER_FENCED,
    Code.INVALID_PRODUCER_ID_MAPPING,
    Code.INVALID_TXN_STATE,
    Code.TRANSACTION_COORDINATOR_FENCED,
    Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
]


@pytest.mark.parametrize("kind", [AddPartitionsToTxnRequest, ProduceRequest, EndTxnRequest])
@pytest.mark.parametrize("code", FENCING)
async def test_a_coordinators_time_out_looks_like_fencing_and_needs_init(
    stream: Stream, brokers: FakeBrokers, code: Code, kind: type[Any]
) -> None:
    brokers.script[kind] = [code]
    with pytest.raises(OwnershipLost):
        await commit(stream)
    assert not stream.usable


@pytest.mark.parametrize("code", [Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID, Code.INVALID_PRODUCER_EPOCH])
async def test_a_batch_that_is_refused_for_its_producer_never_commits(
    stream: Stream, brokers: FakeBrokers, code: Code
) -> None:
    """Such an error fails only the batch in some clients, and the transaction then commits without it."""
    brokers.script[ProduceRequest] = [{"topic": code}]
    with pytest.raises(OwnershipLost):
        await commit(stream, PLACE, OTHER)
    assert brokers.count(EndTxnRequest) == 0
    assert not stream.usable


# ---------------------------------------------------------------- EndTxn


@pytest.mark.parametrize(
    "answer",
    [LOST, NotSent, Code.UNKNOWN, Code.NOT_COORDINATOR, Code.COORDINATOR_LOADING, Code.CONCURRENT_TRANSACTIONS],
)
async def test_an_end_without_a_clear_answer_is_unknown_and_not_repeated(
    stream: Stream, brokers: FakeBrokers, answer: Any
) -> None:
    brokers.script[EndTxnRequest] = [answer]
    with pytest.raises(OutcomeUnknown):
        await commit(stream)
    assert brokers.count(EndTxnRequest) == 1
    assert not stream.usable
    await stream.abandon()
    assert brokers.count(EndTxnRequest) == 1, "a second EndTxn could end a later transaction"


async def test_an_abort_without_an_answer_is_unknown(stream: Stream, brokers: FakeBrokers) -> None:
    brokers.script |= {ProduceRequest: [Code.MESSAGE_TOO_LARGE], EndTxnRequest: [LOST]}
    with pytest.raises(OutcomeUnknown):
        await commit(stream)
    assert not stream.usable


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.TOPIC_AUTHORIZATION_FAILED, Code.INVALID_TOPIC])
async def test_one_refused_batch_aborts_all_and_leaves_the_stream_sound(
    stream: Stream, brokers: FakeBrokers, code: Code
) -> None:
    brokers.script[ProduceRequest] = [{"topic": code}]
    with pytest.raises(Refused) as refused:
        await commit(stream, PLACE, OTHER)
    assert [(r.place, r.code) for r in refused.value.refusals] == [(PLACE, code)]
    assert stream.usable
    assert (stream.sequence(PLACE), stream.sequence(OTHER)) == (0, 1), "only what is in the log counts"
    await commit(stream, PLACE, OTHER)


async def test_a_batch_that_is_too_large_was_not_appended_by_an_earlier_try(
    stream: Stream, brokers: FakeBrokers, naps: list[float]
) -> None:
    brokers.script[ProduceRequest] = [Code.NOT_LEADER, LOST, Code.MESSAGE_TOO_LARGE]
    with pytest.raises(Refused):
        await commit(stream)
    assert stream.usable


async def test_a_stream_that_is_given_up_meanwhile_stays_so(
    stream: Stream, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's own lane may be fenced while a transaction is under way."""
    refresh = brokers.leader

    def leader(topic: str, partition: int) -> int:
        stream.give_up()
        return refresh(topic, partition)

    monkeypatch.setattr(brokers, "leader", leader)
    await commit(stream)
    assert not stream.usable


async def test_a_refused_registration_needs_no_end(stream: Stream, brokers: FakeBrokers) -> None:
    brokers.script[AddPartitionsToTxnRequest] = [
        {"topic": Code.TOPIC_AUTHORIZATION_FAILED, "other": Code.OPERATION_NOT_ATTEMPTED}
    ]
    with pytest.raises(Refused) as refused:
        await commit(stream, PLACE, OTHER)
    assert [r.place for r in refused.value.refusals] == [PLACE]
    assert brokers.count(EndTxnRequest) == 0
    assert stream.usable


# ---------------------------------------------------------------- what passes


@pytest.mark.parametrize("answer", [LOST, NotSent, Code.NOT_LEADER, Code.NOT_ENOUGH_REPLICAS, Code.REQUEST_TIMED_OUT])
async def test_a_batch_that_met_a_passing_trouble_is_sent_again(
    stream: Stream, brokers: FakeBrokers, naps: list[float], answer: Any
) -> None:
    brokers.script[ProduceRequest] = [answer, answer]
    assert await commit(stream) == {PLACE: [7]}
    assert brokers.count(ProduceRequest) == 3
    assert brokers.refreshed == 2


@pytest.mark.parametrize(
    "answer", [LOST, Code.NOT_LEADER, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, Code.REQUEST_TIMED_OUT]
)
async def test_a_batch_that_may_be_appended_makes_the_outcome_unknown(
    stream: Stream, brokers: FakeBrokers, naps: list[float], monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """Aborting and going on would let the late batch into a later transaction."""
    monkeypatch.setattr(module, "SEND_S_MAX", 0.0)
    brokers.script[ProduceRequest] = [answer]
    with pytest.raises(OutcomeUnknown):
        await commit(stream)
    assert not stream.usable


async def test_a_batch_that_is_certainly_not_appended_is_refused_in_the_end(
    stream: Stream, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEND_S_MAX", 0.0)
    brokers.script[ProduceRequest] = [Code.NOT_ENOUGH_REPLICAS]
    with pytest.raises(Refused):
        await commit(stream)
    assert stream.usable


async def test_the_wait_for_the_last_transactions_markers_is_short(
    stream: Stream, brokers: FakeBrokers, naps: list[float]
) -> None:
    """20 ms or 100 ms here would be most of a dispatch's lateness."""
    brokers.script[AddPartitionsToTxnRequest] = [Code.CONCURRENT_TRANSACTIONS] * 3
    await commit(stream)
    waits = [seconds for seconds in naps if seconds]
    assert len(waits) == 3
    assert waits[0] <= 0.002
    assert sum(waits) <= 0.010


# ---------------------------------------------------------------- epochs, and giving up


async def test_a_new_epoch_is_tried_for_until_the_old_transaction_is_aborted(brokers: FakeBrokers) -> None:
    brokers.script[InitProducerIdRequest] = [
        Code.CONCURRENT_TRANSACTIONS,
        Code.NOT_COORDINATOR,
        LOST,
        Code.PRODUCER_FENCED,
    ]
    assert await Coordinator(cast(Connection, brokers), "id").new_epoch(10_000) == Producer(5, 9)
    assert brokers.count(InitProducerIdRequest) == 5


async def test_a_new_epoch_that_is_forbidden_is_unavailable_at_once(brokers: FakeBrokers) -> None:
    brokers.script[InitProducerIdRequest] = [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(Unavailable):
        await Coordinator(cast(Connection, brokers), "id").new_epoch(10_000)
    assert brokers.count(InitProducerIdRequest) == 1


async def test_a_cancelled_commit_leaves_an_open_transaction_that_abandon_aborts(
    stream: Stream, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, hang = asyncio.Event(), asyncio.Event()
    send = brokers.send

    async def slow(node: int, request: Any, group: int = 0) -> Any:
        if isinstance(request, ProduceRequest):
            reached.set()
            await hang.wait()
        return await send(node, request, group)

    monkeypatch.setattr(brokers, "send", slow)
    committing = asyncio.create_task(commit(stream))
    await reached.wait()
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    assert stream.state is State.OPEN
    assert not stream.usable
    await stream.abandon()
    assert brokers.count(EndTxnRequest) == 1
    assert not stream.usable


async def test_a_packing_that_fails_leaves_no_task_behind(stream: Stream, brokers: FakeBrokers) -> None:
    def broken() -> list[Batch]:
        raise TypeError("not bytes")

    before = asyncio.all_tasks()
    with pytest.raises(TypeError):
        await stream.commit([PLACE], broken)
    assert asyncio.all_tasks() == before
    assert not stream.usable
