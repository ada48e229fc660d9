"""Kafka: transactions that are refused, fenced, timed out or ended late, and who consumes what was committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bucketsched.adapters.memory.journal import MESSAGE_BYTES_MAX, MemoryJournalWorld
from bucketsched.core import failpoints
from bucketsched.core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from bucketsched.core.journal_record import decode
from bucketsched.core.message import Message
from bucketsched.ports import CommitRefused, JournalEntry

from .loop import VirtualLoop
from .network import Network, NotSent, Unanswered

Result = TypeVar("Result")
KAFKA = "kafka"
REQUEST_S = 1.5
STALE = -1
PAGE_RECORDS = 5


class CommitObserver(Protocol):
    """Is told of everything that can't be taken back."""

    def committed(self, lane: int, offset: int, record: bytes, messages: Sequence[Message]) -> None:
        """A transaction became visible."""
        ...

    def fenced(self, lane: int) -> None:
        """Whoever wrote this lane before can't any more."""
        ...


@dataclass(slots=True)
class Trouble:
    """What the broker does with transactions now and then. Probabilities of one request."""

    refuses: float = 0.0
    fences: float = 0.0
    unknown: float = 0.0
    transaction_s_max: float = 5.0
    """After so long the broker aborts an open transaction, which looks like fencing."""


class Broker(MemoryJournalWorld):
    """The servers. Effects only: the way to them is the network's."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        lanes: int,
        observer: CommitObserver,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        super().__init__(lanes, "sim-journal", message_bytes_max)
        self._loop, self._rng, self._observer = loop, rng, observer
        self.trouble = Trouble()

    def produce(self, lane: int, producer: int, messages: Sequence[Message], record: bytes) -> None:
        """Opens a transaction with everything in it. Raises CommitRefused, OwnershipLost, OutcomeUnknown."""
        self._check_producer(lane, producer)
        limit = self.message_bytes_max
        if large := {at: "too large" for at, message in enumerate(messages) if message.size > limit}:
            raise CommitRefused("too large", large)
        if sick := self.sick_topics & {message.topic for message in messages}:
            raise CommitRefused("topics without a leader", sick_topics=sick)
        fate = self._rng.random()
        if fate < self.trouble.refuses:
            raise CommitRefused("not now")
        if fate < self.trouble.refuses + self.trouble.fences:
            self.take(lane)
            raise OwnershipLost(f"lane {lane}: the coordinator aborted the transaction")
        transaction = self.begin(lane, messages, record)
        self._loop.after(self.trouble.transaction_s_max, self._time_out, lane, transaction)

    def end(self, lane: int, producer: int, commit: bool) -> int:
        """EndTxn; it ends whatever that producer has open. Raises OwnershipLost, OutcomeUnknown."""
        self._check_producer(lane, producer)
        if self.lane(lane).open is None:
            raise OutcomeUnknown(f"lane {lane} has no open transaction")
        fate = self._rng.random()
        if fate < self.trouble.unknown / 2:
            raise OutcomeUnknown("the coordinator moves")
        offset = self.end_transaction(lane, commit)
        if fate < self.trouble.unknown:
            raise OutcomeUnknown("the coordinator moved")
        return offset

    def _check_producer(self, lane: int, producer: int) -> None:
        if self.lane(lane).producer != producer:
            if self._rng.random() < 0.2:
                raise OutcomeUnknown(f"lane {lane}: an unknown error, of a fence")
            raise OwnershipLost(f"lane {lane} has another producer")

    def _time_out(self, lane: int, transaction: object) -> None:
        if self.lane(lane).open is transaction:
            self.take(lane)

    def take(self, lane: int) -> int:
        """See MemoryJournalWorld."""
        producer = super().take(lane)
        self._observer.fenced(lane)
        return producer

    def end_transaction(self, lane: int, commit: bool) -> int:
        """See MemoryJournalWorld."""
        transaction = self.lane(lane).open
        assert transaction is not None
        offset = super().end_transaction(lane, commit)
        if commit:
            self._observer.committed(lane, offset, transaction.record, transaction.messages)
        return offset

    def entries(self, lane: int, start: int) -> list[JournalEntry]:
        """Committed records from `start` on."""
        state = self.lane(lane)
        if start < state.start:
            raise Unavailable(f"lane {lane} begins at {state.start}")
        return [entry for entry in state.records if start <= entry.offset < state.stable_end]


class SimJournal:
    """One process's stream of one lane. Implements ports.Journal."""

    def __init__(self, broker: Broker, network: Network, node: str, lane: int) -> None:
        self._broker, self._network, self._node, self._lane = broker, network, node, lane
        self._producer = STALE
        self._open_of: int | None = None

    @property
    def name(self) -> str:
        """See ports.Journal."""
        return self._broker.name

    @property
    def lane(self) -> int:
        """See ports.Journal."""
        return self._lane

    async def init(self) -> None:
        """See ports.Journal."""
        self._producer = STALE
        self._producer = await self._ask(lambda: self._broker.take(self._lane))

    async def fence(self, lane: int) -> None:
        """See ports.Journal."""
        await self._ask(lambda: self._broker.take(lane))

    async def commit(self, messages: Sequence[Message], record: bytes) -> int:
        """See ports.Journal."""
        producer, self._producer = self._producer, STALE
        if producer == STALE:
            raise OwnershipLost(f"lane {self._lane} has no producer: init comes first")
        try:
            await self._call(lambda: self._broker.produce(self._lane, producer, messages, record))
        except NotSent as error:
            self._producer = producer
            raise CommitRefused(str(error)) from error
        except CommitRefused:
            self._producer = producer
            raise
        except Unanswered as error:
            raise OutcomeUnknown(str(error)) from error
        self._open_of = producer
        failpoints.reach("dispatch.produced")
        await asyncio.sleep(0)  # a process may stop here
        self._open_of = None
        try:
            offset = await self._call(lambda: self._broker.end(self._lane, producer, True))
        except (NotSent, Unanswered) as error:
            raise OutcomeUnknown(str(error)) from error
        self._producer = producer
        return offset

    async def start(self, lane: int) -> int:
        """See ports.Journal."""
        return await self._ask(lambda: self._broker.lane(lane).start)

    async def end(self, lane: int) -> int:
        """See ports.Journal."""
        return await self._ask(lambda: self._broker.lane(lane).stable_end)

    async def read(self, lane: int, start: int) -> AsyncIterator[list[JournalEntry]]:
        """See ports.Journal."""
        entries = await self._ask(lambda: self._broker.entries(lane, start))
        for at in range(0, len(entries), PAGE_RECORDS):
            if at:
                await self._ask(lambda: None)
            yield entries[at : at + PAGE_RECORDS]

    async def find(self, lane: int, at_ms: int) -> int | None:
        """See ports.Journal."""
        entries = await self._ask(lambda: self._broker.entries(lane, self._broker.lane(lane).start))
        return next((entry.offset for entry in entries if decode(entry.value).at_ms >= at_ms), None)

    async def trim(self, lane: int, before: int) -> bool:
        """See ports.Journal."""
        await self._ask(lambda: self._broker.trim(lane, before))
        return False

    async def close(self) -> None:
        """See ports.Journal."""
        producer, self._open_of, self._producer = self._open_of, None, STALE
        if producer is not None:
            try:
                await self._call(lambda: self._broker.end(self._lane, producer, False))
            except (NotSent, Unanswered, OwnershipLost, OutcomeUnknown):
                pass

    async def _ask(self, effect: Callable[[], Result]) -> Result:
        try:
            return await self._call(effect)
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error

    async def _call(self, effect: Callable[[], Result]) -> Result:
        result: Result = await self._network.call(self._node, KAFKA, effect, REQUEST_S)
        return result
