"""Clients: they create tasks, near, far and late, cancel them, and repeat what was not confirmed."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bucketsched.core import task_id as ids
from bucketsched.core.durations import timestamp_ms
from bucketsched.core.errors import NotFound, RequestError, Unavailable
from bucketsched.core.task import Priority
from bucketsched.core.validation import NewTask
from bucketsched.ports import CancelResult
from bucketsched.service.tasks import Created, CreateResult, CreateUnavailable, TaskService

from .clock import WorldTime
from .invariants import Invariants, Request, Told, tag
from .network import NotSent, Unanswered
from .processes import Life, Node, NodeDown
from .servers import Servers

Result = TypeVar("Result")
CLIENT = "client"
REQUEST_S = 6.0
TRIES_MAX = 12
QUEUES = (("default", "one"), ("default", "two"), ("other", "one"))
WORKER_QUEUE = ("default", "two")
LATE_S_MIN, LATE_S_MAX = 5.0, 50.0
"""How much later a create is sent again whose first try nobody waited for."""


@dataclass(slots=True)
class Load:
    """How much clients do."""

    until_s: float
    """Requests begin before this, and most tasks are due before this."""
    hot_s: list[float]
    """Moments about which much is due, and much goes wrong."""
    creates: int = 32
    cancels: float = 0.3
    rejected: float = 0.05
    late: float = 0.2
    twins: float = 0.15
    """Tasks of one id in two namespaces."""
    doubled: float = 0.0
    """Cancels that are asked for twice at the same time."""


class Clients:
    """All clients of a world. Tasks of the world itself: they never fail."""

    def __init__(self, servers: Servers, time: WorldTime, nodes: list[Node], rng: random.Random, load: Load) -> None:
        self._servers, self._time, self._rng, self._load = servers, time, rng, load
        self._invariants: Invariants = servers.invariants
        self._apis = [node for node in nodes if "api" in node.settings.roles]
        self.running: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Starts them all."""
        rng = self._rng
        burst_s, last_at = rng.uniform(0, self._load.until_s), 0.1
        for number in range(self._load.creates):
            at = rng.uniform(0.1, self._load.until_s)
            if rng.random() < 0.25:
                at = max(0.1, burst_s + rng.uniform(0, 0.02))
            earlier = self._invariants.requests[-1:]
            if earlier and earlier[0].twin_of is None and rng.random() < self._load.twins:
                request = self._twin(number, earlier[0])
                at = max(0.1, at if rng.random() < 0.5 else last_at + rng.uniform(0, 0.5))
            else:
                request = self._request(number, at)
            last_at = at
            self._spawn(self._live(request, at))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._servers.loop.spawn(None, work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._servers.loop.failures.append(task.exception() or AssertionError())

    def _request(self, number: int, at: float) -> Request:
        rng = self._rng
        begins_ms = self._time.begins_ms + at * 1000
        wait_s = rng.choice((0.0, rng.uniform(-3, 0), rng.uniform(0, 3), rng.uniform(0, 15), rng.uniform(5, 30)))
        hot_s = rng.choice(self._load.hot_s) + rng.uniform(-0.5, 3) - at
        if hot_s > 0 and rng.random() < 0.6:
            wait_s = hot_s
        if wait_s > 3 and rng.random() < 0.2:  # about a bucket's end
            end_ms = (math.floor(begins_ms / 60_000) + 1) * 60_000
            wait_s = max(0.0, (end_ms - begins_ms) / 1000 + rng.choice((-0.001, 0, 0.001, rng.uniform(-1, 1))))
        exact_ms = begins_ms + wait_s * 1000
        seconds, nanos = divmod(math.floor(exact_ms * 1_000) * 1_000, 1_000_000_000)
        due_ms = timestamp_ms(seconds, nanos, "due_time")
        namespace, queue = rng.choice(QUEUES)
        payload = tag(number) + rng.randbytes(rng.randrange(12))
        metadata = {"k": str(number)} if rng.random() < 0.3 else {}
        request = Request(number, namespace, queue, f"type-{number % 3}", payload, metadata, due_ms)
        request.exact_due_ms = math.floor(exact_ms * 1_000) / 1_000
        self._invariants.requests.append(request)
        return request

    def _twin(self, number: int, of: Request) -> Request:
        """Of the same id, in another namespace."""
        namespace = "other" if of.namespace == "default" else "default"
        twin = replace(of, number=number, namespace=namespace, queue="one", payload=tag(number) + of.payload[8:])
        twin.cancels, twin.twin_of = [], of
        self._invariants.requests.append(twin)
        return twin

    # ---- the life of one request

    async def _live(self, request: Request, at: float) -> None:
        rng = self._rng
        await asyncio.sleep(at)
        cancel_s = rng.uniform(-1, 1) if rng.random() < 0.5 else rng.uniform(-20, 2)
        wants_cancel = rng.random() < self._load.cancels
        late_s = rng.uniform(LATE_S_MIN, LATE_S_MAX) if rng.random() < self._load.late else 0.0
        await self._create(request, late_s)
        if wants_cancel:
            now_s = self._servers.loop.time()
            due_s = (request.due_ms - self._time.begins_ms) / 1000
            await asyncio.sleep(max(0.0, due_s + cancel_s - now_s))
            if self._load.doubled and rng.random() < self._load.doubled:
                self._spawn(self._cancel(request))
            await self._cancel(request)

    def _minted(self, request: Request) -> bytes:
        home_ms = max(request.due_ms, math.floor(self._time.ms() + self._rng.uniform(-50, 50)))
        shard = self._rng.randrange(self._servers.constants.shards)
        return ids.mint(home_ms, shard, self._rng.getrandbits(62))

    def _task(self, request: Request, task_id: str) -> NewTask:
        spoiled = self._rng.random() < self._load.rejected
        return NewTask(
            request.type if not spoiled else "",
            request.namespace,
            request.queue,
            request.payload,
            request.metadata,
            due_ms=request.due_ms,
            priority=Priority(request.number % 3),
            task_id=task_id,
        )

    async def _create(self, request: Request, late_s: float) -> None:
        """Until it is confirmed or rejected, or no longer wanted."""
        rng = self._rng
        if request.twin_of is not None:
            request.task_id = request.twin_of.task_id
        if not request.task_id and rng.random() < 0.6:
            request.task_id = self._minted(request)
        task = self._task(request, ids.text(request.task_id) if request.task_id else "")
        if late_s and request.task_id and rng.random() < 0.6:
            await asyncio.sleep(late_s)  # long after its id was minted
            late_s = 0.0
        for tries in range(TRIES_MAX):
            timeout_s = rng.uniform(0.001, 0.1) if late_s and not tries else REQUEST_S
            answer = await self._ask(lambda tasks: tasks.create_many([task]), timeout_s)
            if isinstance(answer, list):
                if self._told(request, answer[0]):
                    return
            elif not request.task_id:
                return  # nobody can tell which task that was
            if request.task_id:
                task.task_id = ids.text(request.task_id)
            await asyncio.sleep(late_s if late_s and not tries else rng.uniform(0.05, 1.0))

    def _told(self, request: Request, result: CreateResult) -> bool:
        """True if there is nothing left to ask."""
        note = self._servers.trace.note
        if isinstance(result, Created):
            known = request.task_id in (b"", result.task_id)
            self._invariants.expect(known, "I8", f"{request.name} is acknowledged under another id", request.name)
            request.task_id, request.told = result.task_id, Told.ACKNOWLEDGED
            request.told_ms = self._time.ms()
            name = f"{result.task_id[-4:].hex()} due {request.due_ms - self._time.begins_ms}"
            note(CLIENT, f"{request.name} is acknowledged: {name}")
            return True
        if isinstance(result, CreateUnavailable):
            request.task_id = result.task_id
            note(CLIENT, f"{request.name} ({result.task_id[-4:].hex()}) is not confirmed")
            return False
        if isinstance(result, RequestError):
            if request.told is Told.NOTHING:
                request.told = Told.REJECTED
            note(CLIENT, f"{request.name} is rejected: {result}")
            return True
        return False

    async def _cancel(self, request: Request) -> None:
        if not request.task_id:
            return
        text = ids.text(request.task_id)
        for _ in range(self._rng.randrange(1, 5)):
            acknowledged = request.told is Told.ACKNOWLEDGED
            answer = await self._ask(lambda tasks: tasks.cancel(request.namespace, text), REQUEST_S)
            what = answer.value if isinstance(answer, CancelResult) else repr(answer)
            self._servers.trace.note(CLIENT, f"{request.name}: cancel {text[-8:]} is answered: {what}")
            if isinstance(answer, CancelResult):
                self._invariants.cancel_answered(request, answer)
                return
            if isinstance(answer, NotFound):
                self._invariants.cancel_not_found(request, acknowledged)
                return
            await asyncio.sleep(self._rng.uniform(0.05, 1.0))

    async def _ask(
        self, question: Callable[[TaskService], Coroutine[Any, Any, Result]], timeout_s: float
    ) -> Result | Exception:
        """The answer of some api, or the error."""
        node = self._rng.choice(self._apis)
        under_way: list[asyncio.Task[Result]] = []

        async def serve(life: Life) -> Result:
            if life.tasks is None:
                raise NodeDown(node.name)
            return await question(life.tasks)

        def effect() -> asyncio.Task[Result]:
            under_way.append(node.serve(serve))
            return under_way[0]

        try:
            result: Result = await self._servers.network.call(CLIENT, node.name, effect, timeout_s)
            return result
        except (NotSent, Unanswered, NodeDown, Unavailable, RequestError) as error:
            if isinstance(error, Unanswered) and self._rng.random() < 0.5:
                for task in under_way:
                    if not task.done():
                        self._servers.loop.after(0.001, task.cancel)
            return error
