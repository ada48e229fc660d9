"""What a rolling restart costs: `python -m bench.rolling_restart`, with BUCKETSCHED_CONFIG naming real servers.

Pollers are told to end (SIGTERM) and started again one after the other, each when the one before has its share, while
tasks at 500/s fall due. `--surge`: the new process joins before the old one is told to end. The last line of stdout is
a JSON object with the lateness of what fell due before the restarts and during them. Exit code 0: none lost, none
twice, none early, and the restarts added less than 250 ms at p99.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from bucketsched import Client

from . import report
from .cluster import Cluster, Node, private_cluster
from .lateness import Percentiles, first_lateness, percentiles
from .load import now_ms
from .processes import ChildFailed, Children, run
from .progress import say
from .trial import Plan, Trial, attempt

RATE = 500
BEFORE_S = 12.0
RESTART_S_MAX = 30.0
"""For one process: so much load is foreseen."""
AFTER_S = 2.0
ADDED_MS_MAX = 250.0


@dataclass(frozen=True, slots=True)
class Window:
    """When the restarts took place, in milliseconds since the Unix epoch; and how long each hand-over took."""

    begin_ms: int
    end_ms: int
    stops_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Lateness of what fell due before the first restart began, and from there until the last one had settled."""

    before: Percentiles
    during: Percentiles

    @property
    def added_ms(self) -> float:
        """At p99."""
        return round(self.during.p99 - self.before.p99, 2)


def cost(trial: Trial, window: Window) -> Cost:
    """Tells the tasks that the restarts concern from those before."""
    due_ms = trial.creation.due_ms
    late = [(due_ms[arrival.task_id], late_ms) for arrival, late_ms in first_lateness(due_ms, trial.arrivals)]
    before = [late_ms for due, late_ms in late if due < window.begin_ms]
    during = [late_ms for due, late_ms in late if window.begin_ms <= due < window.end_ms]
    return Cost(percentiles(before), percentiles(during))


async def measure(pollers: int, rate: int, surge: bool) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="bucketsched-bench-") as folder:
        async with Children(Path(folder)) as children, private_cluster(children) as cluster:
            trial, window = await _run(cluster, pollers, rate, surge)
    found = cost(trial, window)
    _show(trial, found, window, surge)
    return 0 if trial.passed and found.added_ms < ADDED_MS_MAX else 1


async def _run(cluster: Cluster, count: int, rate: int, surge: bool) -> tuple[Trial, Window]:
    api = await cluster.node("api", "api", "coordinator")
    pollers = [await cluster.node(f"poller-{n}", "poller") for n in range(count)]
    async with Client(api.address) as client:
        await cluster.create_queue(client)
        recording = await cluster.recorder()
        try:
            await cluster.balanced(*pollers)
            await cluster.warm_up(client, recording)
            seconds = BEFORE_S + count * RESTART_S_MAX + AFTER_S
            plan = Plan.soon(int(rate * seconds), seconds)
            restarting = asyncio.create_task(_restart_all(cluster, pollers, plan, surge))
            trial = await attempt(client, cluster.queue, recording, plan)
            return trial, await restarting
        finally:
            await recording.close()


async def _restart_all(cluster: Cluster, pollers: list[Node], plan: Plan, surge: bool) -> Window:
    """Raises ChildFailed where it takes longer than the load lasts: nothing would be measured."""
    await asyncio.sleep(plan.start_ms / 1000 + BEFORE_S - now_ms() / 1000)
    begin_ms, stops = now_ms(), []
    for n, old in enumerate(list(pollers)):
        if surge:
            pollers.append(await cluster.node(f"poller-{n}-again", "poller"))
            await cluster.balanced(*pollers)
        pollers.remove(old)
        stop_ms = now_ms()
        await cluster.end(old.child)
        stops.append((now_ms() - stop_ms) / 1000)
        say(f"{old.child.name} has ended after {stops[-1]:.2f} s")
        if not surge:
            pollers.append(await cluster.node(f"poller-{n}-again", "poller"))
        await cluster.balanced(*pollers)
        await asyncio.sleep(AFTER_S)
    if now_ms() > plan.start_ms + plan.seconds * 1000:
        raise ChildFailed("the restarts took longer than the load")
    return Window(begin_ms, now_ms(), tuple(stops))


def _show(trial: Trial, found: Cost, window: Window, surge: bool) -> None:
    rows = [
        *report.rows(trial),
        *report.lateness("before the restarts", found.before),
        *report.lateness("during the restarts", found.during),
        ("added at p99 (ms)", found.added_ms),
        ("the restarts took (s)", (window.end_ms - window.begin_ms) / 1000),
        ("a process took to hand over and end (s)", ", ".join(f"{s:.2f}" for s in window.stops_s)),
    ]
    report.table("a rolling restart, measured at a read_committed consumer", rows, sys.stdout)
    line = {
        **report.outcome("rolling restart" + (", surge" if surge else ""), trial),
        "before_ms": asdict(found.before),
        "during_ms": asdict(found.during),
        "added_p99_ms": found.added_ms,
        "restarts_s": round((window.end_ms - window.begin_ms) / 1000, 2),
        "stops_s": window.stops_s,
    }
    report.json_line(line, sys.stdout)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rolling_restart")
    parser.add_argument("--pollers", type=int, default=3, choices=range(2, 6))
    parser.add_argument("--rate", type=int, default=RATE, help="tasks a second")
    parser.add_argument("--surge", action="store_true", help="start the new process before the old one is told to end")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(run(measure(given.pollers, given.rate, given.surge)))
