"""What a death costs: `python -m bench.failover`, with BUCKETSCHED_CONFIG naming real servers.

Two pollers share the ranges while tasks at 500/s fall due. One of them is killed with -9 (in turn the elected
coordinator and the other one), replaced some seconds later, and so on. For each kill: the worst lateness of what was
due or under way from the kill on until it was replaced, and when, after the kill, each step of the takeover was done.
`--pause`: it is stopped (SIGSTOP) instead, for longer than its session lives, and goes on then.

The last line of stdout is a JSON object. Exit code 0: none lost, none twice, none early, and no kill delayed any task
by more than a second (a pause: 3 s).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bucketsched import Client
from bucketsched.poller.takings import STEPS as TAKING

from . import report
from .cluster import Cluster, Node, private_cluster
from .lateness import NS_PER_MS, first_lateness, percentiles
from .load import now_ms
from .processes import Children, run
from .progress import say
from .trial import Plan, Trial, attempt

RATE = 500
KILLS = 10
BEFORE_S, AFTER_S = 6.0, 5.0
WATCHED_S = 4.0
"""How long after a kill its victim is not replaced: what a hand-over costs is another matter."""
CYCLE_S_MAX = 16.0
"""From one kill to the next: so much load is foreseen."""
LATE_MS = 100.0
KILLED_MS_MAX, PAUSED_MS_MAX = 1_000.0, 3_000.0
STEPS = {
    "a process is dead": "dead",
    "a dead process was evicted": "evicted",
    "planned": "planned",
    "range taken": "taken",
    "ranges taken": "loaded",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """One death. `steps`: milliseconds from the kill to the last of each step's events in the survivor's log."""

    owned: int
    worst_ms: float
    late: int
    """Tasks that came more than LATE_MS after their due time."""
    steps: dict[str, float]
    within: dict[str, float]
    """The longest that each step of taking one of the ranges took, in milliseconds, see poller.takings."""


async def measure(kills: int, rate: int, pause: bool, logs: Path | None) -> int:
    """The exit code. `logs`: where the logs of the processes are left."""
    os.environ |= {"BUCKETSCHED_LOG__FORMAT": "json", "BUCKETSCHED_LOG__LEVEL": "debug"}
    with tempfile.TemporaryDirectory(prefix="bucketsched-bench-") as name:
        folder = logs or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        async with Children(folder) as children, private_cluster(children) as cluster:
            trial, killed = await _run(cluster, kills, rate, pause)
        found = [cost_of(trial, at_ns, owned, *_steps(folder, at_ns)) for at_ns, owned in killed]
    _show(trial, found, pause)
    limit_ms = PAUSED_MS_MAX if pause else KILLED_MS_MAX
    return 0 if trial.passed and len(found) == kills and all(kill.worst_ms <= limit_ms for kill in found) else 1


async def _run(cluster: Cluster, kills: int, rate: int, pause: bool) -> tuple[Trial, list[tuple[int, int]]]:
    api = await cluster.node("api", "api")
    pollers = [await cluster.node(f"poller-{n}", "poller", "coordinator") for n in range(2)]
    async with Client(api.address) as client:
        await cluster.create_queue(client)
        recording = await cluster.recorder()
        try:
            await cluster.balanced(*pollers)
            await cluster.warm_up(client, recording)
            seconds = BEFORE_S + kills * CYCLE_S_MAX
            plan = Plan.soon(int(rate * seconds), seconds)
            killing = asyncio.create_task(_kill_all(cluster, pollers, kills, plan, pause))
            trial = await attempt(client, cluster.queue, recording, plan)
            return trial, await killing
        finally:
            await recording.close()


async def _kill_all(
    cluster: Cluster, pollers: list[Node], kills: int, plan: Plan, pause: bool
) -> list[tuple[int, int]]:
    """When each kill was, and how many ranges the victim had."""
    await asyncio.sleep(plan.start_ms / 1000 + BEFORE_S - now_ms() / 1000)
    killed: list[tuple[int, int]] = []
    for n in range(kills):
        if now_ms() > plan.start_ms + (plan.seconds - WATCHED_S - AFTER_S) * 1000:
            say("the load is about to end: the other kills would show nothing")
            break
        victim = pollers.pop(n % 2)  # the older one is the elected coordinator
        owned = (await cluster.balanced(victim, *pollers))[victim.child.pid]
        at_ns = time.time_ns()
        if pause:
            os.kill(victim.child.pid, signal.SIGSTOP)
        else:
            await victim.child.kill()
        killed.append((at_ns, owned))
        say(f"{'paused' if pause else 'killed'} {victim.child.name}, the owner of {owned} ranges")
        await asyncio.sleep(WATCHED_S)
        if pause:
            os.kill(victim.child.pid, signal.SIGCONT)
        pollers.append(victim if pause else await cluster.node(f"poller-{n + 2}", "poller", "coordinator"))
        await cluster.balanced(*pollers)
        await asyncio.sleep(AFTER_S)
    return killed


def cost_of(trial: Trial, at_ns: int, owned: int, steps: dict[str, float], within: dict[str, float]) -> Kill:
    """What was due, or still under way, from the kill on."""
    due_ms, late = trial.creation.due_ms, []
    for arrival, late_ms in first_lateness(due_ms, trial.arrivals):
        due_s = (due_ms[arrival.task_id] - at_ns / NS_PER_MS) / 1000
        if due_s <= WATCHED_S and (due_s >= 0 or arrival.at_ns >= at_ns):
            late.append(late_ms)
    return Kill(owned, percentiles(late).max, sum(late_ms > LATE_MS for late_ms in late), steps, within)


def _steps(folder: Path, at_ns: int) -> tuple[dict[str, float], dict[str, float]]:
    """Of the time until the replacement started: when the last of each step was, and how long each of a taking took."""
    steps: dict[str, float] = {}
    within: dict[str, float] = {}
    for path in folder.glob("poller-*.log"):
        for line in path.read_text(errors="replace").splitlines():
            name = next((name for event, name in STEPS.items() if f'"{event}"' in line), None)
            if name is None:
                continue
            entry = json.loads(line)
            told = datetime.fromisoformat(entry["timestamp"]).timestamp() * 1000 - at_ns / NS_PER_MS
            if 0 <= told <= WATCHED_S * 1000:
                steps[name] = round(max(told, steps.get(name, 0)), 1)
                taken = {step: entry[f"{step}_ms"] for step in TAKING if f"{step}_ms" in entry}
                within |= {step: max(ms, within.get(step, 0)) for step, ms in taken.items()}
    return steps, within


def _show(trial: Trial, found: Sequence[Kill], pause: bool) -> None:
    rows = report.rows(trial)
    for n, kill in enumerate(found):
        steps = ", ".join(f"{name} {kill.steps[name]:.0f}" for name in STEPS.values() if name in kill.steps)
        within = ", ".join(f"{step} {ms:.0f}" for step, ms in kill.within.items())
        what = f"{kill.worst_ms:.0f}, {kill.late} tasks above {LATE_MS:.0f}; after ms: {steps}; of that: {within}"
        rows.append((f"{'pause' if pause else 'kill'} {n + 1}, {kill.owned} ranges: worst (ms)", what))
    report.table("takeovers, measured at a read_committed consumer", rows, sys.stdout)
    worst = percentiles(kill.worst_ms for kill in found)
    line = {
        **report.outcome("pause" if pause else "failover", trial),
        "kills": len(found),
        "worst_ms": [round(kill.worst_ms) for kill in found],
        "worst_p50_ms": worst.p50,
        "worst_max_ms": worst.max,
        "after_ms": [kill.steps for kill in found],
        "steps_ms": [kill.within for kill in found],
    }
    report.json_line(line, sys.stdout)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.failover")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--rate", type=int, default=RATE, help="tasks a second")
    parser.add_argument("--pause", action="store_true", help="stop the process instead of killing it")
    parser.add_argument("--logs", type=Path, help="a folder in which the logs of the processes are left")
    return parser.parse_args()


if __name__ == "__main__":
    given = _arguments()
    sys.exit(run(measure(given.kills, given.rate, given.pause, given.logs)))
