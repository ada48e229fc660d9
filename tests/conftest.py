"""What all tests share: real servers for those marked `stack`, and names that no other test uses."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tools.stack import Addresses, Stack, own_elasticmq, own_stack, running

Say = Callable[[str], None]
SLOW_FOLDERS = ("integration", "acceptance")
STACK_TEST_S_MAX = 300
"""Unless a test says otherwise. The first one waits for the servers' start, while another group starts its own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what `make check` leaves out, and gives tests of real servers the time that those need."""
    for item in items:
        if item.path.parent.name in SLOW_FOLDERS:
            item.add_marker(pytest.mark.integration)
        if item.get_closest_marker("stack") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(STACK_TEST_S_MAX))


@pytest.fixture(scope="session")
def _say(request: pytest.FixtureRequest) -> Say:
    """Progress for whoever waits, past pytest's capture of output; where several groups run, with the group's name."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    group = os.environ.get("PYTEST_XDIST_WORKER")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{group}: {line}" if group else f"\n{line}", end="", file=sys.stderr, flush=True)

    return say


@pytest.fixture(scope="session")
def _own_stack(_say: Say) -> Iterator[Stack]:
    with own_stack(_say) as stack:
        yield stack


@pytest.fixture(scope="session")
def stack(request: pytest.FixtureRequest) -> Addresses:
    """Real servers, shared by all tests and perhaps by other runs: the ones that run already, else this run's own.

    `stack.cassandra`, `stack.kafka`, `stack.zookeeper` are host:port, `stack.settings` is a settings file that reaches
    them. Whoever uses them uses names of his own (the fixtures below), and leaves the servers as they are.
    """
    own: Stack | None = None
    found = running()
    if not found:
        own = request.getfixturevalue("_own_stack")
        found = own.addresses
    return found


@pytest.fixture
def private_stack(_own_stack: Stack) -> Iterator[Stack]:
    """Real servers that nobody else uses during the test: it may stop, kill and pause them (`.kafka.kill()`,
    `.cassandra.pause()`; these block, so from an event loop by asyncio.to_thread). All are up again afterwards.
    """
    yield _own_stack
    for server in _own_stack.servers:
        server.resume()
    _own_stack.up()


@pytest.fixture(scope="session")
def elasticmq(_say: Say) -> Iterator[str]:
    """The URL of a server that speaks SQS, with its limits; tests use queue names of their own."""
    with own_elasticmq(_say) as url:
        yield url


@pytest.fixture
def keyspace_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A keyspace that no other test uses; it is dropped afterwards if the test made it."""
    name = f"t_{uuid.uuid4().hex}"
    yield name
    if "stack" in request.fixturenames:
        _drop_keyspace(request.getfixturevalue("stack").cassandra, name)


@pytest.fixture
def zk_root() -> str:
    """A ZooKeeper path that no other test uses; the test makes it."""
    return f"/test/{uuid.uuid4().hex}"


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> Iterator[str]:
    """What the names of the test's Kafka topics begin with; those topics are deleted afterwards."""
    prefix = f"t-{uuid.uuid4().hex}"
    yield prefix
    if "stack" in request.fixturenames:
        with ThreadPoolExecutor(1) as pool:  # a thread without an event loop of its own
            pool.submit(asyncio.run, _delete_topics(request.getfixturevalue("stack").kafka, prefix)).result()


def _drop_keyspace(contact_point: str, name: str) -> None:
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import WhiteListRoundRobinPolicy

    host, _, port = contact_point.rpartition(":")
    profile = ExecutionProfile(load_balancing_policy=WhiteListRoundRobinPolicy([host]), request_timeout=30)
    cluster = Cluster([host], port=int(port), execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=4)
    cluster.schema_metadata_enabled = False
    try:
        cluster.connect().execute(f"DROP KEYSPACE IF EXISTS {name}")
    finally:
        cluster.shutdown()


async def _delete_topics(bootstrap: str, prefix: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        mine = [topic for topic in await admin.list_topics() if topic.startswith(prefix)]
        if mine:
            await admin.delete_topics(mine)
    finally:
        await admin.close()
