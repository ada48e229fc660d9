"""The load, a process of its own: `python -m tests.faults.load CONFIG`, CONFIG being the JSON of `LoadConfig`.

Open: requests begin at random instants of a fixed rate, whatever becomes of those before them. What is asked and what
was answered is in the history before the request goes out, and right after its answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import uvloop

from bucketsched import CancelOutcome, Client, CreatedTask, NewTask, Priority, TaskState
from bucketsched.core import task_id as ids
from bucketsched.errors import BucketschedError, NotFound, RequestError, Unavailable

from .history import HistoryWriter, now_ms
from .model import Op, Outcome, digest_of

NAMESPACE = "default"
UNKNOWN_QUEUE = "nowhere"
TIMEOUT_S = 8.0
"""How long the client tries before it says that it does not know."""
BATCH_MAX = 15
PAYLOAD_MAX = 400
DELAY_S_MAX = 60.0
LATEST_DUE_S = 3.0
"""How long after the end of the load the last task may be due."""
RECENT_MAX = 2_000
CANCELS = {
    CancelOutcome.CANCELLED: Outcome.CANCELLED,
    CancelOutcome.ALREADY_CANCELLED: Outcome.CANCELLED,
    CancelOutcome.ALREADY_DISPATCHED: Outcome.TOO_LATE,
    CancelOutcome.ALREADY_FAILED: Outcome.FAILED,
}
STATES = {
    TaskState.PENDING: Outcome.PENDING,
    TaskState.DISPATCHED: Outcome.DISPATCHED,
    TaskState.CANCELLED: Outcome.CANCELLED,
    TaskState.FAILED: Outcome.FAILED,
}


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """`rate`: tasks asked for in a second, about. `start_ms`: when the load begins."""

    addresses: list[str]
    queues: list[str]
    path: str
    seed: int
    rate: float
    seconds: float
    start_ms: int

    def text(self) -> str:
        """As it is handed to the process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A task that is to be created, perhaps several times. `due_ms` by its id."""

    task: NewTask
    due_ms: int
    digest: str

    @property
    def task_id(self) -> str:
        assert self.task.task_id is not None
        return self.task.task_id


class Load:
    """Makes requests. `clients`: the first knows all api processes, the others one each."""

    def __init__(self, config: LoadConfig, clients: list[Client], history: HistoryWriter) -> None:
        self._config, self._clients, self._history = config, clients, history
        self._rng = random.Random(f"load {config.seed}")
        self._end_ms = config.start_ms + int(config.seconds * 1000)
        self._recent: list[Wanted] = []
        self._number = 0
        self._running: set[asyncio.Task[None]] = set()
        self.requests = 0
        self._makers = {
            self._single: 45,
            self._batch: 6,
            self._repeat: 6,
            self._twice_at_once: 3,
            self._late: 3,
            self._rejected: 2,
            self._cancel: 14,
            self._get: 12,
        }

    async def run(self) -> None:
        """Until the end of the load and the last answer."""
        await asyncio.sleep(max(0, self._config.start_ms - now_ms()) / 1000)
        makers, weights = list(self._makers), list(self._makers.values())
        per_turn = 0.45 + 0.06 * BATCH_MAX / 2 + 0.06 + 0.06 + 0.03
        while now_ms() < self._end_ms:
            await asyncio.sleep(self._rng.expovariate(self._config.rate / per_turn))
            self._spawn(self._rng.choices(makers, weights)[0]())
        while self._running:
            await asyncio.wait(self._running)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        task.result()  # a defect of the load itself shows on stderr

    # ---------------------------------------------------------------- what is asked for

    async def _single(self) -> None:
        wanted = await self._new(self._delay_s())
        await self._create([wanted], self._client())
        if self._rng.random() < 0.12:
            self._spawn(self._cancel_at(wanted, wanted.due_ms + self._rng.uniform(-150, 20)))

    async def _batch(self) -> None:
        wanted = [await self._new(self._delay_s()) for _ in range(self._rng.randint(2, BATCH_MAX))]
        await self._create(wanted, self._client())

    async def _repeat(self) -> None:
        """The same task again, whatever became of it."""
        if self._recent:
            await self._create([self._rng.choice(self._recent)], self._client())

    async def _twice_at_once(self) -> None:
        wanted = await self._new(self._delay_s())
        await asyncio.gather(*(self._create([wanted], client) for client in self._clients[1:]))

    async def _late(self) -> None:
        """Sent only when it was due long ago, perhaps when its bucket is closed."""
        wanted = await self._new(self._rng.uniform(0, 1))
        left_s = max(0.0, self._end_ms / 1000 - now_ms() / 1000)
        await asyncio.sleep(min(left_s, self._rng.choice((3, 15, 40, 75)) * self._rng.uniform(0.8, 1.2)))
        await self._create([wanted], self._client())

    async def _rejected(self) -> None:
        wanted = await self._new(self._delay_s(), queue=UNKNOWN_QUEUE)
        await self._create([wanted], self._client())

    async def _cancel(self) -> None:
        if self._recent:
            wanted = self._rng.choice(self._recent[-400:])
            await self._cancel_at(wanted, now_ms())

    async def _cancel_at(self, wanted: Wanted, at_ms: float) -> None:
        await asyncio.sleep(max(0, at_ms - now_ms()) / 1000)
        await self._ask(Op.CANCEL, wanted.task_id, self._cancelled(wanted.task_id))

    async def _get(self) -> None:
        if self._recent:
            task_id = self._rng.choice(self._recent).task_id
            await self._ask(Op.GET, task_id, self._read(task_id))

    # ---------------------------------------------------------------- how it is asked for

    def _client(self) -> Client:
        return self._rng.choice(self._clients)

    def _delay_s(self) -> float:
        """From nothing to a minute, but due soon after the end of the load at the latest."""
        low, high = self._rng.choice(((0, 0.5), (0.5, 6), (6, 20), (20, DELAY_S_MAX)))
        left_s = (self._end_ms - now_ms()) / 1000 + LATEST_DUE_S
        return min(self._rng.uniform(low, high), max(0.0, left_s))

    async def _new(self, delay_s: float, queue: str = "") -> Wanted:
        """A task that nobody has asked for yet."""
        rng = self._rng
        queue = queue or rng.choice(self._config.queues)
        kind, priority = rng.choice(("a", "b.c", "ü")), rng.choice(list(Priority))
        payload = secrets.token_bytes(rng.randrange(PAYLOAD_MAX))
        metadata = {f"key{n}": f"värde {rng.random()}" for n in range(rng.randrange(3))}
        content_type = rng.choice(("", "application/json"))
        task_id = await self._clients[0].mint(delay=delay_s)
        task = NewTask(
            kind, payload, queue, priority=priority, metadata=metadata, task_id=task_id, content_type=content_type
        )
        sent = content_type or "application/octet-stream"
        digest = digest_of(NAMESPACE, queue, kind, payload, metadata, sent, priority)
        due_ms = ids.home_of(bytes.fromhex(task_id.replace("-", ""))).due_ms
        return Wanted(task, due_ms, digest)

    async def _create(self, wanted: list[Wanted], client: Client) -> None:
        numbers = [self._next() for _ in wanted]
        await self._history.record(
            *(self._start(n, Op.CREATE, w.task_id, w) for n, w in zip(numbers, wanted, strict=True))
        )
        answers = await client.create_many([w.task for w in wanted], timeout=TIMEOUT_S)
        at_ms = now_ms()
        for number, answer in zip(numbers, answers, strict=True):
            outcome = Outcome.OK if isinstance(answer, CreatedTask) else outcome_of(answer)
            self._end(number, outcome, at_ms, "" if isinstance(answer, CreatedTask) else str(answer))
        for each in wanted:
            if each.task.queue != UNKNOWN_QUEUE:
                self._recent.append(each)
        del self._recent[:-RECENT_MAX]

    async def _ask(self, op: Op, task_id: str, call: Coroutine[Any, Any, Outcome]) -> None:
        number = self._next()
        await self._history.record(self._start(number, op, task_id))
        note = ""
        try:
            outcome = await call
        except BucketschedError as error:
            outcome, note = outcome_of(error), str(error)
        self._end(number, outcome, now_ms(), note)

    async def _cancelled(self, task_id: str) -> Outcome:
        return CANCELS[await self._client().cancel(task_id)]

    async def _read(self, task_id: str) -> Outcome:
        return STATES[(await self._client().get(task_id)).state]

    def _next(self) -> int:
        self._number += 1
        self.requests += 1
        return self._number

    def _start(self, number: int, op: Op, task_id: str, wanted: Wanted | None = None) -> dict[str, Any]:
        event: dict[str, Any] = {"e": "start", "n": number, "op": op, "id": task_id, "t": now_ms()}
        if wanted is not None:
            event |= {"due": wanted.due_ms, "queue": wanted.task.queue, "digest": wanted.digest}
        return event

    def _end(self, number: int, outcome: Outcome, at_ms: int, note: str) -> None:
        event: dict[str, Any] = {"e": "end", "n": number, "outcome": outcome, "t": at_ms}
        self._history.note(event | ({"note": note[:200]} if note else {}))


def outcome_of(error: BucketschedError) -> Outcome:
    """What an error means for the task."""
    if isinstance(error, NotFound) and error.field in ("", "task_id"):
        return Outcome.NOT_FOUND
    if isinstance(error, RequestError):
        return Outcome.REJECTED
    assert isinstance(error, Unavailable), f"an error that a client should not meet: {error!r}"
    return Outcome.UNKNOWN


class Clients(AsyncExitStack):
    """One client for all addresses, and one for each."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        self.all = [Client(",".join(addresses), timeout=TIMEOUT_S), *(Client(a, timeout=TIMEOUT_S) for a in addresses)]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        for client in self.all:
            await self.enter_async_context(client)
            await client.info()
        return self


async def main(config: LoadConfig) -> None:
    """Says when it has ended."""
    history = HistoryWriter(Path(config.path))
    async with Clients(config.addresses) as clients:
        print(json.dumps("ready"), flush=True)
        load = Load(config, clients.all, history)
        await load.run()
    history.close()
    print(json.dumps({"requests": load.requests}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(LoadConfig(**json.loads(sys.argv[1]))))
