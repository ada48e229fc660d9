"""From due heaps to committed transactions: one at a time for all ranges of the lane."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Set

import structlog

from ..core import failpoints
from ..core.checkpoint import record_hash
from ..core.errors import OutcomeUnknown, OwnershipLost, Unavailable
from ..core.journal_record import JournalCorrupt, JournalRecord, decode, encode
from ..core.lateness import why_late
from ..core.message import to_message
from ..core.notice_rule import NoticeEvent
from ..core.ready_queue import ReadyQueue
from ..core.task import FactKind, TaskRow
from ..core.waiting import first_of
from ..ports import Clock, CommitRefused, HintAnswer, Journal, Leases
from .batch import Batch, Closing, Mutation
from .breaker import TopicBreaker
from .consequence import Consequence
from .figures import LaneCounters
from .limits import FAILURES_PER_TRANSACTION_MAX, RECORD_BODIES_BYTES_MAX, LaneLimits
from .marker import Marker
from .notifier import Notifier
from .owned_range import MARKED, QUEUED, OwnedRange, Phase
from .queue_directory import QueueDirectory

log = structlog.get_logger(__name__)
PROMOTED_MAX = 4_000
"""Rows moved from the heaps to the ready queue in one turn: of many, the first must not wait for the last."""
BACKLOG_MS = 1_000
"""Rows that have waited for so long are a backlog: their order counts more than a moment."""
OUTAGE_MS = 60_000
"""Rows that were due so long before their range was taken are the backlog of an outage."""
BLOCKED_TOPICS_MAX = 10_000
"""Topics of which it is remembered when they last took nothing."""
EVERY_TOPIC = ""
IDLE_S_MAX = 1.0
"""The time that is waited for may come sooner than sleeping tells: after a suspension, or when the clock is set."""
RETRY_S_MIN, RETRY_S_MAX = 0.02, 1.0
MISMATCHES_MAX, MISMATCH_PAUSE_S = 5, 0.5
"""So many times in a row, at such intervals, the journal must lack the lane's last record: a replica that has just come
to lead may not know yet how far it goes."""


class LaneLost(Exception):
    """This lane's slot or session is gone: everything that it owned may belong to others."""


class _Mismatch(Exception):
    """The journal is not the one that this lane has written: recreated, or truncated."""


class Dispatcher:
    """The only writer of the lane's journal. `turn` is held from the choice of a batch until its outcome is known."""

    def __init__(
        self,
        ranges: dict[int, OwnedRange],
        journal: Journal,
        leases: Leases,
        marker: Marker,
        queues: QueueDirectory,
        clock: Clock,
        limits: LaneLimits,
        counters: LaneCounters | None = None,
    ) -> None:
        self._ranges, self._journal, self._leases, self._marker = ranges, journal, leases, marker
        self.counters = counters or LaneCounters()
        self._queues, self._clock, self._limits = queues, clock, limits
        self.notifier = Notifier(queues, clock)
        self._ready: ReadyQueue[OwnedRange] = ReadyQueue(limits.ageing_ms)
        self._mutations: deque[Mutation | Closing] = deque()
        self._failing: list[tuple[TaskRow, OwnedRange, str]] = []
        self._unrouted: dict[tuple[bytes, str], list[tuple[TaskRow, OwnedRange]]] = {}
        self._breaker = TopicBreaker()
        self._blocked_ms: dict[str, int] = {}
        self._searches: set[asyncio.Task[None]] = set()
        self._began = float("-inf")
        self._retry_s = RETRY_S_MIN
        self._ended = False
        self._error: BaseException | None = None
        self.wake = asyncio.Event()
        self.turn = asyncio.Lock()
        self.last: tuple[int, bytes] = (-1, b"")
        self.stuck_since: float | None = None
        """Monotonic seconds: since when no transaction has got through. None: the last one has, or was to blame."""
        self.drained: Callable[[], None] = lambda: None

    # ---- from outside

    @property
    def ready_rows(self) -> int:
        """Rows that are due and wait for a transaction."""
        return len(self._ready)

    @property
    def changes_waiting(self) -> int:
        """Changes that wait for a transaction."""
        return len(self._mutations)

    async def begin(self) -> None:
        """Takes the lane's stream: init, then validate, then a first record, behind which this process begins.

        Raises Unavailable, LaneLost.
        """
        await self._journal.init()
        await self._validate()
        value = encode(JournalRecord(self._journal.lane, os.urandom(16), self._clock.now_ms(), []))
        try:
            offset = await self._journal.commit([], value)
        except (CommitRefused, OwnershipLost, OutcomeUnknown) as error:
            raise Unavailable(f"the lane's first record could not be written: {error}") from error
        self.last = (offset, record_hash(value))
        self._marker.restart(*self.last)

    def submit(self, change: Mutation | Closing) -> None:
        """Queues a change for the next transaction. Raises Unavailable."""
        if self._ended:
            raise Unavailable("the lane has ended")
        if len(self._mutations) >= self._limits.mutations_waiting_max:
            raise Unavailable("too many changes wait for the journal")
        self._mutations.append(change)
        self.wake.set()

    def abandon(self) -> None:
        """The lane has ended: whoever waits for a change is sent to the next owner."""
        self._ended = True
        for search in self._searches:
            search.cancel()
        while self._mutations:
            change = self._mutations.popleft()
            change.answer(False) if isinstance(change, Closing) else change.refuse(HintAnswer.NOT_OWNER)

    async def reinitialise(self) -> None:
        """Fences this lane's own former life: init, validate. Raises Unavailable, LaneLost."""
        async with self.turn:
            await self._journal.init()
            try:
                await self._validate()
            except BaseException as error:
                self._error = error  # this is the lane's last producer now, with nothing that says it may be
                self.wake.set()
                raise

    async def run(self) -> None:
        """Dispatches until cancelled. Raises LaneLost, and what validating or looking for a queue has raised."""
        while True:
            await self._pause()
            await self._promote_backlog()
            async with self.turn:
                if self._error is not None:
                    raise self._error
                batch = self._collect()
                if batch or self.stuck_since is not None:  # an empty one proves that they get through again
                    self._began = self._clock.monotonic()
                    await self._commit(batch)
                    self.drained()

    # ---- choosing

    async def _pause(self) -> None:
        """Until something is due, and the transaction before is long enough ago."""
        while (wait := self._seconds_to_next()) > 0:
            self.wake.clear()
            if (wait := self._seconds_to_next()) > 0:
                await first_of(self.wake, self._clock, wait)
        pace = self._began + self._limits.transaction_interval_ms / 1000 - self._clock.monotonic()
        if pace > 0:
            await self._clock.sleep(pace)

    def _seconds_to_next(self) -> float:
        if self._mutations or self._failing or self._error or self.stuck_since is not None:
            return 0
        if self._marker.full:
            return RETRY_S_MAX
        if len(self._ready):
            return 0
        until_retry = IDLE_S_MAX
        if (retry := self._breaker.next_release()) is not None:
            until_retry = retry - self._clock.monotonic()
        dues = [owned.heap.next_due_ms for owned in self._ranges.values() if owned.phase is Phase.ACTIVE]
        soonest = min((due for due in dues if due is not None), default=None)
        if soonest is None:
            return min(IDLE_S_MAX, until_retry)
        return min(IDLE_S_MAX, until_retry, (soonest - self._clock.earliest_ms()) / 1000)

    def _collect(self) -> Batch:
        now_ms = self._clock.earliest_ms()
        batch = Batch(now_ms, os.urandom(16))
        claimed = self._collect_changes(batch)
        if not self._marker.full and batch.body_bytes <= RECORD_BODIES_BYTES_MAX:
            self._promote(now_ms)
            self._collect_due(batch, claimed)
        return batch

    async def _promote_backlog(self) -> None:
        """What waited for long goes in (priority, due) order, which only the ready queue knows: so all that is loaded
        must be there first. Others get their turns meanwhile.
        """
        now_ms = self._clock.earliest_ms()
        while self._overdue(now_ms - BACKLOG_MS) and not self._marker.full:
            self._promote(now_ms)
            await asyncio.sleep(0)

    def _overdue(self, before_ms: int) -> bool:
        """True if a row in the heaps was due before this."""
        active = (owned for owned in self._ranges.values() if owned.phase is Phase.ACTIVE)
        return any((due := owned.heap.next_due_ms) is not None and due < before_ms for owned in active)

    def _promote(self, now_ms: int) -> None:
        for row, owned in self._breaker.release(self._clock.monotonic()):
            self._make_ready(row, owned)
        left = PROMOTED_MAX
        for owned in self._ranges.values():
            if owned.phase is Phase.ACTIVE and left > 0:
                for row in owned.heap.pop_due(now_ms, left):
                    self._make_ready(row, owned)
                    left -= 1

    def _make_ready(self, row: TaskRow, owned: OwnedRange) -> None:
        """What was long due already when its range was taken goes beside the present, paced by queue, not before it."""
        backlog = row.due_ms < owned.served_from_ms - OUTAGE_MS
        self._ready.push(row, owned, backlog)

    def _collect_changes(self, batch: Batch) -> set[bytes]:
        claimed: set[bytes] = set()
        for _ in range(min(len(self._mutations), self._limits.transaction_tasks_max)):
            if batch.body_bytes and batch.body_bytes + self._mutations[0].size > RECORD_BODIES_BYTES_MAX:
                break
            change = self._mutations.popleft()
            if change.done.done():
                pass  # whoever asked has gone and was told that nothing came of it
            elif isinstance(change, Closing):
                self._collect_closing(batch, change)
            else:
                self._collect_mutation(batch, change, claimed)
        failing, self._failing = (
            self._failing[:FAILURES_PER_TRANSACTION_MAX],
            self._failing[FAILURES_PER_TRANSACTION_MAX:],
        )
        for row, owned, reason in failing:
            if owned.status(row.ref) != QUEUED:
                owned.leave(row)
            elif owned.phase is not Phase.ACTIVE:
                owned.heap.push(row)  # it goes on if the hand-over does not come about
            elif row.ref in claimed:
                batch.withheld.append((row, owned))
            else:
                claimed.add(row.ref)
                batch.failed.append((row, owned, reason))
                self._tell(batch, row, NoticeEvent.DEAD_LETTERED)
        return claimed

    def _collect_mutation(self, batch: Batch, change: Mutation, claimed: set[bytes]) -> None:
        status = change.owned.status(change.ref)
        if change.owned.phase is not Phase.ACTIVE:
            change.refuse(HintAnswer.NOT_OWNER)
        elif not all(change.owned.is_open(row.bucket) for row in change.made):
            change.refuse(HintAnswer.NOT_READY)  # it has waited for so long that nobody looks there any more
        elif status is not None and status != QUEUED:
            change.answer(FactKind(status % MARKED), -1)
        elif change.ref in claimed:
            self._mutations.append(change)  # answered by what this transaction decides
        else:
            claimed.add(change.ref)
            batch.mutations.append(change)
            batch.body_bytes += change.size

    def _collect_closing(self, batch: Batch, closing: Closing) -> None:
        owned = closing.owned
        first = closing.bucket == owned.first_open_bucket
        made = (row for change in batch.mutations if change.owned is owned for row in change.made)
        moved = any(row.bucket == closing.bucket for row in made)
        moved = moved or owned.awaits(closing.bucket)
        if owned.phase is Phase.ACTIVE and first and not moved and not owned.queued[closing.bucket]:
            owned.closing = closing.bucket
            batch.closings.append(closing)
        else:
            closing.answer(False)

    def _collect_due(self, batch: Batch, claimed: set[bytes]) -> None:
        size = 0
        while len(self._ready) and len(batch.sent) < self._limits.transaction_tasks_max:
            if size >= self._limits.transaction_bytes_max:
                break
            row, owned = self._ready.pop()
            if owned.phase is not Phase.ACTIVE:
                owned.heap.push(row)  # it goes on if the hand-over does not come about
            elif row.ref in claimed:
                batch.withheld.append((row, owned))
            elif owned.status(row.ref) != QUEUED:
                owned.leave(row)
            elif row.due_ms > batch.at_ms:
                owned.heap.push(row)  # the clock went back since it was due: the others need not wait for it
            else:
                size += self._route(batch, row, owned)

    def _route(self, batch: Batch, row: TaskRow, owned: OwnedRange) -> int:
        """Makes the row's message, or sets it aside; the bytes that it adds."""
        if not row.body.type:
            batch.failed.append((row, owned, "its body can't be decoded"))
            return 0
        name = (row.namespace_id, row.body.queue)
        if not self._queues.known(*name):
            self._set_aside(name, row, owned)
            return 0
        if 0 < row.body.expires_ms < batch.at_ms:
            batch.expired.append((row, owned))
            self._tell(batch, row, NoticeEvent.EXPIRED)
            return 0
        queue = self._queues.get(*name)
        if queue is None:
            batch.failed.append((row, owned, f"queue {row.body.queue!r} does not exist"))
            self._tell(batch, row, NoticeEvent.DEAD_LETTERED)
            return 0
        topic = queue.topic_for(row.body.priority)
        if self._breaker.holds(topic, row, owned, self._clock.monotonic()):
            self._note_blocked(topic)
            return 0
        blocked_ms = max(self._blocked_ms.get(topic, 0), self._blocked_ms.get(EVERY_TOPIC, 0))
        if (late := why_late(row, batch.at_ms, owned.served_from_ms, blocked_ms)) is not None:
            batch.late[late] += 1
        if (row.body.notices or queue.policy.notices) and (told := self.notifier.of_late(row, batch.at_ms)):
            batch.notices[row.ref] = told
        message = to_message(row, queue, owned.epoch, batch.at_ms, late)
        batch.sent.append((row, owned))
        batch.messages.append(message)
        batch.latest_due_ms = max(batch.latest_due_ms, row.due_ms)
        return message.size

    def _tell(self, batch: Batch, row: TaskRow, event: NoticeEvent) -> None:
        if told := self.notifier.of(row, event):
            batch.notices[row.ref] = told

    def _note_blocked(self, topic: str) -> None:
        """Nothing goes there just now: what is due already will be late for that reason."""
        if len(self._blocked_ms) >= BLOCKED_TOPICS_MAX:
            self._blocked_ms.clear()
        self._blocked_ms[topic] = self._clock.now_ms()

    def _set_aside(self, name: tuple[bytes, str], row: TaskRow, owned: OwnedRange) -> None:
        if name not in self._unrouted:
            self._unrouted[name] = []
            search = asyncio.create_task(self._find_queue(name))
            self._searches.add(search)
            search.add_done_callback(self._searched)
        self._unrouted[name].append((row, owned))

    def _searched(self, search: asyncio.Task[None]) -> None:
        self._searches.discard(search)
        if not search.cancelled() and search.exception() is not None:
            self._error = search.exception()
            self.wake.set()

    async def _find_queue(self, name: tuple[bytes, str]) -> None:
        while not await self._queues.fetch(*name):
            await self._clock.sleep(RETRY_S_MAX)
        for row, owned in self._unrouted.pop(name):
            self._make_ready(row, owned)
        self.wake.set()

    # ---- committing

    async def _commit(self, batch: Batch) -> None:
        if batch.latest_due_ms > self._clock.earliest_ms():
            log.error("the clock went back: nothing is dispatched early", due_ms=batch.latest_due_ms, recurring=True)
            self._restore(batch)
            await self._clock.sleep(RETRY_S_MIN)
            return
        value = encode(batch.record(self._journal.lane))
        if self.stuck_since is None:
            self.stuck_since = self._clock.monotonic()
        try:
            offset = await self._committed(batch, value)
        except CommitRefused as refusal:
            await self._refused(batch, refusal)
        except BaseException:
            self._restore(batch)  # whoever waits for it is answered by `abandon`
            raise
        else:
            failpoints.reach("dispatch.committed")
            self._retry_s, self.stuck_since = RETRY_S_MIN, None
            self._settle(batch, offset, value) if offset is not None else self._restore(batch)

    async def _committed(self, batch: Batch, value: bytes) -> int | None:
        """The offset of the record, or None where a transaction in doubt turned out not to be committed."""
        began = self._clock.monotonic()
        try:
            offset = await self._journal.commit(batch.messages, value)
            self.counters.transaction_s.observe(self._clock.monotonic() - began)
            return offset
        except (OwnershipLost, OutcomeUnknown) as doubt:
            self.counters.transactions["in_doubt"] += 1
            kind = type(doubt).__name__
            log.warning("transaction in doubt", reason=str(doubt), kind=kind, tasks=len(batch.sent), recurring=True)
            resolved = await self._resolve(batch.nonce)
            self._note_blocked(EVERY_TOPIC)
            return resolved

    async def _refused(self, batch: Batch, refusal: CommitRefused) -> None:
        """Nothing was committed. What can never be sent is failed, the rest goes again."""
        self.counters.transactions["refused"] += 1
        log.warning("transaction refused", reason=str(refusal), culprits=len(refusal.culprits), recurring=True)
        for index, reason in refusal.culprits.items():
            self._failing.append((*batch.sent[index], reason))
        self._restore(batch, set(refusal.culprits))
        for topic in refusal.sick_topics:
            self._breaker.trip(topic, self._clock.monotonic())
            self._note_blocked(topic)
        if refusal.culprits or refusal.sick_topics:
            self.stuck_since = None
        else:
            self._note_blocked(EVERY_TOPIC)
            await self._clock.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, RETRY_S_MAX)

    def _restore(self, batch: Batch, without: Set[int] = frozenset()) -> None:
        """Nothing of the batch was committed: everything is as before."""
        for index, (row, owned) in enumerate(batch.sent):
            if index not in without:
                self._make_ready(row, owned)
        for row, owned in (*batch.withheld, *batch.expired):
            self._make_ready(row, owned)
        self._failing.extend(batch.failed)
        self._mutations.extend(batch.mutations)
        self._mutations.extend(batch.closings)
        for closing in batch.closings:
            closing.owned.closing = None

    def _settle(self, batch: Batch, offset: int, value: bytes) -> None:
        """The batch is committed: make it known, and have it marked."""
        self.last = (offset, record_hash(value))
        self.counters.transactions["committed"] += 1
        self.counters.dispatched((row.due_ms for row, _ in batch.sent), self._clock.now_ms())
        self._breaker.healed({message.topic for message in batch.messages})
        settled = batch.settled()
        self.counters.settled.update(kind for _, kind, _ in settled)
        self.counters.late.update(batch.late)
        for ref, kind, owned in settled:
            owned.settle(ref, kind)
        failed = [(row, owned) for row, owned, _ in batch.failed]
        for row, owned in (*batch.sent, *batch.withheld, *batch.expired, *failed):
            owned.leave(row)
        made = {change.ref: change.made for change in batch.mutations if change.made} | batch.notices
        attempts = {change.ref: change.attempt for change in batch.mutations if change.attempt}
        self._marker.add(
            *self.last,
            [
                Consequence(mark, owned, made.get(mark.ref, ()), attempts.get(mark.ref))
                for mark, (_, _, owned) in zip(batch.marks(), settled, strict=True)
            ]
            + batch.pointers(),
        )
        for ref, _, owned in settled if made else ():
            if owned.phase is not Phase.GONE:
                for row in made.get(ref, ()):
                    owned.move_in(row)
        for change in batch.mutations:
            change.answer(change.kind, offset)
        for closing in batch.closings:
            closing.owned.close(closing.bucket)
            closing.answer(True)

    # ---- doubt

    async def _validate(self) -> None:
        """Drops the ranges that are no longer ours. Waits while the lease service can't be reached. Raises LaneLost."""
        pause = RETRY_S_MIN
        while True:
            owned = [o for o in self._ranges.values() if o.phase is not Phase.GONE]
            try:
                ours = await self._leases.validate([o.lease for o in owned])
                break
            except OwnershipLost as error:
                raise LaneLost(str(error)) from error
            except Unavailable as error:
                log.warning("lane waits for the lease service", error=str(error), recurring=True)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)
        for one in owned:
            if one.range_id not in ours:
                self.drop(one)

    def drop(self, owned: OwnedRange) -> None:
        """The range is somebody else's now."""
        self.counters.ranges_lost += 1
        log.warning("range lost", range=owned.range_id, epoch=owned.epoch)
        owned.phase = Phase.GONE
        if self._ranges.get(owned.range_id) is owned:
            del self._ranges[owned.range_id]

    async def _resolve(self, nonce: bytes) -> int | None:
        """Init, validate, then read the own journal to its end: the offset of the record in doubt, or None.

        Raises LaneLost where the journal is not the one that this lane has written: whoever takes the ranges finds that
        out for each, and raises the alarm.
        """
        pause, mismatches = RETRY_S_MIN, 0
        while True:
            try:
                await self._journal.init()
                await self._validate()
                return await self._find(nonce)
            except _Mismatch:
                mismatches += 1
                log.error("the journal does not hold the lane's last record", offset=self.last[0], recurring=True)
                if mismatches >= MISMATCHES_MAX:
                    raise LaneLost(f"the journal does not hold the lane's last record, {self.last[0]}") from None
                await self._clock.sleep(MISMATCH_PAUSE_S)
            except Unavailable as error:
                log.warning("lane waits for the journal", error=str(error), recurring=True)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_S_MAX)

    async def _find(self, nonce: bytes) -> int | None:
        """Raises _Mismatch where the record that this lane has committed last is not there, nor was trimmed away."""
        last, value_hash = self.last
        start = await self._journal.start(self._journal.lane)
        held = start > last
        async for entries in self._journal.read(self._journal.lane, max(start, last)):
            for entry in entries:
                held = held or (entry.offset == last and record_hash(entry.value) == value_hash)
                if not held:
                    raise _Mismatch
                if _nonce_of(entry.value) == nonce:
                    return entry.offset
        if not held:
            raise _Mismatch
        return None


def _nonce_of(value: bytes) -> bytes:
    """b"" where it is nothing that a lane has written: then it is not what is looked for."""
    try:
        return decode(value).nonce
    except JournalCorrupt:
        return b""
