"""The journal and the dispatching of a lane, as transactions of one Kafka producer epoch.

The journal is one topic with a partition per lane. A transaction puts the messages into their queues' topics and the
packed record into the lane's partition, so that both or neither are visible to `read_committed` readers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ...config import KafkaSettings
from ...core.cluster import ClusterConstants
from ...core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from ...core.message import Message
from ...ports import CommitRefused, JournalEntry
from .batches import Batch, Item, Place, pack, size_of
from .codes import PASSING, REFUSED_FOR_GOOD, REFUSED_RECORDS, TOO_LARGE
from .connection import Connection
from .reader import Reader
from .routes import Routes
from .stream import Coordinator, Refusal, Refused, Stream
from .topic_map import TopicMap

ABANDON_S_MAX = 2.0
"""How long closing tries to abort an open transaction; its time-out does that too, but later."""
COMMIT_S_MAX = 12.0
"""A commit is answered within this, whatever happens."""
SWEEP_S_MAX = 12.0
"""Brokers look for timed-out transactions every 10 s."""
RECORD_INDEX = -1


class KafkaJournal:
    """Port Journal of one lane."""

    def __init__(self, settings: KafkaSettings, constants: ClusterConstants, lane: int) -> None:
        assert 0 <= lane < constants.lanes, lane
        self._settings = settings
        self._constants = constants
        self._lane = lane
        self._connection = Connection(settings, f"bucketsched-lane-{lane}")
        self._topics = TopicMap(self._connection)
        self._routes = Routes(self._topics, settings.message_bytes_max)
        stall_s_max = settings.transaction_timeout_ms / 1000 + SWEEP_S_MAX
        self._reader = Reader(self._connection, self._topics, constants.journal_name, stall_s_max)
        self._coordinators: dict[int, Coordinator] = {}
        self._stream: Stream | None = None
        self._batch_bytes: dict[str, int] = {}

    @property
    def name(self) -> str:
        """The journal's topic."""
        return self._constants.journal_name

    @property
    def lane(self) -> int:
        """The lane that this process writes."""
        return self._lane

    async def init(self) -> None:
        """Takes the lane's stream: aborts its open transaction and fences whoever wrote before. Raises Unavailable."""
        self._stream = None
        self._batch_bytes.clear()
        coordinator = self._coordinator(self._lane)
        await self._topics.know([self.name])
        if self._topics.leader(self.name, self._lane) < 0:
            raise Unavailable(f"the journal {self.name} has no partition {self._lane} that can be written")
        producer = await coordinator.new_epoch(self._settings.transaction_timeout_ms)
        self._stream = Stream(self._connection, self._topics, coordinator, producer)

    async def fence(self, lane: int) -> None:
        """Aborts the open transaction of a lane and fences its writer. Raises Unavailable.

        Fencing one's own lane ends one's own stream too: `init` comes next.
        """
        if lane == self._lane and self._stream is not None:
            self._stream.give_up()
        await self._coordinator(lane).new_epoch(self._settings.transaction_timeout_ms)

    async def commit(self, messages: Sequence[Message], record: bytes) -> int:
        """Commits the messages and the record in one transaction; the record's offset, within COMMIT_S_MAX.

        Raises CommitRefused, OwnershipLost, OutcomeUnknown (see ports.Journal). After the latter two, and after a
        cancelled call, only `init` helps.
        """
        stream = self._stream
        if stream is None or not stream.usable:
            raise OwnershipLost(f"lane {self._lane} has no producer epoch: init comes first")
        try:
            async with asyncio.timeout(COMMIT_S_MAX):
                return await self._commit(stream, messages, record)
        except TimeoutError as error:
            if stream.usable:
                raise CommitRefused(f"no answer within {COMMIT_S_MAX} s") from error
            raise OutcomeUnknown(f"no answer within {COMMIT_S_MAX} s") from error

    async def _commit(self, stream: Stream, messages: Sequence[Message], record: bytes) -> int:
        if size_of(None, record, []) > self._settings.message_bytes_max:
            raise CommitRefused(f"the journal's record of {len(record)} bytes is larger than message_bytes_max")
        try:
            placed = await self._routes.place(messages)
        except Unavailable as error:
            raise CommitRefused(f"routes: {error}") from error
        journal = (self.name, self._lane)
        cargo = {place: [_item(i, messages[i]) for i in indices] for place, indices in placed.items()}
        cargo[journal] = [Item(RECORD_INDEX, None, record, [])]
        try:
            offsets = await stream.commit(cargo, lambda: self._pack(stream, cargo))
        except Refused as error:
            raise self._explained(error, placed) from error
        return offsets[journal][0]

    def _pack(self, stream: Stream, cargo: dict[Place, list[Item]]) -> list[Batch]:
        batches = []
        for place, items in cargo.items():
            bytes_max = self._batch_bytes.get(place[0], self._settings.message_bytes_max)
            batches += pack(place, items, stream.producer, stream.sequence(place), bytes_max)
        return batches

    def _explained(self, error: Refused, placed: dict[Place, list[int]]) -> CommitRefused:
        """Who is to blame: messages that can never be sent, or nobody."""
        self._topics.forget(refusal.place[0] for refusal in error.refusals)
        culprits: dict[int, str] = {}
        sick = {refusal.place[0] for refusal in error.refusals if refusal.code in PASSING}
        for refusal in error.refusals:
            if refusal.place[0] == self.name:
                return CommitRefused(f"the journal: {error}")
            if refusal.code in TOO_LARGE:
                culprits |= self._too_large(refusal)
            elif refusal.code in REFUSED_RECORDS and refusal.batch and len(refusal.batch.indices) > 1:
                self._batch_bytes[refusal.place[0]] = len(refusal.batch.data) // 2  # which of them, smaller ones tell
            elif refusal.code in REFUSED_FOR_GOOD:
                indices = refusal.batch.indices if refusal.batch else placed[refusal.place]
                culprits |= dict.fromkeys(indices, f"topic {refusal.place[0]}: {refusal.code.name}")
        return CommitRefused(str(error), culprits, sick)

    def _too_large(self, refusal: Refusal) -> dict[int, str]:
        """A record that was refused alone is too large; of several the batch may be, so smaller ones come next."""
        batch, topic = refusal.batch, refusal.place[0]
        if batch is None:
            return {}
        if len(batch.indices) == 1:
            return {batch.indices[0]: f"{len(batch.data)} bytes are more than topic {topic} takes"}
        self._batch_bytes[topic] = len(batch.data) // 2
        return {}

    async def start(self, lane: int) -> int:
        """The first offset that trimming has left. Raises Unavailable."""
        return await self._reader.start(lane)

    async def end(self, lane: int) -> int:
        """An offset behind every record committed so far. Raises Unavailable."""
        return await self._reader.end(lane)

    async def read(self, lane: int, start: int) -> AsyncIterator[list[JournalEntry]]:
        """Committed records from `start` to the end as it stands at the call. Raises Unavailable.

        A `start` below `start(lane)` is Unavailable: callers ask for that first. Transactions that are open below the
        end are waited for, until they have timed out.
        """
        end = await self._reader.end(lane)
        async for entries in self._reader.read(lane, start, end):
            yield entries

    async def find(self, lane: int, at_ms: int) -> int | None:
        """The offset of the first committed record of this instant or later, by Kafka's time stamps; None: none.

        Raises Unavailable.
        """
        return await self._reader.find(lane, at_ms)

    async def trim(self, lane: int, before: int) -> bool:
        """Forgets the records before an offset; never what an open transaction holds. Raises Unavailable."""
        await self._reader.trim(lane, before)
        return False

    async def close(self) -> None:
        """Aborts what is open and lets go, within ABANDON_S_MAX and the connection's CLOSE_S_MAX."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                await asyncio.wait_for(stream.abandon(), ABANDON_S_MAX)
            except TimeoutError:
                pass  # the transaction's time-out aborts it
        await self._topics.close()
        await self._connection.close()

    def _coordinator(self, lane: int) -> Coordinator:
        if lane not in self._coordinators:
            self._coordinators[lane] = Coordinator(self._connection, self._constants.transactional_id(lane))
        return self._coordinators[lane]


def _item(index: int, message: Message) -> Item:
    return Item(index, message.key, message.value, message.headers)
