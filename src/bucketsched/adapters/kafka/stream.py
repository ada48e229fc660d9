"""A transactional stream: one producer epoch, and its transactions, one at a time.

This speaks Kafka's transaction protocol itself (AddPartitionsToTxn, Produce, EndTxn) instead of going through
aiokafka's producer, because what follows a failure must be decided, not retried by a background task:

- EndTxn is sent once per transaction. Without an answer the stream is of no more use: a delayed EndTxn could end a
  later transaction of the same epoch, so only a new epoch may go on.
- Every batch's answer is known before EndTxn: a failed batch never commits with its neighbours.
- Sequence numbers move only for batches that are in the log, so a refused batch leaves the stream sound.
- A batch whose fate is unknown is sent again with its sequence number (the broker drops the double), and if it stays
  unknown the stream is given up.

    READY -> OPEN -> ENDING -> READY          a transaction
             OPEN -> READY                    nothing was registered with the coordinator
    Fenced, unknown or cancelled, it stays OPEN or ENDING, and only a new epoch helps; `abandon` leads to BROKEN.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn, TypeVar

from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from ...core import failpoints
from ...core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from .batches import Batch, Place, Producer
from .codes import CERTAINLY_NOT_APPENDED, COORDINATOR_MOVED, FENCED, PASSING, TOO_LARGE, Code
from .connection import COORDINATION, RETRY_BACKOFF_MS, Connection, NotSent, Unanswered
from .topic_map import TopicMap

SEND_S_MAX = 4.0
"""How long registering partitions and producing are retried within one transaction."""
INIT_S_MAX = 8.0
"""How long a new epoch is tried for."""
PRODUCE_TIMEOUT_MS = 2_000
"""How long a leader waits for its followers; shorter than the time-out of requests, so that it answers."""
CONCURRENT_BACKOFF_S = 0.002
"""After a commit the broker still writes markers: the next transaction's first request is repeated this fast."""
CONCURRENT_BACKOFF_S_MAX = 0.02
MOVED_BACKOFF_S = RETRY_BACKOFF_MS / 1000
ACKS_ALL = -1
ABORT, COMMIT = False, True

Result = TypeVar("Result")


class State(Enum):
    """Where a stream stands."""

    READY = auto()
    OPEN = auto()
    ENDING = auto()
    BROKEN = auto()


_NEXT = {
    State.READY: {State.OPEN, State.BROKEN},
    State.OPEN: {State.READY, State.ENDING, State.BROKEN},
    State.ENDING: {State.READY, State.BROKEN},
}


@dataclass(slots=True)
class Refusal:
    """What a broker refused. `batch` None: the partition's registration."""

    place: Place
    code: Code
    batch: Batch | None = None


class Refused(Exception):
    """The transaction was aborted and the stream is sound."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__(", ".join(f"{r.code.name} at {r.place[0]}/{r.place[1]}" for r in refusals[:3]))
        self.refusals = refusals


@dataclass(slots=True)
class _Fate:
    """What became of one batch. `unsure`: an unanswered or ambiguous try may have been, or may yet be, appended."""

    batch: Batch
    offset: int = -1
    code: Code = Code.UNKNOWN
    unsure: bool = False

    @property
    def appended(self) -> bool:
        return self.offset >= 0


class Coordinator:
    """Requests to the transaction coordinator of one transactional id."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection = connection
        self.transactional_id = transactional_id
        self._node: int | None = None

    async def send(self, request: Any) -> Any:
        """Raises NotSent, Unanswered."""
        if self._node is None:
            self._node = await self._connection.transaction_coordinator(self.transactional_id)
        try:
            return await self._connection.send(self._node, request, COORDINATION)
        except Unavailable:
            self.moved()
            raise

    def moved(self) -> None:
        """Asks who it is before the next request."""
        self._node = None

    async def new_epoch(self, transaction_timeout_ms: int) -> Producer:
        """Aborts the id's open transaction, fences every older epoch and returns the new one. Raises Unavailable."""
        request = InitProducerIdRequest(self.transactional_id, transaction_timeout_ms)
        deadline, backoff = _now() + INIT_S_MAX, CONCURRENT_BACKOFF_S
        while True:
            try:
                response = await _before(deadline, self.send(request))
                code = Code(response.error_code)
            except Unavailable as error:
                code, reason = Code.UNKNOWN, str(error)
            else:
                reason = code.name
            if code is Code.NONE:
                return Producer(response.producer_id, response.producer_epoch)
            if code in COORDINATOR_MOVED:
                self.moved()
            retriable = code in PASSING or code in (Code.UNKNOWN, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED)
            if not retriable or _now() + backoff > deadline:
                raise Unavailable(f"no new epoch for {self.transactional_id}: {reason}")
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MOVED_BACKOFF_S)


class Stream:
    """One epoch. `commit` may be called by one task at a time."""

    def __init__(self, connection: Connection, topics: TopicMap, coordinator: Coordinator, producer: Producer) -> None:
        self._connection = connection
        self._topics = topics
        self._coordinator = coordinator
        self.producer = producer
        self.state = State.READY
        self._sequences: dict[Place, int] = defaultdict(int)

    @property
    def usable(self) -> bool:
        """True if a transaction may begin."""
        return self.state is State.READY

    def sequence(self, place: Place) -> int:
        """Of the next record there."""
        return self._sequences[place]

    async def commit(self, places: Iterable[Place], pack: Callable[[], list[Batch]]) -> dict[Place, list[int]]:
        """Registers the places, packs meanwhile, sends, and commits; the base offsets of the batches per place.

        Raises Refused (nothing committed, sound), OwnershipLost or OutcomeUnknown (both: not sound).
        """
        self._enter(State.OPEN)
        batches = await self._register_and_pack(set(places), pack)
        offsets = await self._produce_all(batches)
        failpoints.reach("dispatch.produced")
        await self._end(COMMIT)
        return offsets

    async def abandon(self) -> None:
        """Aborts an open transaction, once, if no EndTxn was sent for it yet. Never raises Kafka's errors."""
        if self.state is State.OPEN:
            try:
                await self._end(ABORT)
            except (OwnershipLost, OutcomeUnknown):
                pass  # the transaction's time-out aborts it
        self.give_up()

    def give_up(self) -> None:
        """Only a new epoch helps."""
        self._enter(State.BROKEN)

    def _enter(self, state: State) -> None:
        if self.state is not State.BROKEN:  # given up while a transaction was under way: it stays so
            assert state in _NEXT[self.state], f"{self.state} -> {state}"
            self.state = state

    # ------------------------------------------------------------ registering

    async def _register_and_pack(self, places: set[Place], pack: Callable[[], list[Batch]]) -> list[Batch]:
        registering = asyncio.create_task(self._register(places))
        try:
            await asyncio.sleep(0)  # the request leaves before the processor is busy packing
            batches = pack()
        except BaseException:
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            raise
        await registering
        return batches

    async def _register(self, places: set[Place]) -> None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in places:
            by_topic[topic].append(partition)
        request = AddPartitionsToTxnRequest(
            transactional_id=self._coordinator.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            topics=list(by_topic.items()),
        )
        deadline, unsure, backoff = _now() + SEND_S_MAX, False, CONCURRENT_BACKOFF_S
        while True:
            try:
                response = await self._coordinator.send(request)
                answers = _answers(response)
            except NotSent:
                answers = dict.fromkeys(places, Code.NOT_COORDINATOR)
            except Unanswered:
                unsure, answers = True, dict.fromkeys(places, Code.REQUEST_TIMED_OUT)
            failed = {place: code for place, code in answers.items() if code is not Code.NONE}
            if not failed:
                return
            codes = set(failed.values()) - {Code.OPERATION_NOT_ATTEMPTED}
            if codes & FENCED:
                raise OwnershipLost(f"{self._coordinator.transactional_id}: {_names(codes & FENCED)}")
            if not codes <= PASSING or codes <= {Code.UNKNOWN_TOPIC_OR_PARTITION} or _now() + backoff > deadline:
                self._not_registered(failed, unsure)
            if codes & COORDINATOR_MOVED:
                self._coordinator.moved()
            await asyncio.sleep(backoff if codes == {Code.CONCURRENT_TRANSACTIONS} else MOVED_BACKOFF_S)
            backoff = min(backoff * 1.5, CONCURRENT_BACKOFF_S_MAX)

    def _not_registered(self, failed: Mapping[Place, Code], unsure: bool) -> NoReturn:
        """All or none are registered, so after clear refusals there is no transaction that would need an end."""
        if unsure or Code.UNKNOWN in failed.values():
            raise OutcomeUnknown(f"partitions may be registered: {_names(failed.values())}")
        self._enter(State.READY)
        causes = {p: c for p, c in failed.items() if c is not Code.OPERATION_NOT_ATTEMPTED}
        raise Refused([Refusal(place, code) for place, code in causes.items()])

    # ------------------------------------------------------------ producing

    async def _produce_all(self, batches: list[Batch]) -> dict[Place, list[int]]:
        """A place's batches go one behind the other, those of different places at once."""
        queues: dict[Place, list[Batch]] = defaultdict(list)
        for batch in batches:
            queues[batch.place].append(batch)
        offsets: dict[Place, list[int]] = defaultdict(list)
        for turn in range(max(map(len, queues.values()))):
            fates = await self._produce([queue[turn] for queue in queues.values() if turn < len(queue)])
            for fate in fates:
                if fate.appended:
                    self._sequences[fate.batch.place] = fate.batch.next_sequence
                    offsets[fate.batch.place].append(fate.offset)
            if failed := [fate for fate in fates if not fate.appended]:
                await self._abort_for(failed)
        return offsets

    async def _abort_for(self, failed: list[_Fate]) -> NoReturn:
        codes = {fate.code for fate in failed}
        if codes & FENCED:
            raise OwnershipLost(f"{self._coordinator.transactional_id}: {_names(codes & FENCED)}")
        if any(fate.unsure for fate in failed):
            raise OutcomeUnknown(f"a batch may still be appended: {_names(codes)}")
        await self._end(ABORT)
        raise Refused([Refusal(fate.batch.place, fate.code, fate.batch) for fate in failed])

    async def _produce(self, batches: list[Batch]) -> list[_Fate]:
        """Sends one batch per place; repeats what may pass until SEND_S_MAX."""
        fates = [_Fate(batch) for batch in batches]
        deadline, pending = _now() + SEND_S_MAX, fates
        while True:
            await self._produce_once(pending)
            pending = [fate for fate in pending if not fate.appended and _may_pass(fate)]
            if not pending or any(_settled_badly(fate) for fate in fates) or _now() + MOVED_BACKOFF_S > deadline:
                return fates
            await asyncio.sleep(MOVED_BACKOFF_S)
            await self._find_leaders({fate.batch.place[0] for fate in pending})

    async def _find_leaders(self, topics: set[str]) -> None:
        try:
            await self._topics.refresh(list(topics))
        except Unavailable:
            pass  # the next try says so

    async def _produce_once(self, fates: list[_Fate]) -> None:
        by_leader: dict[int, list[_Fate]] = defaultdict(list)
        for fate in fates:
            by_leader[self._topics.leader(*fate.batch.place)].append(fate)
        for fate in by_leader.pop(-1, []):
            fate.code = Code.LEADER_NOT_AVAILABLE
        if len(by_leader) == 1:
            [(leader, group)] = by_leader.items()
            await self._produce_to(leader, group)
        else:
            await asyncio.gather(*(self._produce_to(leader, group) for leader, group in by_leader.items()))

    async def _produce_to(self, leader: int, fates: list[_Fate]) -> None:
        by_topic: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        for fate in fates:
            topic, partition = fate.batch.place
            by_topic[topic].append((partition, fate.batch.data))
        request = ProduceRequest(
            transactional_id=self._coordinator.transactional_id,
            required_acks=ACKS_ALL,
            timeout=PRODUCE_TIMEOUT_MS,
            topics=list(by_topic.items()),
        )
        try:
            response = await self._connection.send(leader, request)
        except NotSent:
            for fate in fates:
                fate.code = Code.LEADER_NOT_AVAILABLE
        except Unanswered:
            for fate in fates:
                fate.code, fate.unsure = Code.REQUEST_TIMED_OUT, True
        else:
            _note(fates, response)

    # ------------------------------------------------------------ ending

    async def _end(self, result: bool) -> None:
        """Sends EndTxn, once. Raises OwnershipLost, OutcomeUnknown."""
        request = EndTxnRequest(
            transactional_id=self._coordinator.transactional_id,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            transaction_result=result,
        )
        self._enter(State.ENDING)
        try:
            response = await self._coordinator.send(request)
        except Unavailable as error:
            raise OutcomeUnknown(f"EndTxn of {self._coordinator.transactional_id}: {error}") from error
        code = Code(response.error_code)
        if code in FENCED:
            raise OwnershipLost(f"EndTxn of {self._coordinator.transactional_id}: {code.name}")
        if code is not Code.NONE:
            raise OutcomeUnknown(f"EndTxn of {self._coordinator.transactional_id}: {code.name}")
        self._enter(State.READY)


def _note(fates: list[_Fate], response: Any) -> None:
    answers = {
        (topic, partition): (Code(code), offset)
        for topic, partitions in response.topics
        for partition, code, offset, *_ in partitions
    }
    for fate in fates:
        code, offset = answers.get(fate.batch.place, (Code.UNKNOWN, -1))
        fate.code = code
        if code is Code.NONE:
            fate.offset = offset
        elif code in TOO_LARGE:
            fate.unsure = False  # the size is checked first: an earlier try was, or will be, refused too
        elif code not in CERTAINLY_NOT_APPENDED and code not in FENCED:
            fate.unsure = True


def _answers(response: Any) -> dict[Place, Code]:
    return {(topic, partition): Code(code) for topic, partitions in response.errors for partition, code in partitions}


def _may_pass(fate: _Fate) -> bool:
    return fate.code in PASSING or fate.code is Code.UNKNOWN


def _settled_badly(fate: _Fate) -> bool:
    return not fate.appended and not _may_pass(fate)


def _names(codes: Iterable[Code]) -> str:
    return ", ".join(sorted({code.name for code in codes}))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _before(deadline: float, work: Awaitable[Result]) -> Result:
    """Raises Unanswered at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            return await work
    except TimeoutError as error:
        raise Unanswered("not answered in time") from error
