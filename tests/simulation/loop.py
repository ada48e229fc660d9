"""An event loop on virtual time, with processes: groups of callbacks that die or stand still together.

Nothing waits for real: when no callback is ready, the time of the next timer comes. Callbacks run in the order in which
they became ready, so a run depends on nothing but the program and its random numbers.

A callback belongs to the process in whose context it was scheduled; tasks inherit it. Once a process is dead none of
its callbacks is run any more, so a kill between two callbacks is a kill -9 at an await: no `finally`, no `except`.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, TypeVar

Result = TypeVar("Result")
CALLBACKS_MAX = 3_000_000
"""In one run: beyond it something goes round and round."""


class Crashed(BaseException):
    """Raised where code of a dead process still runs: to the end of the current callback."""


class Stuck(Exception):
    """The run does not come to an end."""


class Process:
    """A group of callbacks. `fatal_step`: it is killed instead of running this callback of its own, counted from 1."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.steps = 0
        self.fatal_step = 0
        self.on_death: Callable[[], None] = lambda: None
        self.frozen: deque[Handle] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()

    def kill(self) -> None:
        """As by kill -9."""
        if self.alive:
            self.alive = False
            self.frozen.clear()
            self.on_death()

    def check(self) -> None:
        """Raises Crashed in a dead process: the rest of its current callback must not touch the world."""
        if not self.alive:
            raise Crashed(self.name)

    def __repr__(self) -> str:
        return self.name


CURRENT: ContextVar[Process | None] = ContextVar("CURRENT", default=None)


class Handle:
    """A callback to be run. Stands for asyncio.Handle and asyncio.TimerHandle."""

    __slots__ = ("_at", "args", "callback", "context", "gone", "process")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, at: float) -> None:
        self.callback, self.args, self.context, self._at = callback, args, context, at
        self.process: Process | None = context.get(CURRENT)
        self.gone = False

    def cancel(self) -> None:
        """It will not run."""
        self.gone = True
        self.args = ()

    def cancelled(self) -> bool:
        """True once it was cancelled."""
        return self.gone

    def when(self) -> float:
        """At which loop time it runs."""
        return self._at


class VirtualLoop(asyncio.AbstractEventLoop):
    """What asyncio's tasks, futures, locks and time-outs need of a loop."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = count()
        self._callbacks = 0
        self._world = Context()
        self.failures: list[BaseException] = []
        """What callbacks of no process have raised."""

    # ---- asyncio's side

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """It runs whenever anybody can ask."""
        return True

    def is_closed(self) -> bool:
        """It is simply dropped at its end."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Exceptions that nobody retrieved: what matters of them is seen elsewhere."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """See asyncio."""
        handle = Handle(callback, args, copy_context() if context is None else context, self._now)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """See asyncio."""
        handle = Handle(callback, args, copy_context() if context is None else context, when)
        heapq.heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """See asyncio."""
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Result], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Result]:
        """See asyncio. Tasks of a process are kept, so that those of a dead one are not ended by the collector."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        process = (copy_context() if context is None else context).get(CURRENT)
        if process is not None:
            process.tasks.add(task)
            task.add_done_callback(process.tasks.discard)
        return task

    # ---- the simulation's side

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Runs a callback of the world, which belongs to no process."""
        return self.call_at(when, callback, *args, context=self._world.copy())

    def world_context(self) -> Context:
        """Of no process."""
        return self._world.copy()

    def after(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """The same, in so many seconds."""
        return self.at(self._now + max(0.0, delay), callback, *args)

    def spawn(self, process: Process | None, coro: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Starts a task of a process, or of the world."""
        context = Context()
        context.run(CURRENT.set, process)
        return self.create_task(coro, context=context)

    def resume(self, process: Process) -> None:
        """Ends a pause: what has become ready meanwhile runs now."""
        process.paused = False
        self._ready.extend(process.frozen)
        process.frozen.clear()

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Runs until a time, or until `over` says so after some callback of the world."""
        events._set_running_loop(self)
        try:
            while self._now < until and not over():
                self._run_ready()
                self._advance(until)
        finally:
            events._set_running_loop(None)

    def _advance(self, until: float) -> None:
        while self._timers and self._timers[0][2].gone:
            heapq.heappop(self._timers)
        self._now = min(until, self._timers[0][0]) if self._timers else until
        while self._timers and self._timers[0][0] <= self._now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.gone:
                self._ready.append(handle)

    def _run_ready(self) -> None:
        ready, run = self._ready, 0
        while ready:
            handle = ready.popleft()
            if handle.gone:
                continue
            process = handle.process
            if process is not None:
                if not process.alive:
                    continue
                if process.paused:
                    process.frozen.append(handle)
                    continue
                process.steps += 1
                if process.steps == process.fatal_step:
                    process.kill()
                    continue
            run += 1
            try:
                handle.context.run(handle.callback, *handle.args)
            except Crashed:
                pass
            except Exception as error:
                self.failures.append(error)
        self._callbacks += run
        if self._callbacks > CALLBACKS_MAX:
            raise Stuck(f"{self._callbacks} callbacks at {self._now:.3f} s")

    @property
    def callbacks(self) -> int:
        """How many were run."""
        return self._callbacks

    @staticmethod
    def bury(processes: list[Process]) -> None:
        """Ends what is left of all processes, after the run: whatever that code still does is without effect."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for process in processes:
                process.alive = False
                for task in list(process.tasks):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    try:
                        task.get_coro().close()
                    except BaseException:
                        pass
                process.tasks.clear()
                process.frozen.clear()
        sys.unraisablehook = hook


def at_once(coro: Coroutine[Any, Any, Result]) -> Result:
    """Runs a coroutine that waits for nothing (but gives way, perhaps), here and now."""
    try:
        while True:
            waits_for = coro.send(None)
            assert waits_for is None, waits_for
    except StopIteration as end:
        result: Result = end.value
        return result
