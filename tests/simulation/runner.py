"""Runs seeds: one after the other, or in several processes at once."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from bucketsched.app import poller_role
from bucketsched.coordinator import follower, trimmer
from bucketsched.core import failpoints

from .faults import Faults
from .loop import CURRENT, Stuck
from .trace import Trace
from .world import World

HEALED_S_MAX = 25.0
"""D of I1: so long after all faults have ended, or it fell due, or was acknowledged, each task is dispatched."""

LOOPS_LOOK_S = 1.5
"""Of all loops that wait in vain, these turn most often: they look less often here."""
SEEDS_PER_CHUNK = 8
LOOK_S = 0.5
"""How often it looks whether a healed world has settled."""


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    hash: str
    violation: str = ""
    invariant: str = ""
    lines: list[str] = field(default_factory=list)
    events: int = 0
    callbacks: int = 0
    dispatched: int = 0
    seconds: float = 0.0


def run_seed(seed: int, full_trace: bool = False) -> Outcome:
    """One run."""
    started = time.process_time()
    follower.LOOK_S = poller_role.CLOCK_LOOK_S = LOOPS_LOOK_S
    with _no_chance(seed):
        world = World(seed)
        trimmer.INTERVAL_S = world.mix.trims_s
        with _listening(world.trace, world):
            _run(world)
            outcome = _outcome(world, full_trace)
            world.loop.bury(world.processes)
    outcome.seconds = time.process_time() - started
    return outcome


def _outcome(world: World, full_trace: bool) -> Outcome:
    violation = world.invariants.violation
    outcome = Outcome(world.seed, world.trace.hash())
    if violation is not None:
        outcome.violation, outcome.invariant = str(violation), violation.invariant
        outcome.lines = list(world.trace.lines()) if full_trace else world.trace.about(violation.words)
    elif full_trace:
        outcome.lines = list(world.trace.lines())
    outcome.events, outcome.callbacks = len(world.trace), world.loop.callbacks
    outcome.dispatched = len(world.servers.broker.committed)
    return outcome


def run_seeds(start: int, count: int, workers: int = 1, full_trace: bool = False) -> Iterator[Outcome]:
    """One outcome a seed, in their order, from so many processes at once."""
    seeds = range(start, start + count)
    if workers == 1 or count == 1:
        yield from (run_seed(seed, full_trace) for seed in seeds)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        yield from pool.imap(partial(run_seed, full_trace=full_trace), seeds, chunksize=SEEDS_PER_CHUNK)


def _run(world: World) -> None:
    chaos_s = world.mix.chaos_s
    faults, invariants = Faults(world, chaos_s), world.invariants
    faults.begin()
    for node in world.nodes:
        world.loop.after(world.shape.uniform(0, 0.3), node.start)
    world.clients.begin()

    def broken() -> bool:
        if world.loop.failures and invariants.violation is None:
            error = world.loop.failures[0]
            world.trace.note("!!", "".join(traceback.format_exception(error)))
            invariants.fail("simulation", repr(error))
        return invariants.violation is not None

    try:
        world.loop.run(chaos_s, broken)
        faults.heal()
        while not broken() and not world.settled() and world.loop.time() < _deadline_s(world):
            world.loop.run(world.loop.time() + LOOK_S, broken)
            invariants.in_time(world.time.at_ms(chaos_s), HEALED_S_MAX * 1000)
        if not broken():
            invariants.at_the_end()
            for ref in world.undelivered():
                invariants.fail("I1", f"{invariants.name_of(ref)} was never acknowledged by a worker")
    except Stuck as stuck:
        invariants.fail("alive", str(stuck))
    finally:
        failpoints.install(None)


def _deadline_s(world: World) -> float:
    return max(world.mix.chaos_s, world.last_due_s()) + 2 * HEALED_S_MAX


@contextmanager
def _no_chance(seed: int) -> Iterator[None]:
    """All randomness that the code takes from elsewhere comes from the seed, too."""
    rng = random.Random(~seed)
    urandom, system = os.urandom, random._urandom  # type: ignore[attr-defined]
    state = random.getstate()
    os.urandom = random._urandom = rng.randbytes  # type: ignore[attr-defined]
    random.seed(seed)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # dead processes leave coroutines that nobody awaits
            yield
    finally:
        gc.enable()
        os.urandom, random._urandom = urandom, system  # type: ignore[attr-defined]
        random.setstate(state)


@contextmanager
def _listening(trace: Trace, world: World) -> Iterator[None]:
    """What the code logs goes into the trace; an exception that it did not expect is a violation."""

    def take(_: Any, level: str, event: structlog.typing.EventDict) -> Any:
        process = CURRENT.get()
        text = " ".join(f"{key}={value}" for key, value in sorted(event.items()) if key not in ("event", "recurring"))
        trace.note(process.name if process else "-", f"{event['event']} {text}")
        if event.get("exc_info"):
            error = sys.exc_info()[1]
            world.invariants.fail("alive", f"{process} has logged {error!r}", process.name if process else "-")
        raise structlog.DropEvent

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            process = CURRENT.get()
            trace.note(process.name if process else "-", record.getMessage())
            if record.exc_info and record.exc_info[1] is not None:
                error = record.exc_info[1]
                world.invariants.fail("alive", f"{process} has logged {error!r}", process.name if process else "-")

    handler = Handler(logging.WARNING)
    product = logging.getLogger("bucketsched")
    was = structlog.get_config()
    structlog.configure(processors=[take], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    product.addHandler(handler)
    propagates, product.propagate = product.propagate, False
    try:
        yield
    finally:
        structlog.configure(**was)
        product.removeHandler(handler)
        product.propagate = propagates
