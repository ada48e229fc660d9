"""Waiting for one of two things, and serving many who wait for the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from ..ports import Clock

Argument = TypeVar("Argument")
Result = TypeVar("Result")


async def first_of(event: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Waits for the event or the time, whichever comes first."""
    if event.is_set():
        return
    waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(clock.sleep(seconds))]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


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
