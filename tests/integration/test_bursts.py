"""Much at once: ten thousand tasks at one instant; more rows in a minute than a poller may hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from tests.nodes import Cluster, now_ms
from tests.workload import Workload, workload

from bucketsched import CreatedTask, NewTask
from bucketsched.client.model import to_datetime
from bucketsched.core.task import BUCKET_MS

pytestmark = [pytest.mark.stack, pytest.mark.alone]

AT_ONCE = 10_000
AT_ONCE_S = 7.0

ROWS = 100_000
HEAP_ROWS_MAX = 10_000
PAYLOAD_BYTES = 1_000
DUE_OVER_MS = 20_000
INSERT_MS = 22_000
ROW_KIB_MAX = 4.0
"""A row in memory: its payload, what surrounds it, and its share of a transaction's buffers."""
OVERHEAD_MIB_MAX = 60.0
"""What a poller needs besides rows: statuses, marks and pages under way, the allocator's slack."""
LATE_MS_MAX = 5_000
"""Nothing waits for a loader that waits for room. Generous: the machine does much else."""


@pytest.fixture(scope="module")
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Has everything but a poller."""
    cluster = make_cluster(shards=4, ranges=1, horizon_ms=30_000, grace_ms=2_000)
    cluster.start("rest", "api,coordinator")
    return cluster


@pytest.fixture
async def work(cluster: Cluster) -> AsyncIterator[Workload]:
    async with workload(cluster, await cluster.processes[0].ready()) as work:
        yield work


async def test_ten_thousand_tasks_at_one_instant(cluster: Cluster, work: Workload) -> None:
    poller = cluster.start("poller", "poller", poller__heap_rows_max=HEAP_ROWS_MAX)
    await cluster.settled(poller)
    due = to_datetime(now_ms() + int(AT_ONCE_S * 1_000))
    created = await work.client.create_many([NewTask("t", b"x", work.queue, due=due) for _ in range(AT_ONCE)])
    tasks = [task for task in created if isinstance(task, CreatedTask)]
    assert len(tasks) == AT_ONCE
    await work.recorder.exactly(tasks)
    assert {seen.event.due_ms for seen in work.recorder.seen} == {tasks[0].due_ms}
    assert max(seen.late_ms for seen in work.recorder.seen) < LATE_MS_MAX
    assert await poller.terminate() == 0


@pytest.mark.timeout(200)
async def test_more_rows_in_a_minute_than_fit_in_memory(cluster: Cluster, work: Workload) -> None:
    """Ten times the poller's budget of rows. They are there before it starts, so none of them comes by a hint."""
    due_ms = start_ms()
    async with cluster.rows() as rows:
        dues = (due_ms + i * DUE_OVER_MS // ROWS for i in range(ROWS))
        made = [rows.made(due, work.queue, bytes(PAYLOAD_BYTES), i // 1_000 % 4) for i, due in enumerate(dues)]
        tasks = await rows.insert(made)
    poller = cluster.start("poller", "poller", poller__heap_rows_max=HEAP_ROWS_MAX)
    await cluster.settled(poller)
    before_mib = poller.memory_mib()
    behind_ms = max(0, now_ms() - due_ms)  # where writing the rows took too long
    await work.recorder.exactly(tasks, 120)
    assert max(seen.late_ms for seen in work.recorder.seen) < behind_ms + LATE_MS_MAX
    rows_max = 2 * HEAP_ROWS_MAX  # of what is due within seconds two budgets may be loaded
    assert poller.memory_mib("VmHWM") - before_mib < rows_max * ROW_KIB_MAX / 1_024 + OVERHEAD_MIB_MAX


def start_ms() -> int:
    """The first instant that leaves time to write all rows, with enough of its minute left."""
    start = now_ms() + INSERT_MS
    rest = BUCKET_MS - start % BUCKET_MS
    return start if rest >= DUE_OVER_MS else start + rest
