"""Taking a range: lease, checkpoint, fence, replay, new checkpoint, clearing; only then is anything dispatched.

The order is that of the protocol's model; each step's reason:

1. lease        one atomic write: epoch + 1, and the former lane joins the unfenced predecessors unless it released.
2. checkpoint   read after the lease, so that no older owner's later progress is missed.
3. fence        every predecessor: its open transaction is aborted and nothing that it began can commit any more. One's
                own lane too, if it is among them.
4. replay       the journal partition that the checkpoint names, from there to its end *after* the fence. What it says
                of this range is stored (marks, moved rows); then a checkpoint of the new epoch, so that the next taker
                finds a partition in which everything older is stored.
5. clear        the predecessors, by a versioned write: it proves that the lease still stands.

From step 2 on the loader reads what is due soon, as a preload would: the checkpoint was read before those rows are, and
what became of them since is taken out when the replay is over. A try that fails leaves nothing of that: the next one
begins at another checkpoint, and what was marked between the two may have been read without its mark.

A range that was read ahead of its lease (see preload) is replayed from the checkpoint that was read *before* its rows,
if the one of step 2 is of the same epoch: what was marked between the two may have been read without its mark. Step 5
is needed also where nobody is to be fenced: who takes the range before it has read the checkpoint before step 4's, and
would fence this lane, but not replay it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from ..core import failpoints
from ..core.checkpoint import NO_OFFSET, Checkpoint, CheckpointCorrupt, record_hash
from ..core.errors import OwnershipLost, Unavailable
from ..core.execution import Attempt
from ..core.journal_record import JournalCorrupt, JournalRecord, Section, decode
from ..core.task import FactKind, Mark, StoredTask, TaskRow
from ..core.task_change import home_pointer
from ..core.waiting import Shared
from ..ports import CheckpointStore, Clock, Journal, JournalEntry, Leases, TaskStore
from .marker import write_consequences
from .owned_range import OwnedRange, Phase
from .successors import Moved, attempts_of, marks_of, moves_of, successors
from .takings import Taking

log = structlog.get_logger(__name__)
READ_LANES_MAX = 64
DECODED_PER_TURN = 1_000


class JournalMismatch(Exception):
    """The journal is not the one that the checkpoint was written for: recreated, or truncated. Or it settles a row
    twice, which can't be."""


class PreloadStale(Exception):
    """What was read ahead of the lease is of no use: somebody else has owned the range since."""


@dataclass(slots=True)
class Replay:
    """What a predecessor's journal says of one range since its checkpoint. `stored_offset`: the consequences of the
    records up to it are stored already.
    """

    stored_offset: int = NO_OFFSET
    settled: dict[bytes, FactKind] = field(default_factory=dict)
    marks: dict[bytes, Mark] = field(default_factory=dict)
    """By row: what is not known to be stored."""
    moved: list[Moved] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    first_open_bucket: int = 0

    def apply(self, offset: int, record: JournalRecord, section: Section) -> None:
        """Takes in one section of one record, in the journal's order. Raises JournalMismatch, JournalCorrupt."""
        stored = offset <= self.stored_offset
        for mark in marks_of(record, section):
            self._settle(mark, stored)
        if not stored:
            self.moved += moves_of(section)
            self.attempts += attempts_of(section)
        for bucket in section.closed:
            self.first_open_bucket = max(self.first_open_bucket, bucket + 1)

    def facts(self) -> list[Mark]:
        """What is to be stored: the marks, and what the home rows of moved tasks say from now on, in order."""
        pointers = (home_pointer(moved.ref, moved.new_due_ms) for moved in self.moved)
        return [*self.marks.values(), *(pointer for pointer in pointers if pointer is not None)]

    def _settle(self, mark: Mark, stored: bool) -> None:
        self.settled[mark.ref] = mark.kind
        if stored:
            return  # a checkpoint has passed it
        if mark.ref in self.marks:
            kinds = f"{self.marks[mark.ref].kind.name}, then {mark.kind.name}"
            raise JournalMismatch(f"the journal settles {mark.ref.hex()} twice behind the checkpoint: {kinds}")
        self.marks[mark.ref] = mark


@dataclass(slots=True)
class Stretch:
    """A part of a journal partition, decoded once for all ranges that are taken at the same time."""

    values: dict[int, bytes] = field(default_factory=dict)
    """Records by offset."""
    sections: dict[int, list[tuple[int, JournalRecord, Section]]] = field(default_factory=dict)
    """By range, with the records' offsets."""
    corrupt: list[tuple[int, JournalCorrupt]] = field(default_factory=list)

    def add(self, entry: JournalEntry) -> None:
        """The next record."""
        self.values[entry.offset] = entry.value
        try:
            record = decode(entry.value)
        except JournalCorrupt as error:
            self.corrupt.append((entry.offset, error))
            return
        for section in record.sections:
            self.sections.setdefault(section.range_id, []).append((entry.offset, record, section))

    def behind(self, offset: int, range_id: int) -> list[tuple[int, JournalRecord, Section]]:
        """What later records say of a range. Raises JournalCorrupt where that can't be known."""
        for at, error in self.corrupt:
            if at > offset:
                raise error
        return [found for found in self.sections.get(range_id, ()) if found[0] > offset]


class Takeover:
    """Takes ranges for one lane; what many takes need at once (a fence, a journal read) is done once."""

    def __init__(
        self,
        journal: Journal,
        leases: Leases,
        store: TaskStore,
        checkpoints: CheckpointStore,
        clock: Clock,
        reinitialise: Callable[[], Awaitable[None]],
        last: Callable[[], tuple[int, bytes]],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """`opened` is called when a range may be read ahead."""
        self._opened = opened
        self._journal, self._leases, self._store, self._checkpoints = journal, leases, store, checkpoints
        self._clock, self._reinitialise, self._last = clock, reinitialise, last
        self._fences: dict[int, Shared[None, None]] = {}
        self._reads: dict[int, Shared[int, Stretch]] = {}
        self.orders: dict[int, int] = {}
        """By range, of the checkpoint that was read last: an alarm stands until there is another one."""

    async def recover(self, owned: OwnedRange, taking: Taking, since: Checkpoint | None = None) -> None:
        """Steps 2 to 5 for a leased range; it is ACTIVE afterwards. `since`: the checkpoint that a preload began with.

        Raises Unavailable (again from step 2), OwnershipLost, JournalMismatch, JournalCorrupt, PreloadStale.
        """
        failpoints.reach("takeover.leased")
        checkpoint = await self._load(owned.range_id)
        failpoints.reach("takeover.checkpoint-read")
        taking.done("checkpoint")
        await self._check_epoch(owned, checkpoint)
        if since is not None and not _continues(checkpoint, since):
            raise PreloadStale(f"its checkpoint was of epoch {since.epoch}, now there is one of {checkpoint.epoch}")
        if since is None:
            owned.open(checkpoint.first_open_bucket, checkpoint.low_due_ms, self._clock.latest_ms())
            self._opened()
        for lane in owned.lease.predecessors:
            await self._fence(lane)
        failpoints.reach("takeover.fenced")
        taking.done("fence")
        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)
        taking.done("replay")
        moved = await successors(self._store, replay.moved)
        await write_consequences(self._store, moved, replay.attempts, replay.facts())
        failpoints.reach("takeover.replayed")
        taking.done("marks")
        successor = self._next_checkpoint(owned, checkpoint, replay)
        await self._checkpoints.save(owned.range_id, successor)
        failpoints.reach("takeover.checkpoint-written")
        taking.done("progress")
        await self._leases.clear_predecessors(owned.lease)
        failpoints.reach("takeover.cleared")
        taking.done("clearing")
        self._activate(owned, successor, replay, moved)
        log.debug(
            "range taken",
            range=owned.range_id,
            epoch=owned.epoch,
            replayed=len(replay.settled),
            preloaded=since is not None,
        )

    def _activate(self, owned: OwnedRange, checkpoint: Checkpoint, replay: Replay, moved: Sequence[TaskRow]) -> None:
        """One step: nobody sees what was read ahead without what became of it since. A moved row may have been written
        after its place was read. Raises OwnershipLost where the range was dropped meanwhile."""
        if owned.phase is not Phase.RECOVERING:
            raise OwnershipLost(f"range {owned.range_id} was dropped while it was taken")
        for ref, kind in replay.settled.items():
            owned.replayed(ref, kind)
        owned.resume(checkpoint.first_open_bucket, self._clock.latest_ms())
        for row in moved:
            if owned.begun(row.bucket):  # else it will be read
                owned.admit(StoredTask(row))
        owned.phase = Phase.ACTIVE

    async def _load(self, range_id: int) -> Checkpoint:
        """The checkpoint. Raises JournalMismatch where there is none that can be read, Unavailable."""
        try:
            checkpoint = await self._checkpoints.load(range_id)
        except CheckpointCorrupt as error:
            self.orders[range_id] = error.order
            raise JournalMismatch(str(error)) from error
        self.orders[range_id] = checkpoint.order if checkpoint else 0
        if checkpoint is None:
            raise JournalMismatch(f"range {range_id} has no checkpoint: run `bucketsched admin migrate`")
        return checkpoint

    async def _check_epoch(self, owned: OwnedRange, old: Checkpoint) -> None:
        """A lease service that was restored from an old copy gives epochs a second time: then there is a checkpoint of
        this epoch, or a later one, that is not ours. Its writer is fenced, and the range taken under the next epoch."""
        ours = old.epoch == owned.epoch and owned.sequence > 0
        if old.epoch >= owned.epoch and not ours:
            await self._fence(old.lane)
            raise OwnershipLost(f"range {owned.range_id} has a checkpoint of epoch {old.epoch}, ours is {owned.epoch}")
        if ours:
            owned.sequence = max(owned.sequence, old.sequence)  # an operator's is far ahead

    def _next_checkpoint(self, owned: OwnedRange, old: Checkpoint, replay: Replay) -> Checkpoint:
        offset, value_hash = self._last()
        owned.sequence += 1  # also for a second try: two checkpoints of one order could be mixed
        first = max(old.first_open_bucket, replay.first_open_bucket)
        low = {bucket: due for bucket, due in old.low_due_ms.items() if bucket >= first}
        return Checkpoint(
            owned.epoch, owned.sequence, self._journal.name, self._journal.lane, offset, value_hash, first, low
        )

    # ---- fencing

    async def _fence(self, lane: int) -> None:
        if lane not in self._fences:

            async def fence(_: list[None], lane: int = lane) -> None:
                own = lane == self._journal.lane
                await (self._reinitialise() if own else self._journal.fence(lane))

            self._fences[lane] = Shared(fence)
        await self._fences[lane].ask(None)

    # ---- replaying

    async def _replay(self, range_id: int, since: Checkpoint, current: Checkpoint) -> Replay:
        if since.journal != self._journal.name:
            raise JournalMismatch(f"the checkpoint is for journal {since.journal}, this is {self._journal.name}")
        applied = since.applied_offset
        stretch = await self._read(since.lane, max(applied, 0))
        if applied != NO_OFFSET:
            await self._verify(range_id, since, stretch.values.get(applied))
        replay = Replay(current.applied_offset)
        for offset, record, section in stretch.behind(applied, range_id):
            replay.apply(offset, record, section)
        return replay

    async def _verify(self, range_id: int, checkpoint: Checkpoint, value: bytes | None) -> None:
        """The record that the checkpoint ends with must still be there. If it was trimmed because the checkpoint has
        moved on meanwhile, the taker begins again; else the journal is not what it was."""
        if value is not None and record_hash(value) == checkpoint.applied_hash:
            return
        if (await self._load(range_id)).order != checkpoint.order:
            raise Unavailable("the checkpoint moved on while its journal was read")
        where = f"lane {checkpoint.lane}, offset {checkpoint.applied_offset}"
        raise JournalMismatch(f"range {range_id}: the journal does not hold the record of its checkpoint ({where})")

    async def _read(self, lane: int, start: int) -> Stretch:
        """The partition from `start`, or from somewhere before it, to its end."""
        if lane not in self._reads:
            assert len(self._reads) < READ_LANES_MAX

            async def read(starts: list[int], lane: int = lane) -> Stretch:
                found = Stretch()
                start = max(min(starts), await self._journal.start(lane))
                async for entries in self._journal.read(lane, start):
                    for at, entry in enumerate(entries, 1):
                        found.add(entry)
                        if at % DECODED_PER_TURN == 0:
                            await asyncio.sleep(0)  # dispatch goes on meanwhile
                return found

            self._reads[lane] = Shared(read)
        return await self._reads[lane].ask(start)


def _continues(current: Checkpoint, since: Checkpoint) -> bool:
    """True if nobody else has served the range between the two."""
    same = (current.epoch, current.journal, current.lane) == (since.epoch, since.journal, since.lane)
    return same and current.sequence >= since.sequence
