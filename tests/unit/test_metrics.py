"""What a process shows of itself: names, values, and the endpoint."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tests.unit.lane_world import World

from bucketsched.adapters.metrics_http import MetricsServer
from bucketsched.app import metrics
from bucketsched.app.metrics import Metrics
from bucketsched.core.clock_discipline import ClockLimits, Discipline, Look
from bucketsched.core.errors import ConfigError
from bucketsched.core.histogram import Histogram
from bucketsched.core.task import FactKind
from bucketsched.poller.figures import LaneCounters, LaneState
from bucketsched.poller.owned_range import Phase

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


class Given(Collector):
    """Metrics as they are."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def shown(found: Iterable[Metric]) -> str:
    """As Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(Given(found))
    return generate_latest(registry).decode()


class Poller:
    """What `of_poller` reads."""

    def __init__(self, state: LaneState | None = None) -> None:
        self.counters = LaneCounters()
        self.lane = None if state is None else self
        self._state = state

    def state(self) -> LaneState | None:
        return self._state


class Tasks:
    """What `of_tasks` reads."""

    def __init__(self) -> None:
        self.created = Counter(created=7, refused=2, unavailable=1)
        self.hints_unanswered = 3


def everything() -> Metrics:
    """All sources, of a process that has done nothing."""
    found = Metrics("test")
    found.add(lambda: metrics.of_tasks(Tasks()))  # type: ignore[arg-type]
    found.add(lambda: metrics.of_poller(Poller()))  # type: ignore[arg-type]
    found.add(lambda: metrics.of_clock(Discipline(ClockLimits(), Look(0, 0))))
    return found


# ---------------------------------------------------------------- values


@given(st.lists(st.floats(0, 10_000), max_size=50), st.lists(st.floats(0, 100), min_size=1, unique=True))
def test_a_histogram_counts_what_is_at_most_each_bound(values: list[float], bounds: list[float]) -> None:
    one, batch = Histogram(sorted(bounds)), Histogram(sorted(bounds))
    for value in values:
        one.observe(value)
    batch.observe_all(values)
    expected = [(bound, sum(value <= bound for value in values)) for bound in (*sorted(bounds), float("inf"))]
    assert one.cumulative() == batch.cumulative() == expected
    assert one.count == len(values)
    assert batch.total == pytest.approx(sum(values))


def test_counters_and_state_are_shown_under_their_names() -> None:
    poller = Poller(
        LaneState(ranges=Counter(active=2, alarmed=1), heap_rows=11, ready_rows=12, oldest_undispatched_age_s=3.5)
    )
    poller.counters.dispatched([1_000, 1_990], at_ms=2_000)
    poller.counters.settled[FactKind.DISPATCHED] += 2
    poller.counters.transactions["in_doubt"] += 1
    poller.counters.taken("fenced", 0.3)
    text = shown([*metrics.of_poller(poller), *metrics.of_tasks(Tasks())])  # type: ignore[arg-type]
    for line in (
        'bucketsched_tasks_created_total{outcome="created"} 7.0',
        'bucketsched_tasks_settled_total{outcome="dispatched"} 2.0',
        'bucketsched_tasks_settled_total{outcome="cancelled"} 0.0',
        'bucketsched_transactions_total{outcome="in_doubt"} 1.0',
        'bucketsched_dispatch_lateness_seconds_bucket{le="0.01"} 1.0',
        'bucketsched_dispatch_lateness_seconds_bucket{le="+Inf"} 2.0',
        "bucketsched_dispatch_lateness_seconds_sum 1.01",
        'bucketsched_takeover_seconds_bucket{kind="fenced",le="0.5"} 1.0',
        'bucketsched_takeover_seconds_count{kind="released"} 0.0',
        'bucketsched_ranges{phase="active"} 2.0',
        'bucketsched_ranges{phase="alarmed"} 1.0',
        "bucketsched_heap_rows 11.0",
        "bucketsched_ready_rows 12.0",
        "bucketsched_oldest_undispatched_age_seconds 3.5",
        "bucketsched_hints_unanswered 3.0",
    ):
        assert f"\n{line}\n" in text, line


def test_names_follow_the_conventions_and_are_documented() -> None:
    document = DOCUMENT.read_text()
    for family in everything().gather():
        assert re.fullmatch(r"bucketsched_[a-z_]+", family.name)
        assert "_ms" not in family.name, "base units: seconds"
        assert family.documentation
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        assert f"`{name}`" in document, f"{name} is missing in docs/operations.md"


# ---------------------------------------------------------------- a lane's numbers


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World().prepare()
    yield world
    await world.close()


async def test_a_lane_counts_batches_and_tells_how_late_the_oldest_is(world: World) -> None:
    process = await world.process()
    counters = process.lane.dispatcher.counters
    await world.create(world.row(1_000), world.row(1_000, shard=2), hint=process)
    await world.until(lambda: len(world.dispatched()) == 2)
    assert counters.settled == {FactKind.DISPATCHED: 2}
    assert (counters.lateness_s.count, counters.transactions["committed"]) == (2, 1)
    assert counters.takeover_s["released"].count == world.constants.ranges
    assert process.lane.state().ranges == {Phase.ACTIVE.value: world.constants.ranges}
    assert process.lane.state().oldest_undispatched_age_s == 0


async def test_an_undispatched_task_shows_by_its_age(world: World) -> None:
    process = await world.process()
    await world.create(world.row(1_000), hint=process)
    await world.pass_ms(500)
    assert process.lane.state().heap_rows == 1
    await process.halt()
    for owned in process.lane._ranges.values():
        owned.phase = Phase.ACTIVE  # as if its loops only stood still
    world.clock.advance_ms(10_500)
    assert process.lane.state().oldest_undispatched_age_s == 10


async def test_an_unread_backlog_shows_by_its_age(world: World) -> None:
    world.clock.advance_ms(3 * 3_600_000)
    world.store.hold("read_partition")
    process = await world.process()
    assert process.lane.state().oldest_undispatched_age_s >= 3 * 3_600
    world.store.let_go("read_partition")
    await world.until(lambda: process.lane.state().oldest_undispatched_age_s == 0)


async def test_a_row_without_a_hint_is_counted_when_the_rescan_finds_it(world: World) -> None:
    process = await world.process()
    await world.pass_ms(2_000)
    await world.create(world.row(500))
    await world.until(lambda: len(world.dispatched()) == 1)
    assert process.lane.dispatcher.counters.rescanned_rows == 1


async def test_the_age_of_a_checkpoint_is_that_of_the_last_one_stored(world: World) -> None:
    process = await world.process()
    await world.pass_ms(20_000)
    assert 0 <= process.lane.state().checkpoint_age_s <= 5.1


# ---------------------------------------------------------------- the endpoint


def fetched(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_metrics_and_health_are_served_over_http() -> None:
    healthy = True
    server = MetricsServer("127.0.0.1:0", everything().gather, lambda: healthy)
    address = await server.start()
    try:
        status, text = await asyncio.to_thread(fetched, address, "/metrics")
        assert status == 200
        assert 'bucketsched_build_info{mode="test"' in text
        assert "process_resident_memory_bytes" in text
        assert await asyncio.to_thread(fetched, address, "/healthz") == (200, "serving\n")
        healthy = False
        assert await asyncio.to_thread(fetched, address, "/healthz") == (503, "not serving\n")
        assert (await asyncio.to_thread(fetched, address, "/"))[0] == 404
    finally:
        await server.stop()
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(urllib.request.urlopen, f"http://{address}/healthz")


async def test_an_event_loop_that_stands_still_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bucketsched.adapters.metrics_http.GATHER_S_MAX", 0.05)
    server = MetricsServer("127.0.0.1:0", everything().gather)
    address = await server.start()
    try:
        with ThreadPoolExecutor() as other:  # waiting for its result holds the loop up
            asked = other.submit(fetched, address, "/healthz").result(30)
        assert asked == (503, "the event loop does not answer\n")
    finally:
        await server.stop()


async def test_an_address_that_is_taken_is_named() -> None:
    first = MetricsServer("127.0.0.1:0", everything().gather)
    address = await first.start()
    try:
        with pytest.raises(ConfigError, match=f"can't listen at {address}: Address already in use"):
            await MetricsServer(address, everything().gather).start()
    finally:
        await first.stop()
