"""Cassandra: three replicas, each of which learns of a write at its own time, or late; reads and writes at QUORUM.

What was answered is on two of three, and a read asks two: it sees all that was answered before it began. What was not
answered may be on none, one or more of them, now or later, and is seen or not as the choice of replicas goes.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import PLACE_BYTES, MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue
from bucketsched.core.checkpoint import Checkpoint, CheckpointCorrupt
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import NotWritten, OutcomeUnknown, Unavailable
from bucketsched.core.execution import Attempt
from bucketsched.core.idempotency import Claim
from bucketsched.core.presence import Partition, Presence, presence_of
from bucketsched.core.task import NO_BODY, NO_FACTS, Facts, Mark, RowRef, StoredTask, TaskRow, bucket_of
from bucketsched.core.task_id import shard_in
from bucketsched.encoding.checkpoints import decode_checkpoint, encode_checkpoint
from bucketsched.encoding.rows import decode_body, encode_body
from bucketsched.ports import ATTEMPTS_READ_MAX, Page

from .loop import VirtualLoop, at_once
from .network import HOP_S_MAX, HOP_S_MIN, Network, NotSent, Unanswered

Result = TypeVar("Result")
CASSANDRA = "store"
REQUEST_S = 2.0
WRITE_S = 1.0
SLOW_READ_S_MAX = 1.8
"""Less than REQUEST_S: the answer is waited for, and is that of long ago."""
REPLICAS, QUORUM = 3, 2
END = b"\xff" * PLACE_BYTES
"""Behind every place."""


@dataclass(slots=True)
class Cell:
    """What a replica has at one place. `row` None: only facts."""

    row: TaskRow | None = None
    facts: Facts = NO_FACTS


@dataclass(slots=True)
class Replica:
    """One server's data. `up` False: it neither answers nor takes anything; what it missed is handed to it later."""

    up: bool = True
    partitions: defaultdict[Partition, dict[bytes, Cell]] = field(default_factory=lambda: defaultdict(dict))
    checkpoints: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    """By range: the order, and the checkpoint encoded."""
    presences: set[Presence] = field(default_factory=set)
    attempts: defaultdict[tuple[bytes, bytes], dict[tuple[int, int], Attempt]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    missed: list[Callable[[Replica], None]] = field(default_factory=list)

    def put(self, partition: Partition, rows: Sequence[TaskRow]) -> None:
        self.presences.update(map(presence_of, rows))
        for row in rows:
            self.partitions[partition].setdefault(row.ref[:PLACE_BYTES], Cell()).row = row

    def mark(self, partition: Partition, marks: Sequence[Mark]) -> None:
        for mark in marks:
            cell = self.partitions[partition].setdefault(mark.ref[:PLACE_BYTES], Cell())
            cell.facts = cell.facts.with_mark(mark)

    def record(self, attempt: Attempt) -> None:
        log = self.attempts[attempt.namespace_id, attempt.task_id]
        known = log.get((attempt.generation, attempt.attempt))
        log[attempt.generation, attempt.attempt] = known.with_all_of(attempt) if known else attempt

    def checkpoint(self, range_id: int, order: int, value: bytes) -> None:
        stored = self.checkpoints.get(range_id)
        if stored is None or stored[0] < order:
            self.checkpoints[range_id] = order, value


def merged(one: Cell | None, other: Cell | None) -> StoredTask | None:
    """What a read of two replicas answers; None: there is no body."""
    if one is None or other is None:
        only = one or other
        return StoredTask(only.row, only.facts) if only is not None and only.row is not None else None
    row = one.row or other.row
    if row is None:
        return None
    a, b = one.facts, other.facts
    if a is b or b is NO_FACTS:
        return StoredTask(row, a)
    if a is NO_FACTS:
        return StoredTask(row, b)
    facts = Facts(
        b.dispatched_ms if a.dispatched_ms is None else a.dispatched_ms,
        b.cancelled_ms if a.cancelled_ms is None else a.cancelled_ms,
        b.failed_ms if a.failed_ms is None else a.failed_ms,
        a.failed_reason or b.failed_reason,
        b.moved_to_ms if a.moved_to_ms is None else a.moved_to_ms,
        b.succeeded_ms if a.succeeded_ms is None else a.succeeded_ms,
        b.expired_ms if a.expired_ms is None else a.expired_ms,
    )
    return StoredTask(row, facts)


class StoreObserver:
    """Is told what is written, and what is on a quorum. Does nothing by itself."""

    def marking(self, marks: Sequence[Mark]) -> None:
        """Facts are about to be written."""

    def inserted(self, rows: Sequence[TaskRow]) -> None:
        """Rows are on a quorum."""

    def checkpointing(self, range_id: int, checkpoint: Checkpoint) -> None:
        """A checkpoint is about to be written."""


@dataclass(slots=True)
class Lag:
    """How replicas fare with one write each. Probabilities."""

    late: float = 0.0
    late_s_max: float = 8.0
    missed: float = 0.0
    slow_reads: float = 0.0


class Cassandra:
    """The servers. Effects only: the way to them is the network's."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, observer: StoreObserver) -> None:
        self._loop, self._rng, self._observer = loop, rng, observer
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.lag = Lag()

    def restart(self, replica: Replica) -> None:
        """It is up again, and is handed what it missed."""
        replica.up = True
        missed, replica.missed = replica.missed, []
        for write in missed:
            self._loop.after(self._rng.uniform(0, 3), self._apply, replica, write, _nobody)

    # ---- writing

    def insert(self, rows: Sequence[TaskRow]) -> asyncio.Future[list[NotWritten | OutcomeUnknown | None]]:
        """See ports.TaskStore."""
        groups: defaultdict[Partition, list[int]] = defaultdict(list)
        for at, row in enumerate(rows):
            groups[row.bucket, shard_in(row.task_id)].append(at)
        stored = [
            TaskRow(r.due_ms, r.namespace_id, r.task_id, decode_body(encode_body(r.body)), r.generation, r.attempt)
            for r in rows
        ]
        answers: list[NotWritten | OutcomeUnknown | None] = [None] * len(rows)
        result: asyncio.Future[list[NotWritten | OutcomeUnknown | None]] = self._loop.create_future()
        left = len(groups)

        def ended(indices: list[int], error: NotWritten | OutcomeUnknown | None) -> None:
            nonlocal left
            left -= 1
            for at in indices:
                answers[at] = error
            if error is None:
                self._observer.inserted([rows[at] for at in indices])
            if not left and not result.done():
                result.set_result(answers)

        for partition, indices in groups.items():
            group = [stored[at] for at in indices]
            self._write(partial(Replica.put, partition=partition, rows=group), partial(ended, indices))
        return result

    def mark(self, marks: Sequence[Mark]) -> asyncio.Future[None]:
        """See ports.TaskStore."""
        self._observer.marking(marks)
        groups: defaultdict[Partition, list[Mark]] = defaultdict(list)
        for mark in marks:
            ref = RowRef.unpack(mark.ref)
            groups[bucket_of(ref.due_ms), shard_in(ref.task_id)].append(mark)
        return self._write_all([partial(Replica.mark, partition=p, marks=group) for p, group in groups.items()])

    def record_attempts(self, attempts: Sequence[Attempt]) -> asyncio.Future[None]:
        """See ports.TaskStore."""
        return self._write_all([partial(Replica.record, attempt=attempt) for attempt in attempts])

    def save(self, range_id: int, checkpoint: Checkpoint) -> asyncio.Future[None]:
        """See ports.CheckpointStore."""
        self._observer.checkpointing(range_id, checkpoint)
        value = encode_checkpoint(checkpoint)
        return self._write_all([partial(Replica.checkpoint, range_id=range_id, order=checkpoint.order, value=value)])

    def _write_all(self, writes: Sequence[Callable[[Replica], None]]) -> asyncio.Future[None]:
        result: asyncio.Future[None] = self._loop.create_future()
        left = len(writes)

        def ended(error: Exception | None) -> None:
            nonlocal left
            left -= 1
            if result.done():
                return
            if error is not None:
                result.set_exception(Unavailable(str(error)))
            elif not left:
                result.set_result(None)

        for write in writes:
            self._write(write, ended)
        return result

    def _write(
        self, write: Callable[[Replica], None], ended: Callable[[NotWritten | OutcomeUnknown | None], None]
    ) -> None:
        """Sends a write to all replicas; tells once what is to be answered."""
        if sum(replica.up for replica in self.replicas) < QUORUM:
            ended(NotWritten("no quorum of replicas"))
            return
        acks, over = 0, False

        def end(error: OutcomeUnknown | None) -> None:
            nonlocal over
            if not over:
                over = True
                timer.cancel()
                ended(error)

        def acknowledge() -> None:
            nonlocal acks
            acks += 1
            if acks == QUORUM:
                end(None)

        timer = self._loop.after(WRITE_S, end, OutcomeUnknown("no quorum of answers"))
        for replica in self.replicas:
            self._loop.after(self._hop_s(), self._apply, replica, write, acknowledge)

    def _hop_s(self) -> float:
        if self._rng.random() < self.lag.late:
            return self._rng.uniform(0.05, self.lag.late_s_max)
        return self._rng.uniform(HOP_S_MIN, HOP_S_MAX)

    def _apply(self, replica: Replica, write: Callable[[Replica], None], acknowledge: Callable[[], None]) -> None:
        if not replica.up:
            replica.missed.append(write)
        elif self._rng.random() < self.lag.missed:
            replica.missed.append(write)
            self._loop.after(self._rng.uniform(2, 20), self.restart, replica)
        else:
            write(replica)
            acknowledge()

    # ---- reading

    def read(self, answer: Callable[[Replica, Replica], Result]) -> asyncio.Future[Result]:
        """Reads two replicas, at the moment at which the later one is reached."""
        up = [replica for replica in self.replicas if replica.up]
        if len(up) < QUORUM:
            raise Unavailable("no quorum of replicas")
        one, other = self._rng.sample(up, QUORUM)
        result: asyncio.Future[Result] = self._loop.create_future()

        def reach() -> None:
            try:
                found = answer(one, other)
            except CheckpointCorrupt as error:
                result.set_exception(error)
                return
            if self.lag.slow_reads and self._rng.random() < self.lag.slow_reads:
                self._loop.after(self._rng.uniform(0.1, SLOW_READ_S_MAX), result.set_result, found)
            else:
                result.set_result(found)

        self._loop.after(self._rng.uniform(HOP_S_MIN, HOP_S_MAX), reach)
        return result


def _nobody() -> None:
    pass


def stored_between(
    one: Replica, other: Replica, partition: Partition, low: bytes, high: bytes
) -> Iterable[tuple[bytes, StoredTask]]:
    """Rows of a partition from a packed place on, up to and not including another, in order."""
    a, b = one.partitions.get(partition, {}), other.partitions.get(partition, {})
    for place in sorted(place for place in a.keys() | b.keys() if low <= place < high):
        task = merged(a.get(place), b.get(place))
        if task is not None:
            yield place, task


def newest_checkpoint(one: Replica, other: Replica, range_id: int) -> Checkpoint | None:
    """What a read of two replicas answers."""
    found = [c for c in (one.checkpoints.get(range_id), other.checkpoints.get(range_id)) if c is not None]
    return decode_checkpoint(range_id, *max(found)) if found else None


class SimTaskStore:
    """One process's way to the rows. Implements ports.TaskStore."""

    def __init__(self, cassandra: Cassandra, network: Network, node: str) -> None:
        self._cassandra, self._network, self._node = cassandra, network, node

    async def _ask(self, effect: Callable[[], Any]) -> Any:
        try:
            return await self._network.call(self._node, CASSANDRA, effect, REQUEST_S)
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        """See ports.TaskStore."""
        try:
            answers: list[NotWritten | OutcomeUnknown | None] = await self._network.call(
                self._node, CASSANDRA, lambda: self._cassandra.insert(rows), REQUEST_S
            )
            return answers
        except NotSent as error:
            return [NotWritten(str(error))] * len(rows)
        except Unanswered as error:
            return [OutcomeUnknown(str(error))] * len(rows)

    async def get(self, due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """See ports.TaskStore."""
        place = due_ms.to_bytes(8, "big") + namespace_id + task_id
        partition = (bucket_of(due_ms), shard_in(task_id))

        def answer(one: Replica, other: Replica) -> StoredTask | None:
            a, b = one.partitions.get(partition, {}), other.partitions.get(partition, {})
            cells = a.get(place), b.get(place)
            found = merged(*cells)
            moved = [c.facts.moved_to_ms for c in cells if c is not None and c.facts.moved_to_ms is not None]
            if found is None and moved:
                return StoredTask(TaskRow(due_ms, namespace_id, task_id, NO_BODY), Facts(moved_to_ms=moved[0]))
            return found

        found: StoredTask | None = await self._ask(lambda: self._cassandra.read(answer))
        return found

    async def read_partition(self, bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        """See ports.TaskStore."""

        def answer(one: Replica, other: Replica) -> Page:
            found = list(stored_between(one, other, (bucket, shard), b"", until_ms.to_bytes(8, "big")))
            start = bisect_right(found, after[:PLACE_BYTES], key=lambda item: item[0]) if after is not None else 0
            tasks = [task for _, task in found[start : start + limit]]
            return Page(tasks, complete=start + limit >= len(found))

        page: Page = await self._ask(lambda: self._cassandra.read(answer))
        return page

    async def pending_refs(self, bucket: int, shards: Sequence[int], from_ms: int, until_ms: int) -> list[bytes]:
        """See ports.TaskStore."""
        low, high = from_ms.to_bytes(8, "big"), until_ms.to_bytes(8, "big")

        def answer(one: Replica, other: Replica) -> list[bytes]:
            return [
                task.row.ref
                for shard in shards
                for _, task in stored_between(one, other, (bucket, shard), low, high)
                if not task.facts.settled
            ]

        refs: list[bytes] = await self._ask(lambda: self._cassandra.read(answer))
        return refs

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool = False
    ) -> list[Partition]:
        """See ports.TaskStore."""

        def answer(one: Replica, other: Replica) -> list[Partition]:
            both = (p for p in one.presences | other.presences if p[:2] == (namespace_id, queue))
            found = ((p.bucket, p.shard) for p in both if from_bucket <= p.bucket < until_bucket)
            return sorted(found, reverse=descending)[:limit]

        partitions: list[Partition] = await self._ask(lambda: self._cassandra.read(answer))
        return partitions

    async def scan(
        self, partitions: Sequence[Partition], start: bytes, limit: int, descending: bool = False
    ) -> list[Page]:
        """See ports.TaskStore."""
        place = start[:PLACE_BYTES]
        low, high = (b"", place) if descending else (place + b"\0", END)

        def page(one: Replica, other: Replica, partition: Partition) -> Page:
            found = [task for _, task in stored_between(one, other, partition, low, high)]
            return Page((found[::-1] if descending else found)[:limit], complete=len(found) <= limit)

        def answer(one: Replica, other: Replica) -> list[Page]:
            return [page(one, other, partition) for partition in partitions]

        pages: list[Page] = await self._ask(lambda: self._cassandra.read(answer))
        return pages

    async def mark(self, marks: Sequence[Mark]) -> None:
        """See ports.TaskStore."""
        if marks:
            await self._ask(lambda: self._cassandra.mark(marks))

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """See ports.TaskStore."""
        if attempts:
            await self._ask(lambda: self._cassandra.record_attempts(attempts))

    async def attempts(self, namespace_id: bytes, task_id: bytes, limit: int = ATTEMPTS_READ_MAX) -> list[Attempt]:
        """See ports.TaskStore."""
        key = namespace_id, task_id

        def answer(one: Replica, other: Replica) -> list[Attempt]:
            log = dict(one.attempts.get(key, {}))
            for number, attempt in other.attempts.get(key, {}).items():
                log[number] = log[number].with_all_of(attempt) if number in log else attempt
            return [log[number] for number in sorted(log)[-limit:]]

        found: list[Attempt] = await self._ask(lambda: self._cassandra.read(answer))
        return found


class SimCheckpointStore:
    """One process's way to the checkpoints. Implements ports.CheckpointStore."""

    def __init__(self, cassandra: Cassandra, network: Network, node: str) -> None:
        self._cassandra, self._network, self._node = cassandra, network, node

    async def _ask(self, effect: Callable[[], Any]) -> Any:
        try:
            return await self._network.call(self._node, CASSANDRA, effect, REQUEST_S)
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error

    async def load(self, range_id: int) -> Checkpoint | None:
        """See ports.CheckpointStore."""
        answer = partial(newest_checkpoint, range_id=range_id)
        checkpoint: Checkpoint | None = await self._ask(lambda: self._cassandra.read(answer))
        return checkpoint

    async def save(self, range_id: int, checkpoint: Checkpoint) -> None:
        """See ports.CheckpointStore."""
        await self._ask(lambda: self._cassandra.save(range_id, checkpoint))


class SimCatalog:
    """One process's way to the catalog. Implements ports.Catalog."""

    def __init__(self, catalog: MemoryCatalog, network: Network, node: str) -> None:
        self._catalog, self._network, self._node = catalog, network, node

    async def _ask(self, effect: Callable[[], Result]) -> Result:
        try:
            result: Result = await self._network.call(self._node, CASSANDRA, effect, REQUEST_S)
            return result
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error

    async def constants(self) -> ClusterConstants | None:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.constants()))

    async def get_namespace(self, name: str) -> Namespace | None:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.get_namespace(name)))

    async def list_namespaces(self) -> list[Namespace]:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.list_namespaces()))

    async def create_namespace(self, namespace: Namespace) -> Namespace:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.create_namespace(namespace)))

    async def get_queue(self, namespace_id: bytes, name: str) -> Queue | None:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.get_queue(namespace_id, name)))

    async def list_queues(self, namespace_id: bytes, after: str, limit: int) -> list[Queue]:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.list_queues(namespace_id, after, limit)))

    async def create_queue(self, queue: Queue) -> Queue:
        """See ports.Catalog."""
        return await self._ask(lambda: at_once(self._catalog.create_queue(queue)))

    async def update_webhook(self, queue: Queue) -> None:
        """See ports.Catalog."""
        await self._ask(lambda: at_once(self._catalog.update_webhook(queue)))

    async def update_settings(self, queue: Queue) -> None:
        """See ports.Catalog."""
        await self._ask(lambda: at_once(self._catalog.update_settings(queue)))

    async def update_policy(self, queue: Queue) -> None:
        """See ports.Catalog."""
        await self._ask(lambda: at_once(self._catalog.update_policy(queue)))


class SimKeyStore:
    """One process's way to the idempotency keys. Implements ports.KeyStore."""

    def __init__(self, keys: MemoryKeyStore, network: Network, node: str) -> None:
        self._keys, self._network, self._node = keys, network, node

    async def claim(self, namespace_id: bytes, key: str, claim: Claim, expires_ms: int) -> Claim:
        """See ports.KeyStore. A question that was not answered may have been applied."""

        def effect() -> Claim:
            return at_once(self._keys.claim(namespace_id, key, claim, expires_ms))

        try:
            standing: Claim = await self._network.call(self._node, CASSANDRA, effect, REQUEST_S)
            return standing
        except (NotSent, Unanswered) as error:
            raise Unavailable(str(error)) from error
