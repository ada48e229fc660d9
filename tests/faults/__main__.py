"""The command: python -m tests.faults --help."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shlex
import signal
import sys
from pathlib import Path

import uvloop
from bench.processes import ChildFailed
from tools.stack import StackError

from .run import Order, judge, perform, say, servers, show
from .scenarios import SCENARIOS
from .schedule import GAP_S_MEAN

BROKERS_MEMORY_MIB = 7_000
"""Three brokers rather than one where so much memory is to be had."""


def brokers() -> int:
    """How many there is room for."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 3 if int(line.split()[1]) // 1024 >= BROKERS_MEMORY_MIB else 1
    return 1


def scenarios() -> str:
    """For people."""
    return "; ".join(f"{name}: {scenario.about}" for name, scenario in SCENARIOS.items())


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Load, faults and a checker.")
    parser.add_argument("--scenario", choices=SCENARIOS, help="faults that are fixed: " + scenarios())
    parser.add_argument("--seconds", type=float, default=90, help="of load, faults among it (default: 90)")
    parser.add_argument("--seed", type=int, default=None, help="of load and faults (default: a new one)")
    parser.add_argument("--rate", type=float, default=100, help="tasks asked for in a second (default: 100)")
    parser.add_argument("--gap", type=float, default=GAP_S_MEAN, help="seconds from fault to fault, on average")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=None, help="default: as memory allows")
    parser.add_argument("--runs", type=int, default=1, help="so many, with the seeds that follow (default: 1)")
    parser.add_argument("--servers", type=Path, help="a folder of servers that run (tools.stack --fronted)")
    parser.add_argument("--check", type=Path, help="only look at the history that a run has left in this folder")
    parser.add_argument("--keep", action="store_true", help="keep the history of a clean run, too")
    return parser.parse_args()


async def work(orders: list[Order], folder: Path | None) -> int:
    """The exit code: 0 if nothing was found."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    clean = True
    async with servers(orders[0].brokers, folder) as stack:
        for order in orders:
            result = await perform(order, stack)
            show(result, order)
            clean &= result.clean
    return 0 if clean else 1


def orders_of(given: argparse.Namespace) -> list[Order]:
    """One for each seed."""
    first = random.randrange(1 << 31) if given.seed is None else given.seed
    scenario = SCENARIOS.get(given.scenario or "")
    count, keep = (
        given.brokers or (scenario and scenario.brokers) or brokers(),
        given.keep or bool(os.environ.get("KEEP")),
    )
    seconds, rate = (scenario.seconds, scenario.rate) if scenario else (given.seconds, given.rate)
    drawn = (f"--seconds={seconds:g}", f"--rate={rate:g}", f"--gap={given.gap:g}")
    what = (f"--scenario={given.scenario}",) if scenario else drawn
    return [
        Order(
            seed,
            seconds,
            rate,
            count,
            shlex.join(("python", "-m", "tests.faults", f"--seed={seed}", *what, f"--brokers={count}")),
            keep,
            scenario,
            given.gap,
        )
        for seed in range(first, first + given.runs)
    ]


def main() -> int:
    """1: something was found; 2: the run could not be carried out."""
    given = arguments()
    if given.check:
        figures, violations = judge(given.check)
        for violation in violations:
            say(f"{violation.kind}: {violation.task_id} {violation.text}")
        print(json.dumps(figures))
        return 1 if violations else 0
    try:
        return uvloop.run(work(orders_of(given), given.servers))
    except (StackError, ChildFailed) as error:
        say(f"the run could not be carried out: {error}")
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
