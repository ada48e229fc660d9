"""Ingest by `Client` beside single inserts by the bare driver: rounds of both in turns, medians of the rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .cluster import Cluster, Node
from .load import now_ms
from .processes import Child, ChildFailed
from .progress import say
from .result import Result, median, median_ratio

ROUNDS = 3
CREATED = 20_000
INSERTED = 8_000
WARM_UP = 3_000
AHEAD_MS = 3_600_000
SPAN_MS = 600_000
"""Due in about an hour, over ten minutes: some 2,600 partitions."""
ROUND_S_MAX = 90.0
READY_S_MAX = 30.0
RATIO_MIN = 1.5


@dataclass(slots=True)
class Rounds:
    """Rates and processor time per task of one side."""

    rates: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    api_cpu_ms: list[float] = field(default_factory=list)


async def creator(cluster: Cluster, api: Node) -> Child:
    """A client in a process of its own."""
    child = await cluster.start("creator", "bench.creator", api.address, cluster.queue)
    await child.line(READY_S_MAX)
    return child


async def create(child: Child, count: int, from_ms: int, span_ms: int, ids: bool = False) -> Any:
    """One round of creates; its answer. Raises ChildFailed also where some were not acknowledged."""
    command = {"count": count, "from_ms": from_ms, "span_ms": span_ms, "ids": ids}
    answer = await child.ask(command, ROUND_S_MAX)
    if answer["created"] != count:
        raise ChildFailed(f"only {answer['created']} of {count} tasks were created: {answer['errors']}")
    return answer


async def measure(cluster: Cluster, api: Node, client: Child) -> Result:
    """Far ahead, so that nobody needs to be told of the tasks."""
    raw = await cluster.start("raw-rows", "bench.raw_rows", cluster.queue)
    await raw.line(READY_S_MAX)
    ours, theirs = Rounds(), Rounds()
    await _create_round(client, api, WARM_UP)
    await _insert_round(raw, WARM_UP)
    for turn in range(ROUNDS):
        _add(ours, *await _create_round(client, api, CREATED))
        _add(theirs, *await _insert_round(raw, INSERTED))
        say(f"ingest, round {turn + 1}: {ours.rates[-1]:,.0f}/s, the bare driver {theirs.rates[-1]:,.0f}/s")
    await cluster.end(raw)
    return _result(ours, theirs)


def _add(rounds: Rounds, rate: float, cpu_ms: float, api_cpu_ms: float) -> None:
    rounds.rates.append(rate)
    rounds.cpu_ms.append(cpu_ms)
    rounds.api_cpu_ms.append(api_cpu_ms)


async def _create_round(client: Child, api: Node, count: int) -> tuple[float, float, float]:
    before_s = api.child.cpu_s()
    answer = await create(client, count, now_ms() + AHEAD_MS, SPAN_MS)
    api_cpu_ms = (api.child.cpu_s() - before_s) / count * 1000
    return count / answer["seconds"], answer["cpu_s"] / count * 1000, api_cpu_ms


async def _insert_round(raw: Child, count: int) -> tuple[float, float, float]:
    answer = await raw.ask({"count": count, "from_ms": now_ms() + AHEAD_MS, "span_ms": SPAN_MS}, ROUND_S_MAX)
    return count / answer["seconds"], answer["cpu_s"] / count * 1000, 0.0


def _result(ours: Rounds, theirs: Rounds) -> Result:
    figures = {
        "tasks_per_s": median(ours.rates),
        "raw_rows_per_s": median(theirs.rates),
        "rounds": [[round(a), round(b)] for a, b in zip(ours.rates, theirs.rates, strict=True)],
        "client_cpu_ms": median(ours.cpu_ms, 3),
        "api_cpu_ms": median(ours.api_cpu_ms, 3),
        "raw_cpu_ms": median(theirs.cpu_ms, 3),
    }
    ratio = median_ratio(ours.rates, theirs.rates)
    return Result("ingest, due in an hour", "ratio", ratio, RATIO_MIN, figures=figures)
