"""A small cluster at work: `python -m bench.demo_cluster`, with BUCKETSCHED_CONFIG naming real servers.

Two api processes and two pollers, coordinators and a deliverer among them. 20 s of tasks at 200/s go in through the
client; in the middle one poller is killed with -9; a plain `read_committed` consumer in a process of its own writes
down what becomes visible when. The last line of stdout is a JSON object. Exit code 0: none lost, none twice, none
early, and the failover delayed no task by 5 s.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bucketsched import Client

from . import report
from .cluster import Cluster, Node, private_cluster
from .lateness import NS_PER_MS, Percentiles, first_lateness, percentiles
from .load import now_ms
from .processes import Children, run
from .progress import say
from .trial import Plan, Trial, attempt

RATE = 200
SECONDS = 20.0
FAILOVER_MS_MAX = 5_000
WINDOW_MS = FAILOVER_MS_MAX
"""What is due so long after the kill counts as the failover's."""


@dataclass(frozen=True, slots=True)
class Failover:
    """`max_ms`: the worst lateness of what was due, or still under way, from the kill on. `steady`: of all others."""

    max_ms: float
    steady: Percentiles


def failover(trial: Trial, killed_ns: int) -> Failover:
    """Tells the tasks that the kill concerned from the others."""
    due_ms, worst, steady = trial.creation.due_ms, 0.0, []
    for arrival, late_ms in first_lateness(due_ms, trial.arrivals):
        due_after_ms = due_ms[arrival.task_id] - killed_ns / NS_PER_MS
        if due_after_ms >= 0 or arrival.at_ns >= killed_ns:
            worst = max(worst, late_ms)
        if arrival.at_ns < killed_ns or due_after_ms > WINDOW_MS:
            steady.append(late_ms)
    return Failover(round(worst, 2), percentiles(steady))


async def demo() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="bucketsched-demo-") as folder:
        async with Children(Path(folder)) as children, private_cluster(children) as cluster:
            trial, killed_ns = await _run(cluster)
    found = failover(trial, killed_ns)
    _show(trial, found)
    if found.max_ms >= FAILOVER_MS_MAX:
        say(f"failed: a task was {found.max_ms:,.0f} ms late after the kill, the limit is {FAILOVER_MS_MAX:,.0f} ms")
    return 0 if trial.passed and found.max_ms < FAILOVER_MS_MAX else 1


async def _run(cluster: Cluster) -> tuple[Trial, int]:
    victim = await cluster.node("poller-1", "poller", "coordinator")
    other, *apis = await asyncio.gather(
        cluster.node("poller-2", "poller", "coordinator"),
        cluster.node("api-1", "api", "deliver"),
        cluster.node("api-2", "api"),
    )
    async with Client(",".join(api.address for api in apis)) as client:
        await cluster.create_queue(client)
        recording = await cluster.recorder()
        try:
            owned = await cluster.balanced(victim, other)
            await cluster.warm_up(client, recording)
            plan = Plan.soon(int(RATE * SECONDS), SECONDS)
            killing = asyncio.create_task(_kill(victim, plan, owned[victim.child.pid]))
            trial = await attempt(client, cluster.queue, recording, plan)
            return trial, await killing
        finally:
            await recording.close()


async def _kill(victim: Node, plan: Plan, owned: int) -> int:
    """Kills it in the middle of the load; when that was, in nanoseconds."""
    await asyncio.sleep(plan.start_ms / 1000 + plan.seconds / 2 - now_ms() / 1000)
    killed_ns = time.time_ns()
    await victim.child.kill()
    say(f"killed {victim.child.name} (pid {victim.child.pid}), the owner of {owned} ranges")
    return killed_ns


def _show(trial: Trial, found: Failover) -> None:
    rows = [
        *report.rows(trial),
        ("failover: the worst lateness since the kill (ms)", found.max_ms),
        *report.lateness("outside the failover", found.steady),
    ]
    report.table("cluster mode, measured at a read_committed consumer", rows, sys.stdout)
    report.json_line({**report.outcome("cluster", trial), "failover_max_ms": found.max_ms}, sys.stdout)


if __name__ == "__main__":
    sys.exit(run(demo()))
