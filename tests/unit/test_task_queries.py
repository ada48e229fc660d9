"""TaskQueries against a model that looks at everything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from service_world import CLUSTER, NAMESPACE_ID, NOW_MS, ServiceWorld

from bucketsched.core import task_id as ids
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from bucketsched.core.task import BUCKET_MS, FactKind, Mark, StoredTask, TaskBody, TaskRow, TaskState, fold
from bucketsched.core.task_query import TaskOrder, TaskQuery
from bucketsched.service import listing, presence_walk, queries

DAY_MS = 86_400_000
OTHERS = [b"a-namespace-low.", b"z-namespace-high"]
ORDERS = [TaskOrder.NEXT, TaskOrder.NEWEST]


class Tasks:
    """Queries over a memory store, and all that was put into it."""

    def __init__(self, shards: int = 16) -> None:
        self.shards = shards
        constants = replace(CLUSTER, shards=shards, ranges=1)
        self.world = ServiceWorld(constants)
        self.queries = self.world.queries

    async def prepare(self) -> Tasks:
        await self.world.prepare()
        for name in ("mail", "empty"):
            await self.world.catalog.create_queue(Queue(NAMESPACE_ID, "default", name, QueueKind.WORKER))
        return self

    async def put(self, due_ms: int, namespace_id: bytes = NAMESPACE_ID, shard: int = 0, **body: object) -> TaskRow:
        known = {"namespace": "default", "queue": "default", "type": "t", **body}
        row = TaskRow(due_ms, namespace_id, ids.mint(due_ms, shard, random.getrandbits(62)), TaskBody(**known))  # type: ignore[arg-type]
        assert await self.world.store.insert([row]) == [None]
        return row

    async def all(self, query: TaskQuery, size: int = 0, calls_max: int = 5_000) -> list[bytes]:
        """The refs of all pages."""
        found: list[bytes] = []
        token = ""
        for _ in range(calls_max):
            page = await self.queries.list(query, size, token)
            assert len(page.tasks) <= (size or queries.PAGE_DEFAULT)
            found += [shown.stored.row.ref for shown in page.tasks]
            token = page.next_page_token
            if not token:
                return found
        raise AssertionError("paging does not end")


@pytest.fixture
async def tasks() -> Tasks:
    return await Tasks().prepare()


async def filled(seed: int, count: int = 300) -> tuple[Tasks, list[StoredTask]]:
    """Tasks near and far, dense and sparse, of three namespaces that share partitions; what is there of ours."""
    rng = random.Random(seed)
    tasks = await Tasks().prepare()
    rows: list[TaskRow] = []
    for _ in range(count):
        spread = rng.choice([10, 1_000, BUCKET_MS, 90 * DAY_MS])
        due_ms = NOW_MS + rng.randrange(-spread // 2, spread)
        body = TaskBody(
            "default",
            rng.choice(["default", "mail"]),
            rng.choice(["a", "b"]),
            metadata=rng.choice([{}, {"k": "1"}, {"k": "1", "l": "2"}, {"k": "2"}]),
        )
        namespace_id = rng.choice([NAMESPACE_ID, NAMESPACE_ID, *OTHERS])
        task_id = ids.mint(due_ms, rng.randrange(tasks.shards), rng.getrandbits(62))
        rows.append(TaskRow(due_ms, namespace_id, task_id, body))
    assert not any(await tasks.world.store.insert(rows))
    kinds = [None, None, *(kind for kind in FactKind if kind is not FactKind.SPAWNED)]
    marks = [Mark(row.ref, kind, NOW_MS + 5) for row in rows if (kind := rng.choice(kinds)) is not None]
    await tasks.world.store.mark(marks)
    ours = [row for row in rows if row.namespace_id == NAMESPACE_ID]
    found = [await tasks.world.store.get(row.due_ms, row.namespace_id, row.task_id) for row in ours]
    return tasks, [stored for stored in found if stored is not None]


def expected(stored: list[StoredTask], query: TaskQuery) -> list[bytes]:
    """By looking at everything."""
    shown = [
        task.row
        for task in stored
        if task.facts.moved_to_ms is None
        and (not query.queue or task.row.body.queue == query.queue)
        and (not query.type or task.row.body.type == query.type)
        and (query.state is None or fold(task.facts) == query.state)
        and (query.due_from_ms is None or task.row.due_ms >= query.due_from_ms)
        and (query.due_until_ms is None or task.row.due_ms < query.due_until_ms)
        and all(task.row.body.metadata.get(key) == value for key, value in query.metadata.items())
    ]
    shown.sort(key=lambda row: (row.due_ms, row.task_id), reverse=query.order is TaskOrder.NEWEST)
    return [row.ref for row in shown]


FILTERS = [
    {},
    {"queue": "mail"},
    {"queue": "empty"},
    {"type": "a"},
    {"state": TaskState.PENDING},
    {"state": TaskState.FAILED, "queue": "default"},
    {"metadata": {"k": "1"}},
    {"metadata": {"k": "1", "l": "2"}, "type": "b"},
    {"due_from_ms": NOW_MS},
    {"due_until_ms": NOW_MS},
    {"due_from_ms": NOW_MS - 300, "due_until_ms": NOW_MS + 300},
    {"due_from_ms": NOW_MS, "due_until_ms": NOW_MS + 1},
]


class TestAgainstAModel:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("chosen", FILTERS, ids=str)
    async def test_every_filter(self, chosen: dict[str, object], order: TaskOrder) -> None:
        tasks, stored = await filled(1)
        query = TaskQuery(order=order, **chosen)  # type: ignore[arg-type]
        wanted = expected(stored, query)
        assert wanted or chosen.get("queue") == "empty" or "due_until_ms" in chosen
        assert await tasks.all(query) == wanted

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 149, 150, 151, 1_000])
    async def test_pages_of_every_size(self, size: int, order: TaskOrder) -> None:
        tasks, stored = await filled(2)
        query = TaskQuery(order=order)
        assert await tasks.all(query, size) == expected(stored, query)

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize(
        ("module", "name", "value"),
        [
            (listing, "ROWS_MAX", 1),
            (listing, "PARTITIONS_MAX", 1),
            (listing, "QUEUE_DAYS_MAX", 1),
            (listing, "WORK_S_MAX", 0.0),
            (listing, "ROUND_BYTES_MAX", 0),
            (listing, "PARTITIONS_AHEAD_MAX", 1),
            (listing, "ROWS_PER_PARTITION_MIN", 1),
            (presence_walk, "PARTITIONS_PER_READ_MIN", 1),
            (presence_walk, "DAYS_PER_STEP_MAX", 1),
        ],
    )
    async def test_limits_cost_calls_and_nothing_else(
        self, seed: int, order: TaskOrder, module: object, name: str, value: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, name, value)
        tasks, stored = await filled(seed, 120)
        query = TaskQuery(order=order, type="a")
        assert await tasks.all(query, 10) == expected(stored, query)


class TestBounds:
    async def test_a_call_looks_at_so_many_rows_and_hands_back_what_it_found(
        self, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "ROWS_MAX", 20)
        for ms in range(100):
            await tasks.put(NOW_MS + ms)
        await tasks.put(NOW_MS + 100, type="other")
        page = await tasks.queries.list(TaskQuery(type="other"))
        assert page.tasks == []
        assert page.next_page_token
        assert len(await tasks.all(TaskQuery(type="other"))) == 1

    async def test_a_call_reads_so_many_partitions(self, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listing, "PARTITIONS_MAX", 3)
        monkeypatch.setattr(listing, "PARTITIONS_AHEAD_MAX", 1)
        for minute in range(9):
            await tasks.put(NOW_MS + minute * BUCKET_MS)
        page = await tasks.queries.list(TaskQuery(type="other"))
        assert tasks.world.store.calls["scan"] == 3
        assert page.next_page_token

    async def test_a_call_reads_so_many_days(self, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listing, "QUEUE_DAYS_MAX", 100)
        page = await tasks.queries.list(TaskQuery(queue="empty"))
        assert (page.tasks, bool(page.next_page_token)) == ([], True)
        assert tasks.world.store.calls["partitions"] == 2  # of 64 days each

    async def test_a_page_is_bounded_in_bytes(self, tasks: Tasks) -> None:
        for ms in range(50):
            await tasks.put(NOW_MS + ms, payload=bytes(100_000))
        page = await tasks.queries.list(TaskQuery(), 1_000)
        assert len(page.tasks) == listing.PAGE_BYTES_MAX // 100_000 + 1
        assert len(await tasks.all(TaskQuery(), 1_000)) == 50

    async def test_a_minute_of_many_tasks_costs_a_page_no_more_than_some_rows_of_each_partition(
        self, tasks: Tasks
    ) -> None:
        start_ms = (NOW_MS // BUCKET_MS + 1) * BUCKET_MS
        for number in range(4_000):
            await tasks.put(start_ms + number * 13, shard=number % tasks.shards)
        await tasks.queries.list(TaskQuery(), 100)
        assert tasks.world.store.calls["scan"] <= 2

    async def test_sparse_partitions_are_read_many_at_once(self, tasks: Tasks) -> None:
        for day in range(90):
            await tasks.put(NOW_MS + day * DAY_MS)
        assert len((await tasks.queries.list(TaskQuery(), 100)).tasks) == 90
        assert tasks.world.store.calls["scan"] <= 4
        assert tasks.world.store.calls["partitions"] <= 2 * 16

    async def test_the_last_page_says_that_it_is_the_last(self, tasks: Tasks) -> None:
        for ms in range(4):
            await tasks.put(NOW_MS + ms)
        window = {"due_from_ms": NOW_MS, "due_until_ms": NOW_MS + BUCKET_MS}
        assert not (await tasks.queries.list(TaskQuery(**window), 4)).next_page_token  # type: ignore[arg-type]
        assert (await tasks.queries.list(TaskQuery(**window), 3)).next_page_token  # type: ignore[arg-type]

    async def test_without_a_window_all_that_is_kept_and_all_that_can_come_is_shown(self, tasks: Tasks) -> None:
        first = await tasks.put(NOW_MS - CLUSTER.retention_ms)
        last = await tasks.put(NOW_MS + tasks.world.limits.delay_ms_max)
        await tasks.put(NOW_MS - CLUSTER.retention_ms - 1)
        await tasks.put(NOW_MS + tasks.world.limits.delay_ms_max + 1)
        assert await tasks.all(TaskQuery()) == [first.ref, last.ref]


class TestRefusals:
    @pytest.mark.parametrize("token", ["x", "!!!!", "é", "A" * 48, "A" * 47, "A" * 400])
    async def test_a_token_that_nobody_gave_is_refused(self, tasks: Tasks, token: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await tasks.queries.list(TaskQuery(), 1, token)
        assert caught.value.field == "page_token"

    @pytest.mark.parametrize(
        "other",
        [
            {"order": TaskOrder.NEWEST},
            {"queue": "default"},
            {"type": "x"},
            {"state": TaskState.PENDING},
            {"due_from_ms": NOW_MS},
            {"due_until_ms": NOW_MS + DAY_MS},
            {"metadata": {"k": "v"}},
        ],
        ids=str,
    )
    async def test_a_token_of_another_query_is_refused(self, tasks: Tasks, other: dict[str, object]) -> None:
        await tasks.put(NOW_MS)
        await tasks.put(NOW_MS + 1)
        token = (await tasks.queries.list(TaskQuery(), 1)).next_page_token
        with pytest.raises(InvalidArgument) as caught:
            await tasks.queries.list(TaskQuery(**other), 1, token)  # type: ignore[arg-type]
        assert caught.value.field == "page_token"
        assert len((await tasks.queries.list(TaskQuery(), 5, token)).tasks) == 1  # the size may change

    @pytest.mark.parametrize(
        ("query", "size", "field"),
        [
            (TaskQuery(namespace="no such"), 0, "namespace"),
            (TaskQuery(queue="no such"), 0, "queue"),
            (TaskQuery(), -1, "page_size"),
            (TaskQuery(), 1_001, "page_size"),
            (TaskQuery(due_from_ms=5, due_until_ms=5), 0, "due_until"),
        ],
    )
    async def test_bad_input_is_named(self, tasks: Tasks, query: TaskQuery, size: int, field: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            await tasks.queries.list(query, size)
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("query", "field"), [(TaskQuery(namespace="n"), "namespace"), (TaskQuery(queue="q"), "queue")]
    )
    async def test_what_does_not_exist_is_not_found(self, tasks: Tasks, query: TaskQuery, field: str) -> None:
        with pytest.raises(NotFound) as caught:
            await tasks.queries.list(query)
        assert caught.value.field == field

    async def test_of_very_many_queues_one_must_be_named(self, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queries, "QUEUES_MAX", 2)
        with pytest.raises(FailedPrecondition) as caught:
            await tasks.queries.list(TaskQuery())
        assert caught.value.field == "queue"
        assert (await tasks.queries.list(TaskQuery(queue="mail"))).tasks == []

    async def test_queues_are_read_by_pages(self, tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queries, "QUEUES_PER_READ", 2)
        rows = [await tasks.put(NOW_MS + 1, queue="mail"), await tasks.put(NOW_MS + 2)]
        assert await tasks.all(TaskQuery()) == [row.ref for row in rows]

    async def test_a_namespace_without_queues_has_no_tasks(self, tasks: Tasks) -> None:
        await tasks.world.catalog.create_namespace(Namespace("bare", b"bare-namespace-x", 0))
        page = await tasks.queries.list(TaskQuery(namespace="bare"))
        assert (page.tasks, page.next_page_token) == ([], "")

    @pytest.mark.parametrize("method", ["partitions", "scan", "list_queues"])
    async def test_a_store_that_is_away_is_unavailable(self, tasks: Tasks, method: str) -> None:
        await tasks.put(NOW_MS)
        faults = tasks.world.catalog if method == "list_queues" else tasks.world.store
        faults.fail_next(method, Unavailable("away"), times=100)
        with pytest.raises(Unavailable):
            await tasks.queries.list(TaskQuery())
