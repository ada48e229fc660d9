"""Dispatch of a loaded bucket, beside bare transactions of the same messages, both read by the same consumer."""

from __future__ import annotations

from typing import Any

from . import ingest
from .cluster import Cluster, Node
from .lateness import NS_PER_MS
from .load import now_ms
from .processes import Child, ChildFailed
from .progress import say
from .recording import Recording
from .result import Result, median

ROUNDS = 3
TASKS = 20_000
TRANSACTIONS, RECORDS = 30, 1_000
WARM_UP_TRANSACTIONS = 5
LOADED_MS_MIN = 1_000
"""So long before the instant all tasks must have been created."""
ARRIVAL_S_MAX = 60.0
ROUND_S_MAX = 60.0
RATIO_MIN = 0.15
INGEST_RATIO_MIN = 1.5


async def measure(cluster: Cluster, poller: Node, client: Child, recording: Recording, far: Result) -> list[Result]:
    """Creates within the horizon, which is the near ingest, and what became of them at their instant.

    `far`: the ingest far ahead, of which the pace is guessed and the bare driver's rate is known.
    """
    pace, near, ours, cpu_ms = far.figures["tasks_per_s"] / 2, [], [], []
    raw = await _raw(cluster, recording)
    for turn in range(ROUNDS):
        due_ms, rate = await _load(client, pace)
        cpu_began_s = poller.child.cpu_s()
        near.append(rate)
        ours.append(await _dispatched(recording, due_ms))
        cpu_ms.append((poller.child.cpu_s() - cpu_began_s) / TASKS * 1000)
        say(f"dispatch, round {turn + 1}: {ours[-1]:,.0f}/s; created near at {rate:,.0f}/s")
    figures = {
        "tasks_per_s": median(ours),
        "raw_records_per_s": raw["produced"],
        "raw_visible_per_s": raw["visible"],
        "rounds": [round(rate) for rate in ours],
        "poller_cpu_ms": median(cpu_ms, 3),
        "raw_cpu_ms": raw["cpu_ms"],
    }
    ratio = round(median(ours) / raw["produced"], 3)
    return [_near(near, far), Result("dispatch of a loaded bucket", "ratio", ratio, RATIO_MIN, figures=figures)]


def _near(rates: list[float], far: Result) -> Result:
    raw_rate = far.figures["raw_rows_per_s"]
    figures = {
        "tasks_per_s": median(rates),
        "raw_rows_per_s": raw_rate,
        "rounds": [round(rate) for rate in rates],
    }
    ratio = round(median(rates) / raw_rate, 2)
    return Result("ingest, due within the horizon", "ratio", ratio, INGEST_RATIO_MIN, figures=figures)


async def _load(client: Child, pace: float) -> tuple[dict[str, int], float]:
    """Tasks due at one instant, created before it; and at which rate that went."""
    for stretch in (1, 2, 4):
        instant_ms = now_ms() + int(TASKS / pace * 1000 * stretch) + 2 * LOADED_MS_MIN
        answer = await ingest.create(client, TASKS, instant_ms, 1, ids=True)
        if now_ms() < instant_ms - LOADED_MS_MIN:
            return answer["due_ms"], TASKS / answer["seconds"]
        say("creating took longer than foreseen; once more, with more time")
    raise ChildFailed("the tasks of one instant could not be created before it")


async def _dispatched(recording: Recording, due_ms: dict[str, int]) -> float:
    """Tasks a second, from their instant until the last is visible."""
    instant_ms = max(due_ms.values())
    wait_s = (instant_ms - now_ms()) / 1000
    if not await recording.all_of(due_ms, wait_s + ARRIVAL_S_MAX):
        raise ChildFailed(f"{recording.missing(due_ms)} of {len(due_ms)} tasks did not come")
    last_ns = max(arrival.at_ns for arrival in recording.arrivals if arrival.task_id in due_ms)
    recording.forget()
    return len(due_ms) / (last_ns / NS_PER_MS - instant_ms) * 1000


async def _raw(cluster: Cluster, recording: Recording) -> dict[str, Any]:
    """Rates as the producer has them, and as the consumer sees them."""
    bootstrap = cluster.settings.kafka.bootstrap
    raw = await cluster.start("raw-transactions", "bench.raw_transactions", bootstrap, cluster.queue, cluster.topic)
    await raw.line(ROUND_S_MAX)
    await raw.ask({"transactions": WARM_UP_TRANSACTIONS, "records": RECORDS}, ROUND_S_MAX)
    produced, visible, cpu_ms, count = [], [], [], TRANSACTIONS * RECORDS
    await recording.quiet()
    for turn in range(ROUNDS):
        recording.forget()
        answer = await raw.ask({"transactions": TRANSACTIONS, "records": RECORDS}, ROUND_S_MAX)
        await recording.quiet()
        if recording.count != count:
            raise ChildFailed(f"{recording.count} of {count} records of bare transactions came")
        last_ns = max(arrival.at_ns for arrival in recording.arrivals)
        produced.append(count / answer["seconds"])
        visible.append(count / (last_ns - answer["began_ns"]) * 1e9)
        cpu_ms.append(answer["cpu_s"] / count * 1000)
        say(f"bare transactions, round {turn + 1}: {produced[-1]:,.0f}/s, visible {visible[-1]:,.0f}/s")
    recording.forget()
    await cluster.end(raw)
    return {"produced": median(produced), "visible": median(visible), "cpu_ms": median(cpu_ms, 3)}
