"""What is left in memory of requests to Cassandra."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tests.nodes import Cluster, Rows, now_ms, until

pytestmark = pytest.mark.stack


@pytest.fixture
async def rows(make_cluster: Callable[..., Cluster]) -> AsyncIterator[Rows]:
    async with make_cluster(shards=1, ranges=1, lanes=1).rows() as rows:
        yield rows


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def driver_futures() -> int:
    return sum(type(found).__name__ == "ResponseFuture" for found in gc.get_objects())


@pytest.mark.usefixtures("_no_collector")
async def test_answered_requests_are_gone_without_a_collector(rows: Rows) -> None:
    """A node looks for cycles seldom: a request that is in one keeps its rows for long."""
    before, due_ms = driver_futures(), now_ms() + 3_600_000
    made = [rows.made(due_ms, "q") for _ in range(200)]
    for row in made:
        await rows.insert([row])
    read = await asyncio.gather(*(rows.store.get(due_ms, row.namespace_id, row.task_id) for row in made))
    assert all(read)
    await until(lambda: driver_futures() <= before, "the driver's timers have run out", 10)
