"""Whose answer is whose, while Cassandra gives requests up that waited in its queue for too long."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs
from tools.stack import Stack
from tools.stack.use import own_stack

from bucketsched.adapters.cassandra.checkpoints import CassandraCheckpointStore
from bucketsched.adapters.cassandra.migrations import files_directory, migrate
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.config import CassandraSettings, load
from bucketsched.core.checkpoint import Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable

pytestmark = [pytest.mark.stack, pytest.mark.alone, pytest.mark.timeout(600)]

OPTIONS = {"native_transport_timeout": "1500ms", "native_transport_max_threads": "2"}
"""What waits for that long is given up; two at a time don't."""
PAUSE_S, BETWEEN_S = 2.5, 2.0
PAUSES_MIN, PAUSES_MAX = 2, 8
RANGES = 64
READERS, WRITERS = 400, 40
GIVEN_UP = "Cassandra gives requests up that waited too long"


@pytest.fixture
def impatient() -> Iterator[Stack]:
    """A server that soon gives up what it can't begin."""
    options = " ".join(f"-Dcassandra.settings.{name}={value}" for name, value in OPTIONS.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", f"-Dcassandra.config.allow_system_properties=true {options}")
        with own_stack(print) as stack:
            yield stack


class World:
    """Callers, each of whom knows what its answers look like."""

    def __init__(self, store: CassandraCheckpointStore) -> None:
        self.store = store
        self.answered = self.unavailable = self.sequence = 0

    async def save(self, range_id: int) -> None:
        self.sequence += 1
        await self.store.save(range_id, Checkpoint(1, self.sequence, "journal", 0, range_id, b"", range_id))

    async def load(self, range_id: int) -> None:
        found = await self.store.load(range_id)
        assert found is not None, range_id
        assert (found.applied_offset, found.first_open_bucket) == (range_id, range_id)
        self.answered += 1

    async def go_on(self, number: int) -> None:
        while True:
            try:
                await (self.save if number < WRITERS else self.load)(number % RANGES)
            except Unavailable:
                self.unavailable += 1


async def keyspace(stack: Stack) -> CassandraSettings:
    given = load(str(stack.settings)).cassandra
    settings = given.model_copy(update={"keyspace": f"t_{uuid.uuid4().hex}", "request_timeout_ms": 20_000})
    await migrate(
        settings, ClusterConstants(uuid.uuid4(), shards=RANGES, ranges=RANGES), files_directory(), SystemClock()
    )
    return settings.model_copy(update={"request_timeout_ms": 3_000})


async def test_no_request_gets_the_answer_of_another_one(impatient: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await CassandraSession.connect(await keyspace(impatient))
    distrusted: list[str] = []

    def distrust(what: str) -> Unavailable:
        distrusted.append(what)
        return Unavailable(what)

    monkeypatch.setattr(session, "distrust", distrust)
    world = World(await CassandraCheckpointStore.open(session))
    for range_id in range(RANGES):
        await world.save(range_id)
    with capture_logs() as logs:
        callers = [asyncio.create_task(world.go_on(number)) for number in range(READERS + WRITERS)]
        for pauses in range(1, PAUSES_MAX + 1):
            await asyncio.to_thread(impatient.cassandra.pause)
            await asyncio.sleep(PAUSE_S)
            await asyncio.to_thread(impatient.cassandra.resume)
            await asyncio.sleep(BETWEEN_S)
            if pauses >= PAUSES_MIN and any(entry["event"] == GIVEN_UP for entry in logs):
                break
        for caller in callers:
            caller.cancel()
        ended = await asyncio.gather(*callers, return_exceptions=True)
    await session.close()
    print(f"{world.answered} answers, {world.unavailable} without")
    assert not [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    assert distrusted == []
    assert any(entry["event"] == GIVEN_UP for entry in logs), "else this shows nothing"
    assert world.answered > 0
