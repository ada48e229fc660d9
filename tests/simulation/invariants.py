"""What must hold: checked where it can't be taken back (a commit, an answer, a mark), and at the end.

I1 to I13 are those of ARCHITECTURE.md. Those of ordering keys and schedules (I7, I12) belong here once the product has
them: what a commit shows goes into `committed`, the rest into `at_the_end`. What clients are told `answers` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bucketsched.core import task_id as ids
from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.journal_record import JournalRecord, Other, Section, decode
from bucketsched.core.message import DEFAULT_CONTENT_TYPE, Message, TaskEvent, from_headers
from bucketsched.core.task import (
    NO_BODY,
    FactKind,
    Mark,
    RowRef,
    Stage,
    TaskBody,
    TaskRow,
    at_stage,
    bucket_end_ms,
    stage_of,
)
from bucketsched.encoding.rows import decode_body
from bucketsched.poller.successors import successor
from bucketsched.ports import CancelResult

from .clock import WorldTime
from .replicas import StoreObserver
from .requests import TAG_BYTES, Request, Told, namespace_id
from .trace import Trace
from .versions import Versions


class Violation(Exception):
    """An invariant does not hold. `words`: what the trace's lines about it hold."""

    def __init__(self, invariant: str, what: str, *words: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant, self.what, self.words = invariant, what, set(words)


@dataclass(slots=True)
class Fate:
    """What became of one row, by the journal."""

    kind: FactKind
    lane: int
    offset: int
    at_ms: float


class Invariants(StoreObserver):
    """Watches broker, store and clients. The first violation is kept."""

    def __init__(self, constants: ClusterConstants, time: WorldTime, trace: Trace) -> None:
        self._constants, self._time, self._trace = constants, time, trace
        self.requests: list[Request] = []
        self.fates: dict[bytes, Fate] = {}
        self.violation: Violation | None = None
        self.ranges: Callable[[], dict[int, tuple[int, tuple[int, ...]]]] = dict
        """Epoch and unfenced predecessors of each range, as the lease service has them."""
        self.quorum_facts: Callable[[bytes], bool] = lambda ref: True
        self.clock_error_ms = 0.0
        """How far a node's clock may be off."""
        self._epochs: dict[int, int] = {}
        self._fenced: dict[tuple[int, int], int] = {}
        self._sections: dict[int, list[tuple[int, Section]]] = {}
        self._dispatched: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}
        self._cancelled: set[tuple[bytes, bytes]] = set()
        self._kinds_of: dict[tuple[bytes, bytes], set[FactKind]] = {}
        self.versions = Versions()
        self._closed: dict[int, int] = {}
        self._stored: dict[int, dict[bytes, float]] = {}
        self.offered: dict[bytes, float] = {}

    def fail(self, invariant: str, what: str, *words: str) -> None:
        """Notes a violation, unless there is one already: the first one explains most."""
        if self.violation is None:
            self.violation = Violation(invariant, what, *words)
            self._trace.note("!!", str(self.violation))

    def expect(self, right: bool, invariant: str, what: str, *words: str) -> None:
        """Notes a violation unless it is right."""
        if not right:
            self.fail(invariant, what, *words)

    def name_of(self, ref: bytes) -> str:
        """A row as the trace calls it."""
        stage = stage_of(ref)
        row = RowRef.unpack(at_stage(ref, Stage.DISPATCH))
        twin = "~" if row.namespace_id != namespace_id("default") else ""
        suffix = "" if stage is Stage.DISPATCH else f" {stage.name.lower()}"
        return f"{row.task_id[-4:].hex()}{twin}/{row.generation}/{row.attempt}{suffix}"

    # ---- the broker

    def committed(self, lane: int, offset: int, record: bytes, messages: Sequence[Message]) -> None:
        """See broker.CommitObserver."""
        entry = decode(record)
        self._note_commit(lane, offset, entry)
        self.expect(entry.lane == lane, "I5", f"a record of lane {entry.lane} is in lane {lane}")
        journaled = [ref for section in entry.sections for ref in section.dispatched]
        sent = [message.ref for message in messages]
        wrong = set(journaled) ^ set(sent)
        self.expect(
            not wrong and len(journaled) == len(sent), "I5", "record and messages differ", *map(self.name_of, wrong)
        )
        for section in entry.sections:
            self._check_section(lane, offset, section)
        epochs = {ref: section.epoch for section in entry.sections for ref in section.dispatched}
        for message in messages:
            self._check_message(message, epochs.get(message.ref, -1))

    def _note_commit(self, lane: int, offset: int, entry: JournalRecord) -> None:
        for section in entry.sections:
            told = [self.name_of(ref) for ref in section.dispatched]
            told += [f"{other.kind.name} {self.name_of(other.ref)}" for other in section.others]
            told += [f"closes {bucket}" for bucket in section.closed]
            self._trace.note("kafka", f"lane {lane} offset {offset} r{section.range_id} e{section.epoch}: {told}")

    def _check_section(self, lane: int, offset: int, section: Section) -> None:
        range_id, epoch = section.range_id, section.epoch
        last, fence = self._epochs.get(range_id, 0), self._fenced.get((lane, range_id), 0)
        where = f"range {range_id} commits epoch {epoch} in lane {lane}"
        words = (f"r{range_id} ", f"range {range_id}", f"lane {lane}")
        self.expect(epoch >= last, "I6", f"{where} after epoch {last}", *words)
        self.expect(epoch >= fence, "I6", f"{where}, which was fenced for epoch {fence}", *words)
        self._epochs[range_id] = max(last, epoch)
        self._sections.setdefault(lane, []).append((offset, section))
        for ref in section.dispatched:
            self._settle(ref, FactKind.DISPATCHED, lane, offset)
        for other in section.others:
            if other.kind is FactKind.SPAWNED:
                continue
            self._settle(other.ref, other.kind, lane, offset)
            if other.new_due_ms:
                self._make(other)
        for bucket in section.closed:
            self._check_closed(range_id, bucket)

    def _settle(self, ref: bytes, kind: FactKind, lane: int, offset: int) -> None:
        name, row = self.name_of(ref), RowRef.unpack(at_stage(ref, Stage.DISPATCH))
        before = self.fates.get(ref)
        if before is not None:
            invariant = "I3" if kind is before.kind is FactKind.DISPATCHED else "I4"
            invariant = "I13" if stage_of(ref) is Stage.OUTCOME else invariant
            where = f"lane {before.lane} offset {before.offset}, and again"
            self.fail(invariant, f"{name} is settled twice: {before.kind.name} in {where}: {kind.name}", name)
        self.fates[ref] = Fate(kind, lane, offset, self._time.ms())
        key = (row.namespace_id, row.task_id)
        self._kinds_of.setdefault(key, set()).add(kind)
        if stage_of(ref) is Stage.DISPATCH:
            newest = self.versions.newest(key)
            right = ref == newest if newest else (row.generation, row.attempt) == (0, 1)
            self.expect(right, "I3", f"{name} is {kind.name}, and no record has made it, or a newer one", name)
        if stage_of(ref) is Stage.OUTCOME:
            dispatched = (row.generation, row.attempt) in self._dispatched.get(key, [])
            self.expect(dispatched, "I13", f"{name} has an outcome and was not dispatched", name)
        if kind is FactKind.DISPATCHED:
            self.expect(key not in self._cancelled, "I4", f"{name} is dispatched after its cancel", name)
            before_it = self._dispatched.setdefault(key, [])
            version = (row.generation, row.attempt)
            self.expect(version not in before_it, "I3", f"{name} is dispatched at two places", name)
            before_it.append(version)
        elif kind is FactKind.CANCELLED:
            self._cancelled.add(key)

    def _make(self, other: Other) -> None:
        """A record ends a row, and makes the next one. A `body` is that of a move which has changed it."""
        body = decode_body(other.body) if other.kind is FactKind.MOVED and other.body else None
        if body is not None:
            self._check_change(RowRef.unpack(at_stage(other.ref, Stage.DISPATCH)), body, other.new_due_ms)
        self.versions.make(successor(other.ref, other.new_due_ms, NO_BODY).ref, body)

    def _check_change(self, row: RowRef, body: TaskBody, new_due_ms: int) -> None:
        """It is one that a client has asked for."""
        name, request = self.name_of(row.pack()), self.request_of(body.payload)
        if request is None:
            self.fail("I11", f"{name} is given a body that nobody has sent", name)
            return
        before = self.versions.body((row.namespace_id, row.task_id), row.generation, request.body())
        now_ms, error_ms = self._time.ms(), self.clock_error_ms
        asked = any(wish.makes(before, body, now_ms, error_ms) for wish in request.wishes)
        self.expect(asked, "I11", f"{name} is changed from {before} to {body}", name, request.name)
        self.expect(new_due_ms >= body.nominal_due_ms, "I2", f"{name} goes before it is due", name, request.name)

    def learn_due(self, request: Request, due_ms: int, created: bool = False) -> None:
        """When a task with a delay is due is known once somebody is told; until it is changed, it stays so. The answer
        to a create (`created`) tells it also where the task has moved since."""
        as_created = created or not self.versions.generation(request.names)
        if request.delay_ms is not None and not request.due_told and as_created:
            request.due_ms, request.due_told = due_ms, True

    def _check_message(self, message: Message, epoch: int) -> None:
        name, row = self.name_of(message.ref), RowRef.unpack(message.ref)
        now_ms = self._time.ms()
        early_ms = row.due_ms - now_ms
        self.expect(early_ms <= 0, "I2", f"{name} is visible {early_ms:.3f} ms early", name)
        event = from_headers(message.headers, message.value)
        self.expect(event.epoch == epoch, "I5", f"{name} carries epoch {event.epoch}, its record {epoch}", name)
        request = self.request_of(message.value)
        if request is None:
            self.fail("I11", f"{name} has a body that nobody has sent", name)
            return
        self.expect(request.told is not Told.REJECTED, "I8", f"{name} was rejected and fires", name, request.name)
        same = message.queue.name == request.queue and event.task_id == ids.text(row.task_id)
        self._check_event(event, request, name)
        self.expect(same, "I11", f"{name} is not what was sent", name, request.name)
        known = request.task_id in (b"", row.task_id)
        invariant = "I9" if request.key else "I8"
        self.expect(known, invariant, f"{request.name} fires under two ids", name, request.name)
        request.task_id = row.task_id

    def _check_event(self, event: TaskEvent, request: Request, name: str) -> None:
        """It is the task as it was asked to be last, and due."""
        key = namespace_id(event.namespace), ids.parse(event.task_id, self._constants.shards)
        self.learn_due(request, event.due_ms)
        body = self.versions.body(key, event.generation, request.body())
        due_ms = request.exact_due_ms if body.nominal_due_ms == request.due_ms else body.nominal_due_ms
        self.expect(due_ms <= self._time.ms(), "I2", f"{name} comes before the due time asked for", name, request.name)
        sent = (event.namespace, event.queue, event.type, event.payload, event.metadata, event.priority)
        asked = (body.namespace, body.queue, body.type, body.payload, body.metadata, body.priority)
        same = sent == asked and event.content_type == (body.content_type or DEFAULT_CONTENT_TYPE)
        same = same and event.due_ms == body.nominal_due_ms
        self.expect(same, "I11", f"{name} is not what it was asked to be: {sent}, not {asked}", name, request.name)

    def _check_closed(self, range_id: int, bucket: int) -> None:
        now_ms = self._time.ms()
        over_ms = bucket_end_ms(bucket) + self._constants.grace_ms
        self.expect(now_ms >= over_ms, "I10", f"bucket {bucket} of range {range_id} is closed in its grace")
        expected = self._closed.get(range_id, bucket - 1) + 1
        self.expect(
            bucket >= expected, "I10", f"range {range_id} closes {bucket} again, after {expected - 1}", f"r{range_id} "
        )
        self._closed[range_id] = bucket
        until_ms = over_ms - 2 * self.clock_error_ms
        for ref, stored_ms in self._stored.get(bucket, {}).items():
            mine = self._constants.range_of(ids.shard_in(RowRef.unpack(ref).task_id)) == range_id
            if mine and stored_ms < until_ms and ref not in self.fates:
                self.fail("I10", f"bucket {bucket} is closed with {self.name_of(ref)} unsettled", self.name_of(ref))

    def fenced(self, lane: int) -> None:
        """See broker.CommitObserver. Whoever has taken a range from this lane counts on it from now on."""
        self._trace.note("kafka", f"lane {lane} has a new producer")
        for range_id, (epoch, predecessors) in self.ranges().items():
            if lane in predecessors:
                self._fenced[lane, range_id] = max(epoch, self._fenced.get((lane, range_id), 0))

    def restored(self, epochs: Mapping[int, int]) -> None:
        """The lease service has lost all it knew, and goes on above these epochs, which checkpoints tell. Of later ones
        nobody knows any more: they were granted and never served, and are given again."""
        for (lane, range_id), epoch in self._fenced.items():
            self._fenced[lane, range_id] = min(epoch, epochs.get(range_id, epoch) + 1)

    # ---- the store

    def marking(self, marks: Sequence[Mark]) -> None:
        """See StoreObserver. A fact is written after its record, never ahead of it."""
        for mark in marks:
            at_stages = (at_stage(mark.ref, stage) for stage in Stage)
            kinds = {self.fates[ref].kind for ref in at_stages if ref in self.fates}
            if FactKind.RETRIED in kinds:
                kinds.add(FactKind.MOVED)  # a home row names the newest place
            if mark.kind not in kinds:
                name = self.name_of(mark.ref)
                self.fail("I5", f"{name} is marked {mark.kind.name}, the journal says {kinds or 'nothing'}", name)

    def inserted(self, rows: Sequence[TaskRow]) -> None:
        """See StoreObserver."""
        now_ms = self._time.ms()
        for row in rows:
            self._stored.setdefault(row.bucket, {}).setdefault(row.ref, now_ms)

    def checkpointing(self, range_id: int, checkpoint: Checkpoint) -> None:
        """See StoreObserver. It passes only what is marked."""
        for offset, section in self._sections.get(checkpoint.lane, ()):
            if section.range_id != range_id or offset > checkpoint.applied_offset:
                continue
            for ref in (*section.dispatched, *(other.ref for other in section.others)):
                if not self.quorum_facts(ref):
                    self.fail("checkpoint", f"that of range {range_id} passes unmarked {self.name_of(ref)}")

    # ---- clients

    def request_of(self, payload: bytes) -> Request | None:
        """The request with this payload."""
        number = int.from_bytes(payload[:TAG_BYTES], "big")
        return self.requests[number] if number < len(self.requests) else None

    def kinds(self, request: Request) -> set[FactKind]:
        """What has become of any row of it."""
        return self._kinds_of.get(request.names, set())

    def due_ms(self, request: Request) -> int:
        """When its newest row is due."""
        ref = self.versions.newest(request.names)
        return RowRef.unpack(ref).due_ms if ref else request.due_ms

    # ---- workers

    def offered_to_worker(self, event: TaskEvent) -> None:
        """A worker is asked to do this."""
        request = self.request_of(event.payload)
        name = event.task_id[-8:]
        self._trace.note("worker", f"is offered {name}/{event.generation}/{event.attempt}")
        if request is None:
            self.fail("I11", f"{name} has a body that nobody has sent", name)
            return
        self.expect(FactKind.DISPATCHED in self.kinds(request), "I5", f"{name} is offered, not dispatched", name)
        self._check_event(event, request, name)

    # ---- the end

    def undone(self) -> list[Request]:
        """Acknowledged tasks of which the journal says nothing final yet."""
        final = {FactKind.DISPATCHED, FactKind.CANCELLED}
        return [r for r in self.requests if r.told is Told.ACKNOWLEDGED and not final & self.kinds(r)]

    def unsettled_moves(self) -> list[bytes]:
        """Rows that were moved, or retried, and whose successor is not settled."""
        return [RowRef.unpack(ref).task_id for ref in self.versions.refs() if ref not in self.fates]

    def in_time(self, healed_ms: float, within_ms: float) -> None:
        """After all faults have ended: nothing stays undone for so long."""
        now_ms = self._time.ms()
        for request in self.undone():
            if now_ms > max(healed_ms, self.due_ms(request), request.told_ms) + within_ms:
                name = request.task_id[-4:].hex()
                self.fail("I1", f"{request.name} ({name}) was acknowledged and is not dispatched", request.name, name)

    def at_the_end(self) -> None:
        """After all faults are healed, and time enough."""
        for request in self.undone():
            name = request.task_id[-4:].hex()
            self.fail("I1", f"{request.name} ({name}) was acknowledged and not dispatched", request.name, name)
        for task_id in self.unsettled_moves():
            name = task_id[-4:].hex()
            self.fail("I1", f"{name} was moved, and its successor is lost", name)
        for request in self.requests:
            if CancelResult.CANCELLED in request.cancels:
                name = request.task_id[-4:].hex()
                kinds = self.kinds(request)  # of a task that was retried, an attempt before the cancel has gone
                gone = FactKind.DISPATCHED not in kinds or FactKind.RETRIED in kinds
                self.expect(gone, "I4", f"{request.name} was cancelled and dispatched", request.name, name)
