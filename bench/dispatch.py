"""Dispatch of a loaded bucket, beside bare transactions of the same messages, both read by the same consumer.

A round of the one follows a round of the other, so that both have the machine in the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import ingest
from .cluster import Cluster, Node
from .lateness import NS_PER_MS
from .load import now_ms
from .processes import Child, ChildFailed
from .progress import say
from .recording import Recording
from .result import Result, median, median_ratio

ROUNDS = 3
TASKS = 20_000
TRANSACTIONS, RECORDS = 30, 1_000
WARM_UP_TRANSACTIONS = 5
LOADED_MS_MIN = 1_000
"""So long before the instant all tasks must have been created."""
ARRIVAL_S_MAX = 60.0
ROUND_S_MAX = 60.0
RATIO_MIN = 0.15


@dataclass(slots=True)
class Rounds:
    """Rates a second; `near`: of the creates whose tasks are dispatched then."""

    near: list[float] = field(default_factory=list)
    dispatched: list[float] = field(default_factory=list)
    produced: list[float] = field(default_factory=list)
    visible: list[float] = field(default_factory=list)
    poller_cpu_ms: list[float] = field(default_factory=list)
    raw_cpu_ms: list[float] = field(default_factory=list)


async def measure(cluster: Cluster, poller: Node, client: Child, recording: Recording, far: Result) -> list[Result]:
    """Creates within the horizon, which is the near ingest, and what became of them at their instant.

    `far`: the ingest far ahead, of which the pace is guessed and the bare driver's rate is known.
    """
    raw, rounds = await _raw(cluster), Rounds()
    for turn in range(ROUNDS):
        await _bare_round(raw, recording, rounds)
        due_ms, near = await _load(client, far.figures["tasks_per_s"] / 2)
        cpu_began_s = poller.child.cpu_s()
        rounds.near.append(near)
        rounds.dispatched.append(await _dispatched(recording, due_ms))
        rounds.poller_cpu_ms.append((poller.child.cpu_s() - cpu_began_s) / TASKS * 1000)
        bare = f"bare transactions {rounds.produced[-1]:,.0f}/s"
        say(f"dispatch, round {turn + 1}: {rounds.dispatched[-1]:,.0f}/s, {bare}, creates before {near:,.0f}/s")
    await cluster.end(raw)
    return [_near(rounds, far), _dispatch(rounds)]


def _near(rounds: Rounds, far: Result) -> Result:
    rate, raw_rate = median(rounds.near), far.figures["raw_rows_per_s"]
    figures = {"tasks_per_s": rate, "raw_rows_per_s": raw_rate, "rounds": [round(rate) for rate in rounds.near]}
    ratio = round(rate / raw_rate, 2)
    return Result("ingest, due within the horizon", "ratio", ratio, ingest.RATIO_MIN, figures=figures)


def _dispatch(rounds: Rounds) -> Result:
    figures = {
        "tasks_per_s": median(rounds.dispatched),
        "raw_records_per_s": median(rounds.produced),
        "raw_visible_per_s": median(rounds.visible),
        "rounds": [[round(a), round(b)] for a, b in zip(rounds.dispatched, rounds.produced, strict=True)],
        "poller_cpu_ms": median(rounds.poller_cpu_ms, 3),
        "raw_cpu_ms": median(rounds.raw_cpu_ms, 3),
    }
    ratio = median_ratio(rounds.dispatched, rounds.produced)
    return Result("dispatch of a loaded bucket", "ratio", ratio, RATIO_MIN, figures=figures)


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


async def _raw(cluster: Cluster) -> Child:
    """A bare producer, warmed up."""
    bootstrap = cluster.settings.kafka.bootstrap
    raw = await cluster.start("raw-transactions", "bench.raw_transactions", bootstrap, cluster.queue, cluster.topic)
    await raw.line(ROUND_S_MAX)
    await raw.ask({"transactions": WARM_UP_TRANSACTIONS, "records": RECORDS}, ROUND_S_MAX)
    return raw


async def _bare_round(raw: Child, recording: Recording, rounds: Rounds) -> None:
    """Rates as the producer has them, and as the consumer sees them."""
    count = TRANSACTIONS * RECORDS
    await recording.quiet()
    recording.forget()
    answer = await raw.ask({"transactions": TRANSACTIONS, "records": RECORDS}, ROUND_S_MAX)
    await recording.quiet()
    if recording.count != count:
        raise ChildFailed(f"{recording.count} of {count} records of bare transactions came")
    last_ns = max(arrival.at_ns for arrival in recording.arrivals)
    recording.forget()
    rounds.produced.append(count / answer["seconds"])
    rounds.visible.append(count / (last_ns - answer["began_ns"]) * 1e9)
    rounds.raw_cpu_ms.append(answer["cpu_s"] / count * 1000)
