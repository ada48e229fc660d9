"""Waiting for the first of several things, and serving many who wait for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Sleeper(Protocol):
    """A clock, as far as waiting needs it."""

    async def sleep(self, seconds: float) -> None:
        """May return a little early or late."""
        ...


async def any_of(*waits: Awaitable[object]) -> None:
    """Returns when one of them has ended, and cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def first_of(event: asyncio.Event, clock: Sleeper, seconds: float) -> None:
    """Waits for the event or the time, whichever comes first."""
    if not event.is_set():
        await any_of(event.wait(), clock.sleep(seconds))


class Shared(Generic[Argument, Result]):
    """Runs one piece of work for all who asked for it before it began; who comes later waits for the next run.

    So a fence or a read of the journal that must begin *after* one's own earlier step (the lease) can be shared by
    many ranges that are taken at the same time.
    """

    def __init__(self, work: Callable[[list[Argument]], Awaitable[Result]]) -> None:
        self._work = work
        self._asked: list[tuple[Argument, asyncio.Future[Result]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def ask(self, argument: Argument) -> Result:
        """The result of a run that begins after this call. Raises what the run raises."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._asked.append((argument, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        return await asyncio.shield(future)

    async def _run(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                await self._serve(asked)
        finally:
            self._runner = None

    async def _serve(self, asked: list[tuple[Argument, asyncio.Future[Result]]]) -> None:
        try:
            result = await self._work([argument for argument, _ in asked])
        except BaseException as error:  # whoever asked gets it
            for _, future in asked:
                if not future.done():
                    future.set_exception(error)
                    future.exception()
            if not isinstance(error, Exception):
                raise
        else:
            for _, future in asked:
                if not future.done():
                    future.set_result(result)
