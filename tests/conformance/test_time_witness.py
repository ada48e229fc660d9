"""Every witness of the time keeps the promises of ports.TimeWitness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from tools.stack import Addresses

from bucketsched import config
from bucketsched.adapters import kernel_time
from bucketsched.adapters.kafka.topics import KafkaTopics
from bucketsched.adapters.kafka.witness import KafkaWitnesses
from bucketsched.adapters.zookeeper.tree import create_tree
from bucketsched.adapters.zookeeper.witness import ZooKeeperWitness
from bucketsched.core import clock_discipline
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.ports import TimeWitness

pytestmark = pytest.mark.stack
DEADLINE_S = 60.0
NOBODY = "127.0.0.1:1"
NOISE_NS = 5_000_000
"""Between two readings of the test's own clocks."""


@dataclass
class Given:
    """A witness, one of a cluster that nobody migrated, and one of servers that don't answer."""

    witness: TimeWitness
    unmigrated: TimeWitness
    unreachable: TimeWitness


@pytest.fixture(params=["zookeeper", "kafka"])
async def given(request: pytest.FixtureRequest, stack: Addresses, zk_root: str) -> AsyncIterator[Given]:
    settings = config.load(str(stack.settings), {"zookeeper": {"root": zk_root}})
    constants, other = ClusterConstants(uuid4(), lanes=2), ClusterConstants(uuid4(), lanes=2)
    topics = KafkaTopics(settings.kafka, constants)
    if request.param == "zookeeper":
        await create_tree(settings.zookeeper, constants, {})
        away = settings.zookeeper.model_copy(update={"hosts": NOBODY})
        made = Given(*(ZooKeeperWitness(*of, "m/1") for of in (
            (settings.zookeeper, constants), (settings.zookeeper, other), (away, constants))))  # fmt: skip
    else:
        await topics.ensure_clock()
        nobody = settings.kafka.model_copy(update={"bootstrap": NOBODY})
        made = Given(*(KafkaWitnesses(*of) for of in (
            (settings.kafka, constants), (settings.kafka, other), (nobody, constants))))  # fmt: skip
    yield made
    for witness in (made.witness, made.unmigrated, made.unreachable):
        await witness.close()
    if request.param == "kafka":
        await _delete(stack.kafka, constants.clock_topic)
    await topics.close()


async def _delete(bootstrap: str, topic: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.delete_topics([topic])
    await admin.close()


async def told(witness: TimeWitness) -> list[clock_discipline.Testimony]:
    """What it says once it is heard: servers that have much to do may not answer in time."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await witness.testify(kernel_time.boot_ns)
            except Unavailable:
                await asyncio.sleep(0.05)


async def test_the_true_time_is_within_what_it_says(given: Given) -> None:
    """The servers run on this machine: its clock is theirs."""
    for _ in range(5):
        said = await told(given.witness)
        look = kernel_time.look()
        offset_ns = look.wall_ns - look.boot_ns
        assert said
        for one in said:
            assert one.sent_ns <= one.received_ns <= look.boot_ns
            assert one.offset.low - NOISE_NS <= offset_ns <= one.offset.high + NOISE_NS
            assert one.offset.high - one.offset.low <= one.received_ns - one.sent_ns + 1_000_000


async def test_each_machine_testifies_under_its_own_name(given: Given) -> None:
    names = [one.witness for one in await told(given.witness)]
    assert len(set(names)) == len(names)
    assert names == [one.witness for one in await told(given.witness)]


async def test_where_nobody_answers_or_nobody_has_migrated_it_is_unavailable(given: Given) -> None:
    for witness in (given.unreachable, given.unmigrated):
        with pytest.raises(Unavailable):
            await asyncio.wait_for(witness.testify(kernel_time.boot_ns), 60)
