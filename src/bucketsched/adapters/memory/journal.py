"""The journal of Kafka's semantics, in memory: for the simulation and for tests.

A `MemoryJournalWorld` stands for the broker; every lane's `MemoryJournal` talks to it. As in Kafka, an aborted or
committed transaction ends with a control marker that takes an offset, whoever initialised a lane last is its only
producer, and readers see nothing behind a transaction that is still open. Faults are asked for one by one with
`fail_next`; `pause` is awaited at the two places where a real commit waits for the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...core import failpoints
from ...core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from ...core.journal_record import written_ms
from ...core.message import Message
from ...ports import CommitRefused, JournalEntry

MESSAGE_BYTES_MAX = 1_000_000
READ_RECORDS_MAX = 100
"""Records that `read` yields at once."""

_STALE = -1


class Fault(Enum):
    """What happens to a commit."""

    REFUSED = "aborted; the stream is sound"
    LOST = "outcome unknown, and not committed"
    COMMITTED = "outcome unknown, and committed"
    PENDING = "outcome unknown; the request is under way until `land` or the lane's next init or fence"
    FENCED = "aborted by the broker, which looks like fencing"


class Stage(Enum):
    """Where a commit waits for the network."""

    PRODUCED = "everything is in the transaction, which is open"
    COMMITTED = "committed, and the answer is under way"


@dataclass(frozen=True, slots=True)
class CommittedMessage:
    """A message as a `read_committed` consumer sees it, with the place of its journal record."""

    message: Message
    lane: int
    offset: int


@dataclass(slots=True)
class _Transaction:
    messages: list[Message]
    record: bytes
    offset: int
    committing: bool = False


@dataclass(slots=True)
class _Lane:
    producer: int = 0
    start: int = 0
    next_offset: int = 0
    records: list[JournalEntry] = field(default_factory=list)
    open: _Transaction | None = None
    faults: deque[tuple[Fault, dict[int, str]]] = field(default_factory=deque)

    @property
    def stable_end(self) -> int:
        """Readers stop here: at the open transaction, or at the end."""
        return self.open.offset if self.open else self.next_offset


class MemoryJournalWorld:
    """What all lanes of one journal share.

    `committed` holds every visible message in commit order; `on_commit` is called after each commit. With `reachable`
    False the broker can't be reached; `sick_topics` take nothing. `pause(lane, stage)` may suspend a commit, or raise
    to end it there.
    """

    def __init__(
        self, lanes: int = 32, name: str = "memory-journal", message_bytes_max: int = MESSAGE_BYTES_MAX
    ) -> None:
        self.name = name
        self.message_bytes_max = message_bytes_max
        self.committed: list[CommittedMessage] = []
        self.on_commit: list[Callable[[], None]] = []
        self.pause: Callable[[int, Stage], Awaitable[None]] | None = None
        self.reachable = True
        self.sick_topics: set[str] = set()
        self._lanes = [_Lane() for _ in range(lanes)]

    def lane(self, lane: int) -> _Lane:
        """The state of one lane. Raises Unavailable where the broker is not reachable."""
        if not self.reachable:
            raise Unavailable("the journal can't be reached")
        return self._lanes[lane]

    def fail_next(self, lane: int, fault: Fault, culprits: dict[int, str] | None = None) -> None:
        """Lets the lane's next commit (of those not yet doomed) fail so; `culprits` only for REFUSED."""
        self._lanes[lane].faults.append((fault, culprits or {}))

    def land(self, lane: int) -> bool:
        """Lets a PENDING commit arrive; False if an init or fence came first."""
        transaction = self._lanes[lane].open
        if transaction is None or not transaction.committing:
            return False
        self.end_transaction(lane, commit=True)
        return True

    def take(self, lane: int) -> int:
        """What an init or fence does: aborts the open transaction; the number of the lane's only valid producer."""
        state = self.lane(lane)
        if state.open:
            self.end_transaction(lane, commit=False)
        state.producer += 1
        return state.producer

    def begin(self, lane: int, messages: Sequence[Message], record: bytes) -> _Transaction:
        """Opens a transaction with everything in it."""
        state = self._lanes[lane]
        assert state.open is None, "one commit at a time"
        state.open = _Transaction(list(messages), record, state.next_offset)
        state.next_offset += 1
        return state.open

    def end_transaction(self, lane: int, commit: bool) -> int:
        """Writes the control marker; the offset of the transaction's record."""
        state = self._lanes[lane]
        transaction, state.open = state.open, None
        assert transaction is not None
        state.next_offset += 1
        if commit:
            state.records.append(JournalEntry(transaction.offset, transaction.record))
            self.committed += [CommittedMessage(m, lane, transaction.offset) for m in transaction.messages]
            for callback in self.on_commit:
                callback()
        return transaction.offset

    def trim(self, lane: int, before: int) -> None:
        """Forgets the records before an offset."""
        state = self._lanes[lane]
        state.start = max(state.start, min(before, state.stable_end))
        state.records = [entry for entry in state.records if entry.offset >= state.start]

    def recreate(self, lane: int) -> None:
        """As if the topic had been deleted and made anew: offsets begin at 0. The producer is still known."""
        state = self._lanes[lane]
        state.records, state.start, state.next_offset, state.open = [], 0, 0, None

    def plant(self, lane: int, value: bytes) -> int:
        """A record with these bytes, committed by nobody; its offset."""
        state = self._lanes[lane]
        state.records.append(JournalEntry(state.next_offset, value))
        state.next_offset += 1
        return state.next_offset - 1

    def queue_messages(self, namespace_id: bytes, queue: str) -> list[Message]:
        """What a `read_committed` consumer of a queue has seen so far."""
        return [
            c.message
            for c in self.committed
            if c.message.queue.namespace_id == namespace_id and c.message.queue.name == queue
        ]

    async def reach(self, lane: int, stage: Stage) -> None:
        """Suspends a commit as `pause` wants it, or for one turn of the loop."""
        if self.pause is None:
            await asyncio.sleep(0)
        else:
            await self.pause(lane, stage)


class MemoryJournal:
    """One process's stream of one lane of a world. See ports.Journal."""

    def __init__(self, world: MemoryJournalWorld, lane: int) -> None:
        self._world = world
        self._lane = lane
        self._producer = _STALE
        self._transaction: _Transaction | None = None

    @property
    def name(self) -> str:
        """Of the whole journal."""
        return self._world.name

    @property
    def lane(self) -> int:
        """The lane that this instance writes."""
        return self._lane

    async def init(self) -> None:
        """See ports.Journal."""
        self._producer = self._world.take(self._lane)

    async def fence(self, lane: int) -> None:
        """See ports.Journal."""
        self._world.take(lane)

    async def commit(self, messages: Sequence[Message], record: bytes) -> int:
        """See ports.Journal."""
        self._refuse_oversized(messages)
        producer, self._producer = self._producer, _STALE
        if not self._world.reachable:
            raise OutcomeUnknown("the journal can't be reached")
        state = self._world.lane(self._lane)
        if producer != state.producer:
            raise OwnershipLost(f"lane {self._lane} has another producer")
        fault, culprits = state.faults.popleft() if state.faults else (None, {})
        transaction = self._transaction = self._world.begin(self._lane, messages, record)
        await self._world.reach(self._lane, Stage.PRODUCED)
        failpoints.reach("dispatch.produced")
        if state.open is not transaction:
            raise OwnershipLost(f"lane {self._lane} was fenced")
        if fault is not None:
            self._fail(fault, culprits, producer, transaction)
        offset = self._world.end_transaction(self._lane, commit=True)
        await self._world.reach(self._lane, Stage.COMMITTED)
        self._producer = producer
        return offset

    def _refuse_oversized(self, messages: Sequence[Message]) -> None:
        limit = self._world.message_bytes_max
        culprits = {i: f"larger than {limit} bytes" for i, message in enumerate(messages) if message.size > limit}
        if culprits:
            raise CommitRefused("too large", culprits)
        if sick := self._world.sick_topics & {message.topic for message in messages}:
            raise CommitRefused("topics without a leader", sick_topics=sick)

    def _fail(self, fault: Fault, culprits: dict[int, str], producer: int, transaction: _Transaction) -> None:
        if fault is Fault.PENDING:
            transaction.committing = True
            raise OutcomeUnknown("no answer to the end of the transaction")
        if fault is Fault.FENCED:
            self._world.take(self._lane)
            raise OwnershipLost(f"lane {self._lane}'s transaction was aborted by the broker")
        self._world.end_transaction(self._lane, commit=fault is Fault.COMMITTED)
        if fault is Fault.REFUSED:
            self._producer = producer
            raise CommitRefused("refused", culprits)
        raise OutcomeUnknown("no answer to the end of the transaction")

    async def start(self, lane: int) -> int:
        """See ports.Journal."""
        return self._world.lane(lane).start

    async def end(self, lane: int) -> int:
        """See ports.Journal."""
        return self._world.lane(lane).stable_end

    async def read(self, lane: int, start: int) -> AsyncIterator[list[JournalEntry]]:
        """See ports.Journal."""
        state = self._world.lane(lane)
        end = state.stable_end
        entries = [entry for entry in state.records if start <= entry.offset < end]
        for i in range(0, len(entries), READ_RECORDS_MAX):
            self._world.lane(lane)
            yield entries[i : i + READ_RECORDS_MAX]

    async def find(self, lane: int, at_ms: int) -> int | None:
        """See ports.Journal."""
        state = self._world.lane(lane)
        records = (entry for entry in state.records if entry.offset < state.stable_end)
        return next((entry.offset for entry in records if written_ms(entry.value) >= at_ms), None)

    async def trim(self, lane: int, before: int) -> bool:
        """See ports.Journal."""
        self._world.lane(lane)
        self._world.trim(lane, before)
        return False

    async def close(self) -> None:
        """See ports.Journal."""
        state = self._world.lane(self._lane) if self._world.reachable else None
        if state and state.open and state.open is self._transaction and not state.open.committing:
            self._world.end_transaction(self._lane, commit=False)
        self._producer = _STALE
