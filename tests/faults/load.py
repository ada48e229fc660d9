"""The load, a process of its own: `python -m tests.faults.load CONFIG`, CONFIG being the JSON of `LoadConfig`.

Open: requests begin at random instants of a fixed rate, whatever becomes of those before them. What is asked and what
was answered is in the history before the request goes out, and right after its answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import uvloop

from bucketsched import Client

from .asking import Asking
from .drawing import UNKNOWN_QUEUE, Drawing, Wanted
from .history import HistoryWriter, now_ms

BATCH_MAX = 15
LATEST_DUE_S = 3.0
"""How long after the end of the load the last task may be due."""
RECENT_MAX = 2_000
CHANGED_MAX = 400
"""Of those created at last, so many are cancelled and changed: older ones are dispatched for the most part."""
AT_ONCE_MAX = 4
PATIENT_S, HASTY_S = 30.0, 8.0
"""How long a client tries before it says that it does not know: the one that knows all processes, and the others."""


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


class Load:
    """Makes requests. `clients`: the first knows all api processes, the others one each."""

    def __init__(self, config: LoadConfig, clients: list[Client], history: HistoryWriter) -> None:
        self._config, self._clients = config, clients
        self._rng = random.Random(f"load {config.seed}")
        self._end_ms = config.start_ms + int(config.seconds * 1000)
        self._drawing = Drawing(self._rng, config.queues, self._end_ms + int(LATEST_DUE_S * 1000))
        self._recent: list[Wanted] = []
        self._running: set[asyncio.Task[None]] = set()
        self.asking = Asking(history)
        self._makers = {
            self._single: 40,
            self._batch: 6,
            self._repeat: 6,
            self._twice_at_once: 3,
            self._late: 3,
            self._rejected: 2,
            self._keyed: 6,
            self._cancel: 10,
            self._update: 14,
            self._updates_at_once: 3,
            self._run_now: 4,
            self._get: 12,
        }

    async def run(self) -> None:
        """Until the end of the load and the last answer."""
        await asyncio.sleep(max(0, self._config.start_ms - now_ms()) / 1000)
        makers, weights = list(self._makers), list(self._makers.values())
        per_turn = (40 + 6 * (2 + BATCH_MAX) / 2 + 6 + 3 + 3 + 6) / sum(weights)
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

    # ---------------------------------------------------------------- creates

    async def _single(self) -> None:
        """Some are cancelled or changed just when they are due."""
        wanted = await self._new(self._delay_s())
        await self._create([wanted], self._client())
        chance = self._rng.random()
        if chance < 0.08:
            self._spawn(self._when_due(wanted, self.asking.cancel(wanted, self._client())))
        elif chance < 0.2:
            self._spawn(self._when_due(wanted, self._change(wanted)))

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

    async def _keyed(self) -> None:
        """Once, twice at once by two ways, again when it was dispatched most likely, or beside another of its key."""
        wanted = self._drawing.keyed(now_ms())
        ways = self._rng.choices(("once", "at once", "again", "other at once", "other later"), (30, 30, 15, 15, 10))[0]
        other = self._other(wanted) if ways.startswith("other") else wanted
        if ways.endswith("at once"):
            await asyncio.gather(self._create([wanted], self._clients[1]), self._create([other], self._clients[-1]))
            return
        await self._create([wanted], self._client())
        if ways != "once":
            await self._when_due(wanted, self._create([other], self._client()))

    def _other(self, wanted: Wanted) -> Wanted:
        """Another task under the same key, at times differing only in when it is due."""
        other = self._drawing.keyed(now_ms(), wanted.task.idempotency_key)
        if self._rng.random() < 0.5:
            return other
        task = replace(wanted.task, delay=other.task.delay, due=other.task.due)
        body = wanted.body._replace(due_ms=other.body.due_ms)
        return Wanted(task, body, due_ms=other.due_ms, delay_ms=other.delay_ms)

    # ---------------------------------------------------------------- changes and reads

    async def _cancel(self) -> None:
        if wanted := self._any():
            await self.asking.cancel(wanted, self._client())

    async def _update(self) -> None:
        if wanted := self._any():
            await self._alter(wanted)

    async def _updates_at_once(self) -> None:
        """One task, changed by several."""
        if wanted := self._any():
            await asyncio.gather(*(self._change(wanted) for _ in range(self._rng.randint(2, AT_ONCE_MAX))))

    async def _run_now(self) -> None:
        if wanted := self._any():
            await self.asking.run_now(wanted, self._client())

    async def _change(self, wanted: Wanted) -> None:
        if self._rng.random() < 0.2:
            await self.asking.run_now(wanted, self._client())
        else:
            await self._alter(wanted)

    async def _alter(self, wanted: Wanted) -> None:
        await self.asking.update(wanted, self._drawing.alteration(wanted, now_ms()), self._client())

    async def _get(self) -> None:
        if wanted := self._any(RECENT_MAX):
            await self.asking.get(wanted, self._client())

    async def _when_due(self, wanted: Wanted, work: Coroutine[Any, Any, None]) -> None:
        await asyncio.sleep(max(0, wanted.due_ms + self._rng.uniform(-150, 20) - now_ms()) / 1000)
        await work

    # ---------------------------------------------------------------- what there is

    def _client(self) -> Client:
        return self._rng.choice(self._clients)

    def _any(self, newest: int = CHANGED_MAX) -> Wanted | None:
        """One of the newest tasks whose ids are known."""
        known = [wanted for wanted in self._recent[-newest:] if wanted.task_id]
        return self._rng.choice(known) if known else None

    def _delay_s(self) -> float:
        return self._drawing.delay_s(now_ms())

    async def _new(self, delay_s: float, queue: str = "") -> Wanted:
        """A task that nobody has asked for yet."""
        return self._drawing.task(await self._clients[0].mint(delay=delay_s), queue)

    async def _create(self, wanted: list[Wanted], client: Client) -> None:
        await self.asking.create(wanted, client)
        self._recent += [each for each in wanted if each.task.queue != UNKNOWN_QUEUE]
        del self._recent[:-RECENT_MAX]


class Clients(AsyncExitStack):
    """One client for all addresses, and one for each."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__()
        patient = Client(",".join(addresses), timeout=PATIENT_S)
        self.all = [patient, *(Client(address, timeout=HASTY_S) for address in addresses)]

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
    print(json.dumps({"requests": load.asking.requests}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(LoadConfig(**json.loads(sys.argv[1]))))
