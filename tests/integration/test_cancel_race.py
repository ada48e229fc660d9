"""A thousand cancels, each at about the instant at which its task is due: one of the two wins, and says so."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import pytest
from tests.nodes import Cluster, until_ms, until_state
from tests.workload import workload

from bucketsched import CancelOutcome, Client, CreatedTask, TaskState

pytestmark = pytest.mark.stack

RACES = 1_000
DURATION_S = 4.0
FIRST_S = 3.0


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Two pollers; the api is in the second one's process."""
    cluster = make_cluster(shards=8, ranges=4, horizon_ms=60_000, grace_ms=2_000)
    cluster.start("poller", "poller")
    cluster.start("rest", "api,poller,coordinator")
    return cluster


async def cancel_at(client: Client, task: CreatedTask, at_ms: int) -> CancelOutcome:
    await until_ms(at_ms)
    return await client.cancel(task.id)


async def test_cancel_against_dispatch(cluster: Cluster) -> None:
    await cluster.settled(*cluster.processes)
    rng = random.Random(5)
    async with workload(cluster, await cluster.processes[1].ready()) as work:
        tasks = await work.create([FIRST_S + rng.uniform(0, DURATION_S) for _ in range(RACES)])
        leads = [rng.choice((300, 0, rng.uniform(-25, 40))) for _ in tasks]
        cancels = [cancel_at(work.client, t, t.due_ms - int(lead)) for t, lead in zip(tasks, leads, strict=True)]
        outcomes = await asyncio.gather(*cancels)
        by_outcome = Counter(outcomes)
        assert by_outcome.keys() == {CancelOutcome.CANCELLED, CancelOutcome.ALREADY_DISPATCHED}, by_outcome
        dispatched = [t for t, o in zip(tasks, outcomes, strict=True) if o is CancelOutcome.ALREADY_DISPATCHED]
        await work.recorder.exactly(dispatched)
        states = {CancelOutcome.CANCELLED: TaskState.CANCELLED, CancelOutcome.ALREADY_DISPATCHED: TaskState.DISPATCHED}
        for task, outcome in list(zip(tasks, outcomes, strict=True))[::10]:
            await until_state(work.client, task, states[outcome])
