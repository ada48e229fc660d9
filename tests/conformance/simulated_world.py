"""The simulation's servers on real time and without faults, for the suites."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from tests.simulation.loop import VirtualLoop
from tests.simulation.network import Network


class RealTime:
    """What the simulated servers ask of a loop, by the running one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self._loop.time()

    def create_future(self) -> asyncio.Future[Any]:
        return self._loop.create_future()

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay, callback, *args)

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(max(0.0, delay), callback, *args)

    def world_context(self) -> Context:
        return Context()

    def spawn(self, process: object, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def real_time() -> VirtualLoop:
    """It passes for the simulation's."""
    return cast(VirtualLoop, RealTime())


def network(loop: VirtualLoop) -> Network:
    """One on which all goes well."""
    return Network(loop, random.Random(7))
