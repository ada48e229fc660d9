"""A short measurement: `python -m bench.quick [--strict]`, with BUCKETSCHED_CONFIG naming servers; under 5 minutes.

JSON lines go to stdout, one for each thing that was measured, with its target and whether that was reached; a table
goes to stderr. Everything is in one run, so that ratios mean something. Exit code 0 if it ran; with --strict only if
every target was reached.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bucketsched import Client

from . import dispatch, embedded, ingest, report
from .cluster import Cluster, private_cluster
from .processes import Children, run
from .progress import say
from .recording import Recording
from .result import Result
from .trial import Plan, Trial, attempt

RATE = 200
CLUSTER_S, EMBEDDED_S = 30.0, 15.0
WARM_UP_S = 8.0
BUSY_LOAD = 0.7
"""Load for each processor beyond which lateness says more of the machine than of the scheduler."""
CLUSTER_P99_MS, EMBEDDED_P99_MS = 40.0, 15.0


async def quick(strict: bool) -> int:
    """The exit code."""
    results: list[Result] = []
    _warn_if_busy()
    with tempfile.TemporaryDirectory(prefix="bucketsched-bench-") as name:
        folder = Path(name)
        async with Children(folder) as children:
            async with private_cluster(children) as cluster:
                await _measure_cluster(cluster, results)
            async with embedded.embedded(children, folder / "data") as (client, recording):
                plan = Plan.soon(int(RATE * EMBEDDED_S), EMBEDDED_S)
                trial = await attempt(client, embedded.QUEUE, recording, plan)
                _note(results, _lateness("lateness at 200/s, embedded, at the worker", trial, EMBEDDED_P99_MS))
    _show(results)
    return 0 if not strict or all(result.reached for result in results) else 1


def _warn_if_busy() -> None:
    load, processors = os.getloadavg()[0], os.cpu_count() or 1
    if load > processors * BUSY_LOAD:
        say(f"others keep this machine busy (load {load:.1f}, {processors} processors): the figures suffer from it")


async def _measure_cluster(cluster: Cluster, results: list[Result]) -> None:
    poller = await cluster.node("poller", "poller", "coordinator")
    api = await cluster.node("api", "api")
    async with Client(api.address) as client:
        await cluster.create_queue(client)
        recording = await cluster.recorder()
        try:
            await cluster.balanced(poller)
            await cluster.warm_up(client, recording)
            # Lateness first: the servers go on flushing and compacting for a while after the load of the rates.
            await attempt(client, cluster.queue, recording, Plan.soon(int(RATE * WARM_UP_S), WARM_UP_S))
            _note(results, await _cluster_lateness(cluster, client, recording))
            creator = await ingest.creator(cluster, api)
            far = await ingest.measure(cluster, api, creator)
            _note(results, far)
            _note(results, *await dispatch.measure(cluster, poller, creator, recording, far))
            await cluster.end(creator)
        finally:
            await recording.close()


async def _cluster_lateness(cluster: Cluster, client: Client, recording: Recording) -> Result:
    trial = await attempt(client, cluster.queue, recording, Plan.soon(int(RATE * CLUSTER_S), CLUSTER_S))
    return _lateness("lateness at 200/s, cluster, at a read_committed consumer", trial, CLUSTER_P99_MS)


def _lateness(measure: str, trial: Trial, p99_ms: float) -> Result:
    outcome = report.outcome("", trial)
    figures = {name: outcome[name] for name in ("tasks", "lost", "duplicate", "early", "p50_ms", "max_ms")}
    figures["p95_ms"] = trial.verdict.lateness.p95
    return Result(measure, "p99_ms", outcome["p99_ms"], p99_ms, at_most=True, sound=trial.passed, figures=figures)


def _note(results: list[Result], *found: Result) -> None:
    for result in found:
        results.append(result)
        report.json_line(result.line(), sys.stdout)


def _show(results: list[Result]) -> None:
    rows = [
        (
            result.measure,
            f"{result.value_name} {result.value:g} {'' if result.reached else 'MISSED '}({result.target_text})",
        )
        for result in results
    ]
    report.table("measured in one run", rows, sys.stderr)
    say("done")


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.quick", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target was missed")
    return run(quick(parser.parse_args().strict))


if __name__ == "__main__":
    sys.exit(main())
