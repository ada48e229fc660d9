"""The queues that a poller knows: looked up once, and followed when their policies change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from service_world import ImpatientClock, until

from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Namespace, Queue, QueueKind
from bucketsched.core.errors import Unavailable
from bucketsched.core.queue_policy import QueuePolicy
from bucketsched.core.retry import RetryPolicy
from bucketsched.poller import queue_directory
from bucketsched.poller.queue_directory import REFRESH_S, QueueDirectory

NAMESPACES = [bytes([number]) * 16 for number in (1, 2, 3)]


class World:
    """A directory at work, whose time passes at once."""

    def __init__(self) -> None:
        self.clock = ImpatientClock(1_000_000)
        self.catalog = MemoryCatalog()
        self.directory = QueueDirectory(self.catalog, self.clock)

    async def start(self, names: int) -> World:
        for number, namespace_id in enumerate(NAMESPACES):
            await self.catalog.create_namespace(Namespace(f"n{number}", namespace_id, 0))
            for name in self.names(names):
                await self.catalog.create_queue(Queue(namespace_id, f"n{number}", name, QueueKind.WORKER))
        self.task = asyncio.create_task(self.directory.run())
        return self

    @staticmethod
    def names(count: int) -> list[str]:
        return [f"q{number:03}" for number in range(count)]

    async def change(self, namespace_id: bytes, name: str, tries: int) -> None:
        stored = await self.catalog.get_queue(namespace_id, name)
        assert stored is not None
        await self.catalog.update_policy(replace(stored, policy=QueuePolicy(RetryPolicy(tries))))

    def tries(self, namespace_id: bytes, name: str) -> int:
        queue = self.directory.get(namespace_id, name)
        assert queue is not None
        return queue.retry_policy.tries_max


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World().start(30)
    yield world
    world.task.cancel()
    await asyncio.wait({world.task})


async def test_a_changed_policy_is_followed_within_seconds(world: World) -> None:
    name = NAMESPACES[0], "q007"
    world.directory.expect(*name)
    await until(lambda: world.directory.known(*name))
    assert world.tries(*name) == 10
    await world.change(*name, 3)
    changed_ms, reads = world.clock.now_ms(), world.catalog.calls["list_queues"]
    await until(lambda: world.catalog.calls["list_queues"] >= reads + 2)
    assert world.tries(*name) == 3
    refreshes = world.catalog.calls["list_queues"] - reads
    assert world.clock.now_ms() - changed_ms <= 1000 * REFRESH_S * (refreshes + 1), "every few seconds"
    assert world.directory.get(NAMESPACES[0], "q008") is None, "what was not asked for is not kept"


async def test_all_that_are_known_are_followed_page_after_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_directory, "REFRESH_PAGE", 4)
    monkeypatch.setattr(queue_directory, "REFRESH_PAGES_MAX", 3)
    known = [(NAMESPACES[0], "q005"), (NAMESPACES[0], "q021"), (NAMESPACES[2], "q000"), (NAMESPACES[2], "q029")]
    for name in known:
        assert await world.directory.fetch(*name)
    for tries in (3, 4):
        for name in known:
            await world.change(*name, tries)
        await until(lambda tries=tries: [world.tries(*name) for name in known] == [tries] * len(known))  # type: ignore[misc]


async def test_a_refresh_reads_no_more_than_so_many_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_directory, "REFRESH_PAGE", 1)
    monkeypatch.setattr(queue_directory, "REFRESH_PAGES_MAX", 2)
    assert await world.directory.fetch(NAMESPACES[0], "q029")
    began_ms, reads = world.clock.now_ms(), world.catalog.calls["list_queues"]
    await until(lambda: world.catalog.calls["list_queues"] - reads >= 20)
    refreshes = (world.clock.now_ms() - began_ms) / (1000 * REFRESH_S)
    assert world.catalog.calls["list_queues"] - reads <= 2 * (refreshes + 1)


async def test_what_is_known_holds_on_while_the_catalog_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = NAMESPACES[1], "q000"
    assert await world.directory.fetch(*name)
    for error in (Unavailable("away"), RuntimeError("a bug")):
        refused = 0

        async def refuse(*arguments: object, error: Exception = error) -> list[Queue]:
            nonlocal refused
            refused += 1
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(world.catalog, "list_queues", refuse)
            await until(lambda: refused >= 2)  # noqa: B023 - it is waited for here
            assert world.directory.get(*name) is not None
    await world.change(*name, 5)
    await until(lambda: world.tries(*name) == 5)


async def test_queues_that_are_not_known_cost_nothing(world: World) -> None:
    began_ms = world.clock.now_ms()
    await until(lambda: world.clock.now_ms() - began_ms > 20_000 * REFRESH_S)
    assert world.catalog.calls["list_queues"] == 0
