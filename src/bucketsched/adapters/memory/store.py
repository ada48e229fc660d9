"""Rows, checkpoints and catalog in this process's memory: for simulations and tests. Nothing expires.

Bodies are kept encoded, as the real stores keep them. `Faults` lets a test take a store down, fail a call before or
after it took effect, or hold calls back.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ...core.catalog import Namespace, Queue, QueueKind
from ...core.checkpoint import Checkpoint
from ...core.cluster import ClusterConstants
from ...core.errors import NotWritten, OutcomeUnknown, Unavailable
from ...core.execution import Attempt
from ...core.presence import Partition, Presence, presence_of
from ...core.task import NO_BODY, NO_FACTS, Facts, Mark, RowRef, StoredTask, TaskRow, bucket_of
from ...core.task_id import shard_in
from ...encoding.checkpoints import decode_checkpoint, encode_checkpoint
from ...encoding.rows import decode_body, encode_body
from ...ports import ATTEMPTS_READ_MAX, Page

PLACE_BYTES = 40
"""Due, namespace and task id of a packed ref: what a row is stored under."""

_DUE = struct.Struct(">Q")


@dataclass(slots=True)
class _Fault:
    error: Exception
    applied: bool


class Faults:
    """Hooks for tests. Names are those of the port's methods. `calls` counts them."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.down = False
        """While True every call fails without effect."""
        self._faults: defaultdict[str, deque[_Fault]] = defaultdict(deque)
        self._held: dict[str, asyncio.Event] = {}

    def fail_next(self, method: str, error: Exception, applied: bool = False, times: int = 1) -> None:
        """The next `times` calls answer with `error`; `applied`: they take effect all the same."""
        self._faults[method].extend(_Fault(error, applied) for _ in range(times))

    def recover(self, method: str) -> None:
        """What was to fail works again."""
        self._faults.pop(method, None)

    def hold(self, method: str) -> None:
        """Calls wait, before they take effect, until `let_go`."""
        self._held.setdefault(method, asyncio.Event())

    def let_go(self, method: str) -> None:
        """Calls that are held back go on."""
        held = self._held.pop(method, None)
        if held is not None:
            held.set()

    async def _enter(self, method: str) -> _Fault | None:
        """Call first. Raises what is to fail before it takes effect; returns what is to fail afterwards."""
        self.calls[method] += 1
        if (held := self._held.get(method)) is not None:
            await held.wait()
        if self.down:
            raise Unavailable("the memory store is down")
        fault = self._faults[method].popleft() if self._faults[method] else None
        if fault is not None and not fault.applied:
            raise fault.error
        return fault

    @staticmethod
    def _leave(fault: _Fault | None) -> None:
        """Call last."""
        if fault is not None:
            raise fault.error


@dataclass(slots=True)
class _Cell:
    """What is stored at one place. `body` None: only facts."""

    body: bytes | None = None
    generation: int = 0
    attempt: int = 0
    facts: Facts = NO_FACTS


@dataclass(slots=True)
class _Partition:
    places: list[bytes] = field(default_factory=list)
    cells: dict[bytes, _Cell] = field(default_factory=dict)

    def cell(self, place: bytes) -> _Cell:
        """The cell at a place, made where missing."""
        if place not in self.cells:
            insort(self.places, place)
            self.cells[place] = _Cell()
        return self.cells[place]

    def between(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, _Cell]]:
        """Places from `low` up to, not including, `high`; bodiless ones left out."""
        start, end = bisect_left(self.places, low), bisect_left(self.places, high)
        for place in self.places[start:end]:
            cell = self.cells[place]
            if cell.body is not None:
                yield place, cell


class MemoryTaskStore(Faults):
    """Implements TaskStore."""

    def __init__(self) -> None:
        super().__init__()
        self._partitions: defaultdict[Partition, _Partition] = defaultdict(_Partition)
        self._presences: set[Presence] = set()
        self._attempts: defaultdict[tuple[bytes, bytes], dict[tuple[int, int], Attempt]] = defaultdict(dict)

    async def insert(self, rows: Sequence[TaskRow]) -> list[NotWritten | OutcomeUnknown | None]:
        """See TaskStore. A fault is the answer for every row; down: nothing is written."""
        try:
            fault = await self._enter("insert")
        except (NotWritten, OutcomeUnknown) as error:
            return [error] * len(rows)
        except Unavailable as error:
            return [NotWritten(str(error))] * len(rows)
        for row in rows:
            self._put(row, encode_body(row.body))
        if fault is None:
            return [None] * len(rows)
        assert isinstance(fault.error, NotWritten | OutcomeUnknown), fault.error
        return [fault.error] * len(rows)

    def plant(self, row: TaskRow, body: bytes) -> None:
        """Stores a row with these bytes as its body, decodable or not."""
        self._put(row, body)

    def _put(self, row: TaskRow, body: bytes) -> None:
        cell = self._partitions[row.bucket, shard_in(row.task_id)].cell(row.ref[:PLACE_BYTES])
        cell.body, cell.generation, cell.attempt = body, row.generation, row.attempt
        self._presences.add(presence_of(row))

    async def get(self, due_ms: int, namespace_id: bytes, task_id: bytes) -> StoredTask | None:
        """See TaskStore."""
        self._leave(await self._enter("get"))
        place = _DUE.pack(due_ms) + namespace_id + task_id
        cell = self._partitions[bucket_of(due_ms), shard_in(task_id)].cells.get(place)
        if cell is None or (cell.body is None and cell.facts.moved_to_ms is None):
            return None
        return _stored(place, cell)

    async def read_partition(self, bucket: int, shard: int, after: bytes | None, until_ms: int, limit: int) -> Page:
        """See TaskStore."""
        assert limit > 0, limit
        self._leave(await self._enter("read_partition"))
        partition = self._partitions[bucket, shard]
        places = partition.places
        start = bisect_right(places, after[:PLACE_BYTES]) if after is not None else 0
        end = bisect_left(places, _DUE.pack(until_ms))
        tasks: list[StoredTask] = []
        for index in range(start, end):
            if len(tasks) == limit:
                return Page(tasks, complete=False)
            cell = partition.cells[places[index]]
            if cell.body is not None:
                tasks.append(_stored(places[index], cell))
        return Page(tasks, complete=True)

    async def pending_refs(self, bucket: int, shards: Sequence[int], from_ms: int, until_ms: int) -> list[bytes]:
        """See TaskStore."""
        self._leave(await self._enter("pending_refs"))
        low, high = _DUE.pack(from_ms), _DUE.pack(until_ms)
        return [
            _ref(place, cell)
            for shard in shards
            for place, cell in self._partitions[bucket, shard].between(low, high)
            if not cell.facts.settled
        ]

    async def partitions(
        self, namespace_id: bytes, queue: str, from_bucket: int, until_bucket: int, limit: int, descending: bool = False
    ) -> list[Partition]:
        """See TaskStore."""
        self._leave(await self._enter("partitions"))
        found = (
            p for p in self._presences if p[:2] == (namespace_id, queue) and from_bucket <= p.bucket < until_bucket
        )
        return sorted(((p.bucket, p.shard) for p in found), reverse=descending)[:limit]

    async def scan(
        self, partitions: Sequence[Partition], start: bytes, limit: int, descending: bool = False
    ) -> list[Page]:
        """See TaskStore."""
        assert limit > 0, limit
        self._leave(await self._enter("scan"))
        return [
            self._scan(self._partitions[partition], start[:PLACE_BYTES], limit, descending) for partition in partitions
        ]

    @staticmethod
    def _scan(partition: _Partition, start: bytes, limit: int, descending: bool) -> Page:
        places = partition.places
        behind = reversed(places[: bisect_left(places, start)]) if descending else places[bisect_right(places, start) :]
        stored = [(place, partition.cells[place]) for place in behind if partition.cells[place].body is not None]
        return Page([_stored(*item) for item in stored[:limit]], complete=len(stored) <= limit)

    async def mark(self, marks: Sequence[Mark]) -> None:
        """See TaskStore."""
        fault = await self._enter("mark")
        for mark in marks:
            ref = RowRef.unpack(mark.ref)
            partition = self._partitions[bucket_of(ref.due_ms), shard_in(ref.task_id)]
            cell = partition.cell(mark.ref[:PLACE_BYTES])
            cell.facts = cell.facts.with_mark(mark)
        self._leave(fault)

    async def record_attempts(self, attempts: Sequence[Attempt]) -> None:
        """See TaskStore."""
        fault = await self._enter("record_attempts")
        for attempt in attempts:
            log = self._attempts[attempt.namespace_id, attempt.task_id]
            known = log.get((attempt.generation, attempt.attempt))
            log[attempt.generation, attempt.attempt] = known.with_all_of(attempt) if known else attempt
        self._leave(fault)

    async def attempts(self, namespace_id: bytes, task_id: bytes, limit: int = ATTEMPTS_READ_MAX) -> list[Attempt]:
        """See TaskStore."""
        self._leave(await self._enter("attempts"))
        log = self._attempts.get((namespace_id, task_id), {})
        return [log[key] for key in sorted(log)[-limit:]]


def _ref(place: bytes, cell: _Cell) -> bytes:
    return place + cell.generation.to_bytes(4, "big") + cell.attempt.to_bytes(4, "big")


def _stored(place: bytes, cell: _Cell) -> StoredTask:
    ref = RowRef.unpack(_ref(place, cell))
    body = NO_BODY if cell.body is None else decode_body(cell.body)
    row = TaskRow(ref.due_ms, ref.namespace_id, ref.task_id, body, cell.generation, cell.attempt)
    return StoredTask(row, cell.facts)


class MemoryCheckpointStore(Faults):
    """Implements CheckpointStore."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: dict[int, tuple[int, bytes]] = {}

    async def load(self, range_id: int) -> Checkpoint | None:
        """See CheckpointStore."""
        self._leave(await self._enter("load"))
        stored = self._stored.get(range_id)
        return decode_checkpoint(range_id, *stored) if stored else None

    def plant(self, range_id: int, order: int, body: bytes) -> None:
        """Stores these bytes as a range's checkpoint, decodable or not."""
        self._stored[range_id] = (order, body)

    async def save(self, range_id: int, checkpoint: Checkpoint) -> None:
        """See CheckpointStore."""
        fault = await self._enter("save")
        written = (checkpoint.order, encode_checkpoint(checkpoint))
        self._stored[range_id] = max(written, self._stored.get(range_id, written))
        self._leave(fault)


class MemoryCatalog(Faults):
    """Implements Catalog. The constants are given, as if somebody had migrated."""

    def __init__(self, constants: ClusterConstants | None = None) -> None:
        super().__init__()
        self._constants = constants
        self._namespaces: dict[str, Namespace] = {}
        self._queues: dict[tuple[bytes, str], Queue] = {}

    async def constants(self) -> ClusterConstants | None:
        """See Catalog."""
        self._leave(await self._enter("constants"))
        return self._constants

    async def get_namespace(self, name: str) -> Namespace | None:
        """See Catalog."""
        self._leave(await self._enter("get_namespace"))
        return self._namespaces.get(name)

    async def list_namespaces(self) -> list[Namespace]:
        """See Catalog."""
        self._leave(await self._enter("list_namespaces"))
        return [self._namespaces[name] for name in sorted(self._namespaces)]

    async def create_namespace(self, namespace: Namespace) -> Namespace:
        """See Catalog."""
        fault = await self._enter("create_namespace")
        stored = self._namespaces.setdefault(namespace.name, namespace)
        self._leave(fault)
        return stored

    async def get_queue(self, namespace_id: bytes, name: str) -> Queue | None:
        """See Catalog."""
        self._leave(await self._enter("get_queue"))
        return self._queues.get((namespace_id, name))

    async def list_queues(self, namespace_id: bytes, after: str, limit: int) -> list[Queue]:
        """See Catalog."""
        self._leave(await self._enter("list_queues"))
        names = sorted(name for owner, name in self._queues if owner == namespace_id and name > after)
        return [self._queues[namespace_id, name] for name in names[:limit]]

    async def create_queue(self, queue: Queue) -> Queue:
        """See Catalog."""
        fault = await self._enter("create_queue")
        stored = self._queues.setdefault((queue.namespace_id, queue.name), queue)
        self._leave(fault)
        return stored

    async def update_webhook(self, queue: Queue) -> None:
        """See Catalog."""
        fault = await self._enter("update_webhook")
        stored = self._queues.get((queue.namespace_id, queue.name))
        if stored is not None and stored.kind is QueueKind.WEBHOOK:
            self._queues[queue.namespace_id, queue.name] = replace(stored, webhook=queue.webhook)
        self._leave(fault)

    async def update_settings(self, queue: Queue) -> None:
        """See Catalog."""
        fault = await self._enter("update_settings")
        stored = self._queues.get((queue.namespace_id, queue.name))
        if stored is not None and stored.kind is queue.kind:
            self._queues[queue.namespace_id, queue.name] = replace(stored, sqs=queue.sqs, email=queue.email)
        self._leave(fault)

    async def update_policy(self, queue: Queue) -> None:
        """See Catalog."""
        fault = await self._enter("update_policy")
        stored = self._queues.get((queue.namespace_id, queue.name))
        if stored is not None:
            self._queues[queue.namespace_id, queue.name] = replace(stored, policy=queue.policy)
        self._leave(fault)
