"""What clients want: tasks, near, far and late, that they cancel, change, and create under names of their own."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from bucketsched.core.durations import timestamp_ms
from bucketsched.core.task import Priority
from bucketsched.core.task_update import TaskUpdate

from .client import Client
from .clock import WorldTime
from .invariants import Invariants
from .processes import Node
from .requests import TAG_BYTES, Request, Wish, tag
from .servers import Servers

QUEUES = (("default", "one"), ("default", "two"), ("other", "one"))
WORKER_QUEUE = ("default", "two")


@dataclass(slots=True)
class Load:
    """How much clients do. Probabilities of one request."""

    until_s: float
    """Requests begin before this, and most tasks are due before this."""
    due_s: list[float]
    """Moments about which much is due."""
    hot_s: list[float]
    """Moments about which much goes wrong."""
    burst_s: float | None = None
    """When many requests come at once; None: somewhen."""
    creates: int = 32
    cancels: float = 0.3
    rejected: float = 0.05
    late: float = 0.2
    late_s: tuple[float, float] = (5.0, 50.0)
    """How much later a create is sent again whose first try nobody waited for."""
    twins: float = 0.15
    """Tasks of one id in two namespaces."""
    doubled: float = 0.0
    """Cancels that are asked for twice at the same time."""
    changes: float = 0.2
    """Tasks that are changed, most of them more than once."""
    keys: float = 0.15
    """Creates with an idempotency key, most of them sent again."""
    rivals: float = 0.3
    """Of those, keys that are taken for something else, too."""


class Clients:
    """Makes requests, and has them lived through."""

    def __init__(self, servers: Servers, time: WorldTime, nodes: list[Node], rng: random.Random, load: Load) -> None:
        self._servers, self._time, self._rng, self._load = servers, time, rng, load
        self._invariants: Invariants = servers.invariants
        self._client = Client(servers, time, nodes, rng)
        self.running: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Starts them all."""
        rng = self._rng
        burst_s, last_at = rng.uniform(0, self._load.until_s), 0.1
        if self._load.burst_s is not None:
            burst_s = self._load.burst_s
        for number in range(self._load.creates):
            at = rng.uniform(0.1, self._load.until_s)
            if rng.random() < 0.25:
                at = max(0.1, burst_s + rng.uniform(0, 0.02))
            earlier = self._invariants.requests[-1:]
            if earlier and self._may_be_copied(earlier[0]):
                at = max(0.1, at if rng.random() < 0.5 else last_at + rng.uniform(0, 0.5))
                copy = self._rival if earlier[0].key else self._twin
                request = copy(number, earlier[0], at)
            else:
                request = self._request(number, at)
            last_at = at
            self._spawn(self._live(request, at))

    def _may_be_copied(self, request: Request) -> bool:
        if request.twin_of is not None or request.rival_of is not None:
            return False
        return self._rng.random() < (self._load.rivals if request.key else self._load.twins)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._servers.loop.spawn(None, work)
        self.running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._servers.loop.failures.append(task.exception() or AssertionError())

    # ---- what is asked for

    def _wait_s(self, at: float) -> float:
        """From now until it is due."""
        rng = self._rng
        wait_s = rng.choice((0.0, rng.uniform(-3, 0), rng.uniform(0, 3), rng.uniform(0, 15), rng.uniform(5, 30)))
        hot_s = rng.choice(self._load.due_s) + rng.uniform(-0.5, 3) - at
        if hot_s > 0 and rng.random() < 0.6:
            wait_s = hot_s
        if wait_s > 3 and rng.random() < 0.2:  # about a bucket's end
            begins_ms = self._time.begins_ms + at * 1000
            end_ms = (math.floor(begins_ms / 60_000) + 1) * 60_000
            wait_s = max(0.0, (end_ms - begins_ms) / 1000 + rng.choice((-0.001, 0, 0.001, rng.uniform(-1, 1))))
        return wait_s

    def _request(self, number: int, at: float) -> Request:
        rng = self._rng
        exact_ms = self._time.begins_ms + (at + self._wait_s(at)) * 1000
        seconds, nanos = divmod(math.floor(exact_ms * 1_000) * 1_000, 1_000_000_000)
        due_ms = timestamp_ms(seconds, nanos, "due_time")
        namespace, queue = rng.choice(QUEUES)
        payload = tag(number) + rng.randbytes(rng.randrange(12))
        metadata = {"k": str(number)} if rng.random() < 0.3 else {}
        request = Request(number, namespace, queue, f"type-{number % 3}", payload, metadata, due_ms)
        request.exact_due_ms = math.floor(exact_ms * 1_000) / 1_000
        request.spoiled = rng.random() < self._load.rejected
        if rng.random() < self._load.keys:
            request.key = f"key-{number}"
            if rng.random() < 0.5:
                request.delay_ms = max(0, math.ceil(due_ms - self._time.at_ms(at)))
                request.exact_due_ms = self._delayed_ms(request.delay_ms, at)
        self._invariants.requests.append(request)
        return request

    def _delayed_ms(self, delay_ms: int, at: float) -> float:
        """The earliest time at which such a delay ends."""
        return self._time.at_ms(at) + delay_ms - self._invariants.clock_error_ms - 1

    def _twin(self, number: int, of: Request, _: float) -> Request:
        """Of the same id, in another namespace."""
        namespace = "other" if of.namespace == "default" else "default"
        payload = tag(number) + of.payload[TAG_BYTES:]
        twin = replace(of, number=number, namespace=namespace, queue="one", payload=payload)
        twin.cancels, twin.wishes, twin.twin_of = [], [], of
        self._invariants.requests.append(twin)
        return twin

    def _rival(self, number: int, of: Request, at: float) -> Request:
        """Of the same key, and something else."""
        rival = replace(of, number=number, type=f"type-{number % 3}", payload=tag(number) + of.payload[TAG_BYTES:])
        rival.cancels, rival.wishes, rival.rival_of = [], [], of
        if rival.delay_ms is not None:
            rival.exact_due_ms = self._delayed_ms(rival.delay_ms, at)
        rival.contended = of.contended = True
        self._invariants.requests.append(rival)
        return rival

    def _wish(self, request: Request) -> Wish:
        """Something else than it is, or the same."""
        rng, now_ms = self._rng, self._time.ms()
        kind = rng.choice(("now", "forward", "back", "delay", "same", "body", "body", "all"))
        update = TaskUpdate()
        if kind == "same":
            generation = self._invariants.versions.generation(request.names)
            body = self._invariants.versions.body(request.names, generation, request.body())
            return Wish(TaskUpdate(payload=body.payload), now_ms)
        if kind in ("body", "all"):
            update = TaskUpdate(payload=tag(request.number) + rng.randbytes(rng.randrange(12)))
            update = rng.choice((update, replace(update, metadata={"m": str(rng.randrange(3))}, content_type="a/b")))
        if rng.random() < 0.2:
            update = replace(update, priority=Priority(rng.randrange(3)), metadata={})
        if kind == "forward":
            update = replace(update, due_ms=math.ceil(max(now_ms, request.due_ms) + rng.uniform(1, 10_000)))
        if kind in ("back", "all"):
            update = replace(update, due_ms=math.ceil(now_ms + rng.uniform(-500, 3_000)))
        if kind == "delay":
            update = replace(update, delay_ms=rng.choice((0, rng.randrange(5_000))))
        if rng.random() < 0.4:
            newest = self._invariants.versions.generation(request.names)
            update = replace(update, expected_generation=max(0, newest - rng.choice((0, 0, 0, 1))))
        return Wish(update if kind != "now" else None, now_ms)

    # ---- the life of one request

    async def _live(self, request: Request, at: float) -> None:
        rng, load = self._rng, self._load
        await asyncio.sleep(at)
        cancel_s = self._about_due()
        wants_cancel = rng.random() < load.cancels
        late_s = self._late_s(at) if rng.random() < load.late and not request.key else 0.0
        if request.key:
            self._spawn(self._again(request))
        if rng.random() < load.changes:
            self._spawn(self._change(request))
        await self._client.create(request, late_s)
        if wants_cancel:
            await self._until(request, cancel_s)
            if load.doubled and rng.random() < load.doubled:
                self._spawn(self._client.cancel(request))
            await self._client.cancel(request)

    def _late_s(self, at: float) -> float:
        """How much later a create is served that is asked for at this time; perhaps when much goes wrong."""
        rng, (least_s, most_s) = self._rng, self._load.late_s
        hot_s = rng.choice(self._load.hot_s) + rng.uniform(-1, 2) - at
        return hot_s if hot_s > least_s and rng.random() < 0.5 else rng.uniform(least_s, most_s)

    def _about_due(self) -> float:
        """Seconds from a due time, most of them before it."""
        rng = self._rng
        return rng.uniform(-1, 1) if rng.random() < 0.5 else rng.uniform(-20, 2)

    async def _until(self, request: Request, offset_s: float) -> None:
        """Until so long after it is due, as it was asked for at first."""
        due_s = (request.due_ms - self._time.begins_ms) / 1000
        await asyncio.sleep(max(0.0, due_s + offset_s - self._servers.loop.time()))

    async def _again(self, request: Request) -> None:
        """The same create, from wherever: at once, or after the task has gone, too."""
        rng = self._rng
        for _ in range(rng.randrange(3)):
            if rng.random() < 0.4:
                await asyncio.sleep(rng.uniform(0, 0.02))
            else:
                await self._until(request, rng.choice((rng.uniform(-5, 1), rng.uniform(0, 25))))
            await self._client.create(request)

    async def _change(self, request: Request) -> None:
        """Changes it at one moment, or at several, sometimes twice at once."""
        rng = self._rng
        for _ in range(rng.randrange(1, 4)):
            await asyncio.sleep(rng.uniform(0, 1))
            if rng.random() < 0.7:
                await self._until(request, self._about_due())
            if rng.random() < 0.3:
                self._spawn(self._client.change(request, self._wish(request)))
            await self._client.change(request, self._wish(request))
            if rng.random() < 0.3:
                await self._client.look(request)
