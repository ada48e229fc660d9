"""Queues, namespaces, and the directory that remembers them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from bucketsched.core.notice_rule import NoticeEvent, NoticeRule
from bucketsched.core.queue_policy import QueuePolicy
from bucketsched.service import directory as directory_module
from bucketsched.service.directory import Directory
from bucketsched.service.namespaces import NamespaceService
from bucketsched.service.queues import NewQueue, QueueService

KAFKA, WORKER = QueueKind.KAFKA, QueueKind.WORKER


class RecordingTopics:
    """Makes every topic, with 8 partitions and 3 replicas where nothing is asked for."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        self.ensured: list[Queue] = []
        self.error: Exception | None = None
        self.existing_partitions = 0
        self._catalog = catalog

    async def ensure(self, queue: Queue) -> Queue:
        assert await self._catalog.get_queue(queue.namespace_id, queue.name) is None, "the topic comes before the row"
        self.ensured.append(queue)
        if self.error:
            raise self.error
        return replace(
            queue,
            topic=queue.topic or f"chosen-{queue.name}",
            partitions=self.existing_partitions or queue.partitions or 8,
            replication=queue.replication or 3,
        )


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.catalog = MemoryCatalog()
        self.directory = Directory(self.catalog, self.clock)
        self.namespaces = NamespaceService(self.catalog, self.clock)
        self.topics = RecordingTopics(self.catalog)
        self.cluster = QueueService(self.catalog, self.directory, self.topics, self.clock)
        self.embedded = QueueService(self.catalog, self.directory, None, self.clock)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.namespaces.create("default")
    return world


# ---------------------------------------------------------------- creating


async def test_a_kafka_queue_gets_its_topic_before_its_row(world: World) -> None:
    queue = await world.cluster.create(NewQueue("orders", KAFKA))
    assert queue.topic == "default.orders"
    assert (queue.partitions, queue.replication, queue.kind) == (8, 3, KAFKA)
    assert queue.created_ms == world.clock.now_ms()
    assert [ensured.topic for ensured in world.topics.ensured] == ["default.orders"]
    assert await world.cluster.get("default", "orders") == queue


async def test_settings_that_are_given_are_used(world: World) -> None:
    new = NewQueue("orders", KAFKA, topic="t", partitions=3, replication=1, priority_topics=True)
    queue = await world.cluster.create(new)
    assert (queue.topic, queue.partitions, queue.replication) == ("t", 3, 1)
    assert queue.topics == ["t.high", "t", "t.low"]


async def test_without_its_topic_a_queue_is_not_made(world: World) -> None:
    world.topics.error = Unavailable("no broker")
    with pytest.raises(Unavailable):
        await world.cluster.create(NewQueue("orders", KAFKA))
    with pytest.raises(NotFound):
        await world.cluster.get("default", "orders")


async def test_creating_the_same_queue_again_gives_the_one_there_is(world: World) -> None:
    first = await world.cluster.create(NewQueue("orders", KAFKA))
    world.clock.advance_ms(60_000)
    assert await world.cluster.create(NewQueue("orders", KAFKA)) == first
    assert await world.cluster.create(NewQueue("orders", KAFKA, partitions=8, replication=3)) == first


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("kind", {"kind": WORKER}),
        ("topic", {"topic": "elsewhere"}),
        ("partitions", {"partitions": 9}),
        ("replication", {"replication": 1}),
        ("priority_topics", {"priority_topics": True}),
    ],
)
async def test_other_settings_under_the_same_name_are_refused(world: World, field: str, other: dict[str, Any]) -> None:
    await world.cluster.create(NewQueue("orders", KAFKA))
    with pytest.raises(AlreadyExists) as caught:
        await world.cluster.create(replace(NewQueue("orders", KAFKA), **other))
    assert caught.value.field == field


async def test_of_two_who_create_at_once_the_later_is_told_what_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await world.embedded.create(NewQueue("jobs", WORKER))

    async def not_yet(namespace_id: bytes, name: str) -> None:
        return None

    monkeypatch.setattr(world.catalog, "get_queue", not_yet)
    assert await world.embedded.create(NewQueue("jobs", WORKER)) == stored
    with pytest.raises(AlreadyExists, match="priority_topics"):
        await world.embedded.create(NewQueue("jobs", WORKER, priority_topics=True))


@pytest.mark.parametrize(
    ("field", "new"),
    [
        ("name", NewQueue("", KAFKA)),
        ("name", NewQueue("a/b", KAFKA)),
        ("namespace", NewQueue("a", KAFKA, namespace="a b")),
        ("partitions", NewQueue("a", KAFKA, partitions=-1)),
        ("partitions", NewQueue("a", KAFKA, partitions=1001)),
        ("replication", NewQueue("a", KAFKA, replication=10)),
        ("topic", NewQueue("a", KAFKA, topic="a/b")),
        ("topic", NewQueue("a", KAFKA, topic="__consumer_offsets")),
        ("topic", NewQueue("a", KAFKA, topic="bucketsched-x-journal")),
        ("topic", NewQueue("a", WORKER, topic="mine")),
    ],
)
async def test_bad_settings_are_refused(world: World, field: str, new: NewQueue) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await world.cluster.create(new)
    assert caught.value.field == field
    assert not world.topics.ensured


async def test_an_unknown_namespace_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="namespace"):
        await world.cluster.create(NewQueue("a", KAFKA, namespace="nobody"))


async def test_default_topics_of_two_queues_never_meet(world: World) -> None:
    for name in ("a", "a.b"):
        await world.namespaces.create(name)
    await world.cluster.create(NewQueue("b.c", KAFKA, namespace="a"))
    with pytest.raises(AlreadyExists, match="topic"):
        await world.cluster.create(NewQueue("c", KAFKA, namespace="a.b"))
    await world.cluster.create(NewQueue("c", KAFKA, namespace="a.b", topic="a-b-c"))


async def test_default_topics_do_not_meet_those_of_a_priority(world: World) -> None:
    await world.cluster.create(NewQueue("a", KAFKA, priority_topics=True))
    with pytest.raises(AlreadyExists, match="topic"):
        await world.cluster.create(NewQueue("a.high", KAFKA))
    await world.cluster.create(NewQueue("b.low", KAFKA))
    with pytest.raises(AlreadyExists, match="topic"):
        await world.cluster.create(NewQueue("b", KAFKA, priority_topics=True))


async def test_the_topic_of_a_worker_queue_is_chosen_with_the_topics(world: World) -> None:
    first = await world.cluster.create(NewQueue("jobs", WORKER))
    assert [ensured.topic for ensured in world.topics.ensured] == [""]
    assert first.topic == "chosen-jobs"
    assert await world.cluster.create(NewQueue("jobs", WORKER)) == first


async def test_a_topic_that_exists_with_other_partitions_is_told_before_there_is_a_queue(world: World) -> None:
    world.topics.existing_partitions = 5
    with pytest.raises(InvalidArgument, match=r"partitions: must be 0 or 5"):
        await world.cluster.create(NewQueue("orders", KAFKA, partitions=6))
    with pytest.raises(NotFound):
        await world.cluster.get("default", "orders")
    assert (await world.cluster.create(NewQueue("orders", KAFKA))).partitions == 5


# ---------------------------------------------------------------- embedded mode


async def test_embedded_mode_has_worker_queues_only(world: World) -> None:
    queue = await world.embedded.create(NewQueue("jobs", WORKER))
    assert (queue.topic, queue.partitions) == ("", 0)
    with pytest.raises(InvalidArgument, match=r"kind: .*cluster mode"):
        await world.embedded.create(NewQueue("orders", KAFKA))
    with pytest.raises(InvalidArgument, match="partitions"):
        await world.embedded.create(NewQueue("orders", WORKER, partitions=1))


# ---------------------------------------------------------------- listing


async def test_queues_are_listed_by_name_in_pages(world: World) -> None:
    for name in ("c", "a", "e", "b", "d"):
        await world.embedded.create(NewQueue(name, WORKER))
    seen: list[str] = []
    after = ""
    while True:
        page, after = await world.embedded.list("default", after, 2)
        seen += [queue.name for queue in page]
        if not after:
            break
    assert seen == ["a", "b", "c", "d", "e"]
    everything, following = await world.embedded.list("default")
    assert (len(everything), following) == (5, "")


async def test_a_page_has_bounds(world: World) -> None:
    for size in (-1, 1001):
        with pytest.raises(InvalidArgument, match="page_size"):
            await world.embedded.list("default", "", size)
    with pytest.raises(InvalidArgument, match="page_token"):
        await world.embedded.list("default", "a/b")
    with pytest.raises(NotFound):
        await world.embedded.list("nobody")


async def test_a_namespace_is_made_once(world: World) -> None:
    first = await world.namespaces.create("shop")
    assert len(first.namespace_id) == 16
    assert await world.namespaces.create("shop") == first
    assert [namespace.name for namespace in await world.namespaces.list()] == ["default", "shop"]
    with pytest.raises(InvalidArgument, match="name"):
        await world.namespaces.create("a/b")


# ---------------------------------------------------------------- the directory


async def test_what_is_known_is_not_looked_up_for_a_while(world: World) -> None:
    await world.embedded.create(NewQueue("jobs", WORKER))
    for _ in range(3):
        await world.directory.queue("default", "jobs")
    calls = world.catalog.calls["get_queue"]
    await world.directory.queue("default", "jobs")
    assert world.catalog.calls["get_queue"] == calls
    world.clock.advance_ms(5_000)
    await world.directory.queue("default", "jobs")
    assert world.catalog.calls["get_queue"] == calls + 1


async def test_what_did_not_exist_is_seen_as_soon_as_it_does(world: World) -> None:
    with pytest.raises(NotFound, match="queue"):
        await world.directory.queue("default", "jobs")
    await world.embedded.create(NewQueue("jobs", WORKER))
    assert (await world.directory.queue("default", "jobs")).name == "jobs"


async def test_what_was_known_is_served_while_the_catalog_is_down(world: World) -> None:
    await world.embedded.create(NewQueue("jobs", WORKER))
    await world.directory.queue("default", "jobs")
    world.catalog.down = True
    world.clock.advance_ms(3_600_000)
    assert (await world.directory.queue("default", "jobs")).name == "jobs"
    with pytest.raises(Unavailable):
        await world.directory.queue("default", "unknown")


async def test_many_callers_share_a_look_up_and_survive_each_others_cancellation(world: World) -> None:
    world.catalog.hold("get_namespace")
    before = world.catalog.calls["get_namespace"]
    world.clock.advance_ms(60_000)
    waiting = [asyncio.create_task(world.directory.namespace("default")) for _ in range(10)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    world.catalog.let_go("get_namespace")
    found = await asyncio.gather(*waiting[1:])
    assert {namespace.name for namespace in found} == {"default"}
    assert world.catalog.calls["get_namespace"] == before + 1


async def test_the_directory_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "ENTRIES_MAX", 3)
    for name in ("a", "b", "c", "d", "e"):
        await world.catalog.create_namespace(Namespace(name, name.encode() * 16, 0))
        await world.directory.namespace(name)
    assert len(world.directory._namespaces._known) == 3


# ---------------------------------------------------------------- notices


async def test_rules_are_checked_before_a_topic_is_made(world: World) -> None:
    await world.cluster.create(NewQueue("dead", KAFKA))
    told = {event: NoticeRule((event,), "dead") for event in NoticeEvent}
    known = [NoticeEvent.DEAD_LETTERED, NoticeEvent.EXPIRED, NoticeEvent.LATE]
    policy = QueuePolicy(notices=tuple(told[event] for event in known))
    assert (await world.cluster.create(NewQueue("orders", KAFKA, policy=policy))).policy == policy
    ensured = len(world.topics.ensured)
    for rule, field in (
        (told[NoticeEvent.SUCCEEDED], "events"),
        (NoticeRule(told[NoticeEvent.LATE].events, "a"), "queue"),
    ):
        with pytest.raises((InvalidArgument, NotFound)) as caught:
            await world.cluster.create(NewQueue("other", KAFKA, policy=QueuePolicy(notices=(rule,))))
        assert caught.value.field == f"notices[0].{field}"
    assert len(world.topics.ensured) == ensured
