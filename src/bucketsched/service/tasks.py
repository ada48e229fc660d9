"""Creating, reading and cancelling tasks.

The way of a create: validate, resolve the queue, store (retried with the same id while the outcome is not known), then
acknowledge. A task may be acknowledged once its dispatch is certain, which depends on how late it has become:

    due far ahead                         the owner loads its bucket in time: at once
    due within what the owner has loaded  hint; the answer is waited for a moment, and the rescan finds it besides
    due 20 s ago                          the rescan may have passed it: only with the owner's answer
    bucket over for a while               the bucket may be closed: only after the owner admitted it
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import SystemRandom

from ..core import failpoints
from ..core import task_id as ids
from ..core.catalog import Queue
from ..core.cluster import ClusterConstants
from ..core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NoRoom,
    NotFound,
    NotWritten,
    OutcomeUnknown,
    RequestError,
    StorageFull,
    Unavailable,
)
from ..core.notice_check import check_notices
from ..core.task import StoredTask, TaskBody, TaskRow, bucket_end_ms, bucket_start_ms
from ..core.task_change import ChangeResult, TaskChange
from ..core.task_update import TaskUpdate, validate_update
from ..core.validation import Limits, NewTask, Placement, check_name, validate
from ..ports import CancelResult, Changed, Clock, HintAnswer, KeyStore, Owners, TaskStore
from .directory import Directory
from .executions import AttemptPage, Executions, ShownTask
from .hints import HintBatch, Hints
from .idempotency import IdempotencyKeys, may_be_written
from .notice_queues import queues_of, refusal

HINT_WAIT_S = 0.05
"""How long a create waits for its hints where it need not."""
HINT_MARGIN_MS = 5_000
"""An owner loads whole buckets that begin before its now + horizon, which is not exactly this process's."""
UNANSWERED_UNTIL_MS = 20_000
"""A task may be acknowledged without its hint's answer before due + this: the rescan still covers it (30 s)."""
ADMIT_AFTER_MS = 60_000
"""A create this long after its bucket's end (or half the grace, if that is less) is for the owner to admit."""
PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 0.5
ADMITS_IN_FLIGHT_MAX = 32
HOPS_MAX = 32
"""Moves that a look-up follows. Home rows name the newest place, so that one is usual."""

Entropy = Callable[[int], int]
_SYSTEM_ENTROPY: Entropy = SystemRandom().getrandbits


@dataclass(frozen=True, slots=True)
class Created:
    """A task that was accepted. `due_ms` is the due time asked for."""

    task_id: bytes
    due_ms: int


@dataclass(slots=True)
class CreateUnavailable(Unavailable):
    """The task may or may not have been stored: send it again under this id, and it is the same task."""

    task_id: bytes
    retry_after_ms = 1_000

    def __str__(self) -> str:
        return f"not confirmed in time; send it again as task_id {ids.text(self.task_id)}"


CreateResult = Created | RequestError | Unavailable


class TaskService:
    """The use cases of tasks. `entropy(bits)` gives that many random bits."""

    def __init__(
        self,
        store: TaskStore,
        keys: KeyStore,
        directory: Directory,
        owners: Owners,
        clock: Clock,
        constants: ClusterConstants,
        limits: Limits,
        entropy: Entropy = _SYSTEM_ENTROPY,
    ) -> None:
        self._store = store
        self._keys = IdempotencyKeys(keys, store, clock, constants.retention_ms)
        self._directory = directory
        self._owners = owners
        self._clock = clock
        self._constants = constants
        self._limits = limits
        self._entropy = entropy
        self._hints = Hints(owners, clock)
        self._executions = Executions(store, directory)
        self.created: Counter[str] = Counter()
        """Creates so far by what was answered: created, refused, unavailable."""
        self._admits = asyncio.Semaphore(ADMITS_IN_FLIGHT_MAX)
        self._admit_after_ms = min(ADMIT_AFTER_MS, constants.grace_ms // 2)

    @property
    def hints_unanswered(self) -> int:
        """Rows of answered creates that no owner has taken note of yet."""
        return self._hints.rows_behind

    async def close(self) -> None:
        """Stops what goes on behind answered creates."""
        await self._hints.close()

    # ------------------------------------------------------------ create

    def check_batch(self, count: int) -> None:
        """Raises InvalidArgument where that are too many tasks for one batch."""
        if count > self._limits.batch_tasks_max:
            raise InvalidArgument("requests", f"must be at most {self._limits.batch_tasks_max}, are {count}")

    async def create_many(self, tasks: Sequence[NewTask], timeout_s: float | None = None) -> list[CreateResult]:
        """One result a task, in their order. Raises InvalidArgument where there are too many tasks."""
        self.check_batch(len(tasks))
        limit_s = self._limits.create_timeout_ms / 1000
        deadline = self._clock.monotonic() + (limit_s if timeout_s is None else min(timeout_s, limit_s))
        results: list[CreateResult | TaskRow] = list(await self._rows(tasks))
        await self._claim(tasks, results, deadline)
        written = [row for row in results if isinstance(row, TaskRow) and may_be_written(row)]
        rows = list({row.ref: row for row in written}.values())
        failed = await self._write(rows, deadline)
        answers = [_result(item, failed) if isinstance(item, TaskRow) else item for item in results]
        self.created.update(map(_outcome, answers))
        return answers

    async def _rows(self, tasks: Sequence[NewTask]) -> list[TaskRow | RequestError | Unavailable]:
        """The row of each task, or why there is none."""
        now_ms = self._clock.now_ms()
        placed = [self._placed(task, now_ms) for task in tasks]
        valid = [t for t, p in zip(tasks, placed, strict=True) if not isinstance(p, RequestError)]
        names = list(dict.fromkeys(name for task in valid for name in queues_of(task)))
        found = await asyncio.gather(*(self._queue(*name) for name in names))
        queues = dict(zip(names, found, strict=True))
        taken: dict[tuple[bytes, bytes], TaskBody] = {}
        rows: list[TaskRow | RequestError | Unavailable] = []
        for task, place in zip(tasks, placed, strict=True):
            if isinstance(place, RequestError):
                rows.append(place)
                continue
            queue = queues[task.namespace, task.queue]
            if not isinstance(queue, Queue):
                rows.append(queue)
            elif (refused := refusal(task, queue, queues)) is not None:
                rows.append(refused)
            else:
                rows.append(_unless_taken(self._row(task, place, queue.namespace_id, now_ms), taken))
        return rows

    async def _claim(self, tasks: Sequence[NewTask], results: list[CreateResult | TaskRow], deadline: float) -> None:
        """Replaces the rows of creates with an idempotency key by those that their keys stand for."""
        wanted = [
            (at, task, row)
            for at, (task, row) in enumerate(zip(tasks, results, strict=True))
            if task.idempotency_key and isinstance(row, TaskRow)
        ]
        if not wanted:
            return
        resolved = await self._keys.resolve([(task, row) for _, task, row in wanted], deadline)
        for (at, _, row), found in zip(wanted, resolved, strict=True):
            results[at] = CreateUnavailable(row.task_id) if isinstance(found, Unavailable) else found

    def _placed(self, task: NewTask, now_ms: int) -> Placement | RequestError:
        try:
            check_notices(task.notices)
            return validate(task, self._limits, now_ms, self._constants.shards, self._constants.retention_ms)
        except RequestError as error:
            return error

    async def _queue(self, namespace: str, name: str) -> Queue | RequestError | Unavailable:
        try:
            return await self._directory.queue(namespace, name)
        except (RequestError, Unavailable) as error:
            return error

    def _row(self, task: NewTask, place: Placement, namespace_id: bytes, now_ms: int) -> TaskRow:
        raw = place.task_id
        if raw is None:
            bits = self._entropy(ids.RANDOM_BITS + 12)
            raw = ids.mint(place.due_ms, (bits >> ids.RANDOM_BITS) % self._constants.shards, bits)
        body = TaskBody(
            task.namespace,
            task.queue,
            task.type,
            task.payload,
            task.metadata,
            task.priority,
            place.nominal_due_ms,
            now_ms,
            task.content_type,
            task.idempotency_key,
            task.retry,
            place.expires_ms,
            task.notices,
        )
        return TaskRow(place.due_ms, namespace_id, raw, body)

    async def _write(self, rows: Sequence[TaskRow], deadline: float) -> dict[bytes, Unavailable]:
        """Stores the rows and makes sure of their dispatch; by ref, what those are answered that were not confirmed."""
        failed = await self._insert(rows, deadline)
        failpoints.reach("create.stored")
        stored = [row for row in rows if row.ref not in failed]
        unsure = await self._assure(stored, deadline)
        return failed | {row.ref: CreateUnavailable(row.task_id) for row in stored if row.ref in unsure}

    async def _insert(self, rows: Sequence[TaskRow], deadline: float) -> dict[bytes, Unavailable]:
        """Stores the rows, again and again until the deadline; by ref, what those are answered that are not known to
        be stored. Where there is no room a row is tried once.
        """
        failed: dict[bytes, Unavailable] = {}
        remaining, pause_s = list(rows), PAUSE_S_MIN
        while remaining:
            remaining = await self._insert_once(remaining, deadline, failed)
            if not remaining or not await self._pause(pause_s, deadline):
                break
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return failed | {row.ref: CreateUnavailable(row.task_id) for row in remaining}

    async def _insert_once(
        self, rows: list[TaskRow], deadline: float, failed: dict[bytes, Unavailable]
    ) -> list[TaskRow]:
        """One try; the rows that are to be tried again."""
        try:
            answers = await asyncio.wait_for(self._store.insert(rows), max(0.0, deadline - self._clock.monotonic()))
        except (TimeoutError, Unavailable, NotWritten, OutcomeUnknown):
            return rows
        left: list[TaskRow] = []
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer, NoRoom):
                failed[row.ref] = StorageFull(f"nothing was stored: {answer}")
            elif answer is not None:
                left.append(row)
        return left

    async def _assure(self, rows: Sequence[TaskRow], deadline: float) -> set[bytes]:
        """Hints and admissions as they are needed; the refs of the rows that must not be acknowledged."""
        now_ms = self._clock.latest_ms()
        loaded_ms = now_ms + self._constants.horizon_ms + HINT_MARGIN_MS
        near = [row for row in rows if bucket_start_ms(row.bucket) <= loaded_ms and not self._over(row, now_ms)]
        unsure: set[bytes] = set()
        if near:
            unsure = await self._hint(near, deadline)
        now_ms = self._clock.latest_ms()
        over = [row for row in rows if row.ref not in unsure and self._over(row, now_ms)]
        if over:
            admitted = await asyncio.gather(*(self._admit(row, deadline) for row in over))
            unsure |= {row.ref for row, done in zip(over, admitted, strict=True) if not done}
        return unsure

    def _over(self, row: TaskRow, now_ms: int) -> bool:
        """True if the row's bucket may be closed before the row is seen in it."""
        return now_ms > bucket_end_ms(row.bucket) + self._admit_after_ms

    # ------------------------------------------------------------ hints

    async def _hint(self, rows: Sequence[TaskRow], deadline: float) -> set[bytes]:
        """Hints the rows; the refs of those that still need an answer at the deadline."""
        batch = self._hints.begin(rows)
        try:
            await batch.settled(rows, min(HINT_WAIT_S, deadline - self._clock.monotonic()))
            return await self._leave(batch, deadline)
        finally:
            batch.stop()

    async def _leave(self, batch: HintBatch, deadline: float) -> set[bytes]:
        """Hands what may stay unanswered over to be repeated, and waits for what may not.

        A row whose bucket is over meanwhile is left to its admission.
        """
        while batch.open:
            now_ms = self._clock.latest_ms()
            rows = [row for row in batch.open.values() if not self._over(row, now_ms)]
            free = [row for row in rows if now_ms < row.due_ms + UNANSWERED_UNTIL_MS]
            if self._hints.take_over(free):
                batch.forget(free)
                rows = [row for row in rows if now_ms >= row.due_ms + UNANSWERED_UNTIL_MS]
            if not rows:
                break
            remaining_s = deadline - self._clock.monotonic()
            if remaining_s <= 0:
                return {row.ref for row in rows}
            await batch.settled(rows, min(remaining_s, PAUSE_S_MAX))
        return set()

    # ------------------------------------------------------------ admissions

    async def _admit(self, row: TaskRow, deadline: float) -> bool:
        """Asks the owner until it answers that the row will be dispatched; False where the deadline comes first."""
        pause_s = PAUSE_S_MIN
        async with self._admits:
            while (remaining_s := deadline - self._clock.monotonic()) > 0:
                answer = await self._ask_to_admit(row, remaining_s)
                if answer is HintAnswer.TAKEN:
                    return True
                if answer is HintAnswer.NO_ROW:
                    await self._insert([row], deadline)
                await self._pause(pause_s, deadline)
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
        return False

    async def _ask_to_admit(self, row: TaskRow, timeout_s: float) -> HintAnswer | None:
        try:
            return await asyncio.wait_for(self._owners.admit(row), timeout_s)
        except (TimeoutError, Unavailable):
            return None

    async def _pause(self, seconds: float, deadline: float) -> bool:
        """Waits a little; False where the deadline comes first."""
        remaining_s = deadline - self._clock.monotonic()
        await self._clock.sleep(min(seconds, max(0.0, remaining_s)))
        return remaining_s > seconds

    # ------------------------------------------------------------ read and cancel

    async def get(self, namespace: str, task_id: str) -> StoredTask:
        """The task as it stands. Raises InvalidArgument, NotFound or Unavailable."""
        raw, namespace_id = await self._named(namespace, task_id)
        due_ms = ids.home_of(raw).due_ms
        for _ in range(HOPS_MAX):
            stored = await self._store.get(due_ms, namespace_id, raw)
            if stored is None:
                break
            if stored.facts.moved_to_ms is None:
                return stored
            due_ms = stored.facts.moved_to_ms
        else:
            raise Unavailable("the task is being moved")
        raise NotFound("task_id", f"{task_id} does not exist in namespace {namespace!r}")

    async def show(self, namespace: str, task_id: str) -> ShownTask:
        """The task as it stands, with the last attempts at it. Raises as `get` does."""
        return await self._executions.shown(await self.get(namespace, task_id))

    async def attempts(self, namespace: str, task_id: str, page_size: int = 0, page_token: str = "") -> AttemptPage:
        """A page of all attempts at the task that are kept. Raises as `get` does."""
        row = (await self.get(namespace, task_id)).row
        return await self._executions.page(row.namespace_id, row.task_id, page_size, page_token)

    async def cancel(self, namespace: str, task_id: str) -> CancelResult:
        """Cancels, unless it was dispatched already. Raises InvalidArgument, NotFound, or Unavailable (do it again)."""
        raw, namespace_id = await self._named(namespace, task_id)
        result = await self._owners.cancel(namespace_id, raw)
        if result is CancelResult.NOT_FOUND:
            raise NotFound("task_id", f"{task_id} does not exist in namespace {namespace!r}")
        return result

    async def update(self, namespace: str, task_id: str, update: TaskUpdate) -> Changed:
        """Makes a task that waits what it is asked to be, unless it was settled before.

        Raises InvalidArgument, NotFound, FailedPrecondition (it is of another generation), Unavailable (do it again).
        """
        raw, namespace_id = await self._named(namespace, task_id)
        change = validate_update(update, self._limits, self._clock.now_ms())
        return await self._change(namespace, task_id, namespace_id, raw, change)

    async def run_now(self, namespace: str, task_id: str) -> Changed:
        """Makes a task that waits due now. Raises as `update` does."""
        raw, namespace_id = await self._named(namespace, task_id)
        return await self._change(namespace, task_id, namespace_id, raw, TaskChange(due_ms=self._clock.now_ms()))

    async def redrive(self, namespace: str, task_id: str) -> Changed:
        """A task that has failed for good, or expired, is done all over, from now on; one that waits stays as it is.

        Raises as `update` does.
        """
        raw, namespace_id = await self._named(namespace, task_id)
        change = TaskChange(due_ms=self._clock.now_ms(), again=True)
        return await self._change(namespace, task_id, namespace_id, raw, change)

    async def _change(
        self, namespace: str, task_id: str, namespace_id: bytes, raw: bytes, change: TaskChange
    ) -> Changed:
        changed = await self._owners.change(namespace_id, raw, change)
        if changed.result is ChangeResult.NOT_FOUND:
            raise NotFound("task_id", f"{task_id} does not exist in namespace {namespace!r}")
        if changed.result is ChangeResult.OTHER_GENERATION:
            has = changed.row.generation if changed.row else "another"
            raise FailedPrecondition("expected_generation", f"the task is of generation {has}, not {change.generation}")
        return changed

    async def _named(self, namespace: str, task_id: str) -> tuple[bytes, bytes]:
        check_name(namespace, "namespace")
        raw = ids.parse(task_id, self._constants.shards)
        return raw, (await self._directory.namespace(namespace)).namespace_id


def _unless_taken(row: TaskRow, taken: dict[tuple[bytes, bytes], TaskBody]) -> TaskRow | RequestError:
    """Refuses an id that the batch already uses for something else; one that it uses for the same is the same row."""
    first = taken.setdefault((row.namespace_id, row.task_id), row.body)
    if first is not row.body and first != row.body:
        return InvalidArgument("task_id", "is given to two different tasks of this batch")
    return row


def _outcome(answer: CreateResult) -> str:
    """How it is counted."""
    if isinstance(answer, Created):
        return "created"
    return "refused" if isinstance(answer, RequestError) else "unavailable"


def _result(row: TaskRow, failed: Mapping[bytes, Unavailable]) -> CreateResult:
    if row.ref in failed:
        return failed[row.ref]
    return Created(row.task_id, row.body.nominal_due_ms)
