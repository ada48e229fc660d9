"""The frame of a process: its event loop, signals, failpoints, and the order of its end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from typing import NoReturn, Protocol

import structlog
import uvloop

from ..core import failpoints
from ..core.errors import ConfigError

log = structlog.get_logger(__name__)
FAILPOINT = "BUCKETSCHED_FAILPOINT"
COLLECTOR_THRESHOLDS = (20_000, 50, 10)
"""New objects before a collection of the youngest, and how many of each generation's before one of the next."""
SECOND_SIGNAL_S_MIN = 0.5
"""What comes sooner is the first one again: a terminal and a wrapper may both send it."""
START_CANCEL_S_MAX = 2.0
"""How long a start that was interrupted may take to notice."""
THREADS_S_MAX = 0.5
"""How long threads are waited for at the end: one that still tries to connect has nothing to lose."""


class Runnable(Protocol):
    """Something that starts, works until it fails, and stops in order."""

    async def start(self) -> None:
        """Raises ConfigError or Unavailable."""
        ...

    async def work(self) -> None:
        """Runs until cancelled; an exception ends the process."""
        ...

    async def stop(self) -> None:
        """Hands over and lets go, in bounded time."""
        ...


def run(runnable: Runnable) -> int:
    """0 after a signal, 1 after a failure; a second signal ends the process here. Raises ConfigError, Unavailable."""
    install_failpoint(os.environ.get(FAILPOINT, ""))
    calm_collector()
    return uvloop.run(_run(runnable))


def calm_collector() -> None:
    """Has Python look for cycles seldom. A poller holds several objects for each loaded row, none of them in a cycle:

    with the defaults, loading 300,000 rows spent 40 % of its time on looking, and stood still for up to 190 ms.
    """
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.freeze()


async def _run(runnable: Runnable) -> int:
    stopping = _told_to_stop()
    try:
        code = await _live(runnable, stopping)
    finally:
        await runnable.stop()
    if stopping.is_set() and not await _threads_have_ended():
        leave(code)
    return code


async def _live(runnable: Runnable, stopping: asyncio.Event) -> int:
    waiting = asyncio.create_task(stopping.wait())
    starting = asyncio.create_task(runnable.start())
    await asyncio.wait([waiting, starting], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting], timeout=START_CANCEL_S_MAX)
        return 0
    starting.result()
    working = asyncio.create_task(runnable.work())
    await asyncio.wait([waiting, working], return_when=asyncio.FIRST_COMPLETED)
    return await _end(working)


def _told_to_stop() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM. A second one, some time later, ends the process at once, as a crash would."""
    stopping, loop, first_at = asyncio.Event(), asyncio.get_running_loop(), float("inf")

    def told(number: signal.Signals) -> None:
        nonlocal first_at
        first_at = min(first_at, loop.time())
        if loop.time() - first_at > SECOND_SIGNAL_S_MIN:
            log.warning("told twice to stop: leaving at once, without handing over")
            leave(128 + number)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number)
    return stopping


async def _threads_have_ended() -> bool:
    """False where one is stuck, such as with a server that does not answer: waiting for it would be of no use."""
    ending = asyncio.create_task(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait([ending], timeout=THREADS_S_MAX)
    return ending.done()


def leave(code: int) -> NoReturn:
    """Ends the process now, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)


async def _end(working: asyncio.Task[None]) -> int:
    if not working.done():
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return 0
    error = working.exception()
    log.critical("the process ends", error=repr(error), exc_info=error)
    return 1


def install_failpoint(spec: str) -> None:
    """`name` or `name:n`: kills this process, as by kill -9, at the nth time that it reaches the failpoint.

    For tests. Raises ConfigError for a name that there is none of.
    """
    if not spec:
        return
    name, _, count = spec.partition(":")
    if name not in failpoints.NAMES or not (count or "1").isdigit():
        raise ConfigError(f"{FAILPOINT} must be one of {', '.join(sorted(failpoints.NAMES))}, with :n, is {spec!r}")
    left = int(count or "1")

    def hook(reached: str) -> None:
        nonlocal left
        if reached == name:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    failpoints.install(hook)
