"""Real processes under test: `bucketsched` as children, watched by what they say, ended by their process id.

A `Cluster` is one migrated cluster with names of its own on servers that others use too. Its processes run until it is
closed; tests start, kill and pause them. What they log is kept in files and printed for a test that fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
from aiokafka.admin import AIOKafkaAdminClient
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tools.stack import Addresses

from bucketsched import Client, CreatedTask, TaskInfo, TaskState
from bucketsched.adapters.cassandra.catalog import CassandraCatalog
from bucketsched.adapters.cassandra.checkpoints import CassandraCheckpointStore
from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.adapters.cassandra.store import CassandraTaskStore
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.app import migrate
from bucketsched.config import Settings, load
from bucketsched.core import task_id as ids
from bucketsched.core.catalog import DEFAULT_NAMESPACE
from bucketsched.core.checkpoint import NO_OFFSET, Checkpoint
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.task import BUCKET_MS, Priority, TaskBody, TaskRow

COMMAND = str(Path(sys.executable).with_name("bucketsched"))
DEADLINE_S = 40.0
"""How long something may take that takes a second on an idle machine."""
LOOK_S = 0.02
ALL_ROLES = "api,poller,coordinator,deliver"
TAIL_LINES = 80
QUICK = {
    "zookeeper.session_timeout_ms": 1_000,
    "poller.rescan_interval_ms": 1_000,
    "poller.mark_interval_ms": 300,
    "poller.checkpoint_interval_ms": 500,
}
"""Settings with which things happen sooner than in production."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def until(condition: Callable[[], object], what: str, within_s: float = DEADLINE_S) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        await asyncio.sleep(LOOK_S)


async def until_ms(instant_ms: int) -> None:
    """Waits for an instant."""
    await asyncio.sleep(max(0, instant_ms - now_ms()) / 1000)
    await until(lambda: now_ms() >= instant_ms, "the clock went back")


async def until_state(client: Client, task: CreatedTask, state: TaskState) -> TaskInfo:
    """Waits until the store shows a task in this state."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := await client.get(task.id)).state is not state:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(LOOK_S)
    return found


class Process:
    """A child. Its stdout and stderr go to files named after it."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        base = {key: value for key, value in os.environ.items() if not key.startswith("BUCKETSCHED_")}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._child = subprocess.Popen(
                [COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=base | environment,
                cwd=folder,
            )
        self._read_to, self._events = 0, list[dict[str, Any]]()
        self.shown = 0

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs; -9 after SIGKILL."""
        return self._child.poll()

    def out(self) -> str:
        return self._out.read_text()

    def err(self) -> str:
        return self._err.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under this name so far, in order."""
        text = self._err.read_bytes()
        end = text.rfind(b"\n") + 1
        lines, self._read_to = text[self._read_to : end].splitlines(), end
        self._events += [json.loads(line) for line in lines if line.startswith(b"{")]
        return [event for event in self._events if event["event"] == name]

    async def ended(self, within_s: float = DEADLINE_S) -> int:
        """Waits for its end; the exit code."""
        await until(lambda: self.code is not None, f"the end of {self.name}", within_s)
        assert self.code is not None
        return self.code

    async def ready(self) -> str:
        """Waits until it says that it is ready, and its health service too; the address."""
        await until(lambda: self.out() or self.code is not None, f"{self.name} is ready")
        assert self.code is None, f"{self.name} ended with {self.code}: {self.err()[-2000:]}"
        await until(lambda: self.out().endswith("\n"), f"{self.name} said its address")
        address = self.address
        async with grpc.aio.insecure_channel(address) as channel:
            check = health_pb2_grpc.HealthStub(channel).Check
            answer = await check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=DEADLINE_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        return str(address)

    @property
    def address(self) -> str:
        """host:port of a process that is ready."""
        return str(json.loads(self.out())["address"])

    def signal(self, number: signal.Signals) -> None:
        if self.code is None:
            self._child.send_signal(number)

    async def kill(self) -> None:
        """As by kill -9, and waits for its end."""
        self.signal(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    async def terminate(self) -> int:
        """Asks it to stop, and waits; the exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Whatever state it is in."""
        if self.code is None:
            self._child.kill()
            self._child.wait()

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Resident memory now, or of its peak (VmHWM)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"{self.name} has no {field}")

    def show(self) -> None:
        """Prints what it logged since the last time."""
        text = self.err()
        fresh, self.shown = text[self.shown :].splitlines(), len(text)
        if fresh:
            print(f"--- {self.name} (pid {self.pid}, exit code {self.code}), the last {TAIL_LINES} lines of its log")
            print("\n".join(fresh[-TAIL_LINES:]))


@dataclass
class Rows:
    """Writes rows as an api does, but tells no owner."""

    store: CassandraTaskStore
    namespace_id: bytes
    shards: int

    def made(self, due_ms: int, queue: str, payload: bytes = b"x", shard: int | None = None) -> TaskRow:
        """A row that nobody has stored yet."""
        bits = secrets.randbits(ids.RANDOM_BITS)
        task_id = ids.mint(due_ms, bits % self.shards if shard is None else shard, bits)
        body = TaskBody(DEFAULT_NAMESPACE, queue, "t", payload, {}, Priority.NORMAL, due_ms, due_ms)
        return TaskRow(due_ms, self.namespace_id, task_id, body)

    async def insert(self, rows: Sequence[TaskRow]) -> list[CreatedTask]:
        """The tasks that they are from now on."""
        answers = await self.store.insert(rows)
        assert answers == [None] * len(rows), next(answer for answer in answers if answer is not None)
        return [CreatedTask(ids.text(row.task_id), row.due_ms) for row in rows]


class Cluster:
    """A cluster of its own. `constants` as for `admin migrate`; the settings are QUICK."""

    def __init__(self, stack: Addresses, folder: Path, **constants: int) -> None:
        self.folder, self.prefix = folder, f"t-{uuid4().hex}"
        self.kafka = stack.kafka
        self._keyspace, self._cassandra = f"t_{uuid4().hex}", stack.cassandra
        names = {"cassandra": {"keyspace": self._keyspace}, "zookeeper": {"root": f"/test/{self._keyspace}"}}
        self.settings: Settings = load(str(stack.settings), names)
        self.config = folder / "settings.toml"
        self.config.write_text(_toml(_with_names(stack.settings, names)))
        self.processes: list[Process] = []
        self.constants: ClusterConstants = in_thread(lambda: migrate(self.settings, **constants).constants)

    def start(
        self,
        name: str,
        roles: str = ALL_ROLES,
        failpoint: str = "",
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> Process:
        """Starts a node. `settings`: section__key."""
        given = {"node.grpc_address": "127.0.0.1:0", "node.internal_address": "127.0.0.1:0", "log.format": "json"}
        given["node.metrics_address"] = "127.0.0.1:0"
        given["log.level"] = "debug"  # what is taken and released is told range by range
        changed = {key.replace("__", "."): value for key, value in settings.items()}
        pairs = [f"--set={key}={json.dumps(value)}" for key, value in (QUICK | given | changed).items()]
        arguments = ["node", "--output", "json", "--config", str(self.config), "--roles", roles, *pairs]
        variables = dict(environment or {}) | ({"BUCKETSCHED_FAILPOINT": failpoint} if failpoint else {})
        process = Process(f"{len(self.processes):02}-{name}", arguments, self.folder, variables)
        self.processes.append(process)
        return process

    def taken(self) -> dict[int, tuple[int, Process]]:
        """Epoch and process of the last taking of each range, as the processes say."""
        found: dict[int, tuple[int, Process]] = {}
        for process in self.processes:
            for event in process.events("range taken"):
                if event["epoch"] > found.get(event["range"], (0, process))[0]:
                    found[event["range"]] = event["epoch"], process
        return found

    def ranges_of(self, process: Process) -> set[int]:
        """The ranges that it took last."""
        return {range_id for range_id, (_, owner) in self.taken().items() if owner is process}

    async def settled(self, *owners: Process) -> None:
        """Waits until every range is owned by one of these, and each of these owns one."""

        def settled() -> bool:
            for owner in owners:
                assert owner.code is None, f"{owner.name} ended with {owner.code}"
            taken = {owner.name for _, owner in self.taken().values()}
            return len(self.taken()) == self.constants.ranges and taken == {owner.name for owner in owners}

        await until(settled, f"all ranges are owned by {', '.join(owner.name for owner in owners)}")

    @asynccontextmanager
    async def rows(self) -> AsyncIterator[Rows]:
        """The rows, past all processes."""
        session = await CassandraSession.connect(self.settings.cassandra)
        try:
            namespace = await (await CassandraCatalog.open(session)).get_namespace(DEFAULT_NAMESPACE)
            assert namespace is not None
            retention_ms = self.constants.retention_ms
            store = await CassandraTaskStore.open(session, self.settings.cassandra, SystemClock(0), retention_ms)
            yield Rows(store, namespace.namespace_id, self.constants.shards)
        finally:
            await session.close()

    @asynccontextmanager
    async def checkpoints(self) -> AsyncIterator[CassandraCheckpointStore]:
        """The progress of its ranges."""
        session = await CassandraSession.connect(self.settings.cassandra)
        try:
            yield await CassandraCheckpointStore.open(session)
        finally:
            await session.close()

    async def backdate(self, buckets: int) -> None:
        """As if it had been migrated so many minutes ago: whoever takes a range first finds those buckets open."""
        first = now_ms() // BUCKET_MS - buckets
        async with self.checkpoints() as checkpoints:
            for range_id in range(self.constants.ranges):
                checkpoint = Checkpoint(0, 1, self.constants.journal_name, 0, NO_OFFSET, b"", first)
                await checkpoints.save(range_id, checkpoint)

    async def closed(self, bucket: int) -> None:
        """Waits until every range has closed this bucket, and says so in its checkpoint."""
        deadline = time.monotonic() + DEADLINE_S
        async with self.checkpoints() as checkpoints:
            while True:
                found = [await checkpoints.load(range_id) for range_id in range(self.constants.ranges)]
                if all(checkpoint and checkpoint.first_open_bucket > bucket for checkpoint in found):
                    return
                assert time.monotonic() < deadline, f"bucket {bucket} is not closed: {found}"
                await asyncio.sleep(LOOK_S)

    def show_logs(self) -> None:
        """Prints what all processes logged since the last time."""
        for process in self.processes:
            process.show()

    def close(self) -> None:
        """Ends its processes and drops what it has on the servers."""
        for process in self.processes:
            process.end()
        in_thread(lambda: asyncio.run(self._delete_topics()))
        in_thread(self._drop_keyspace)

    async def _delete_topics(self) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka)
        await admin.start()
        try:
            marks = self.prefix, self.constants.cluster_id.hex[:8], str(self.constants.cluster_id)
            mine = [topic for topic in await admin.list_topics() if any(mark in topic for mark in marks)]
            if mine:
                await admin.delete_topics(mine)
        finally:
            await admin.close()

    def _drop_keyspace(self) -> None:
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, ExecutionProfile
        from cassandra.cluster import Cluster as Driver

        host, _, port = self._cassandra.rpartition(":")
        profiles = {EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=30)}
        driver = Driver([host], port=int(port), execution_profiles=profiles, protocol_version=4)
        driver.schema_metadata_enabled = False
        try:
            driver.connect().execute(f"DROP KEYSPACE IF EXISTS {self._keyspace}")
        finally:
            driver.shutdown()


def in_thread(work: Callable[[], Any]) -> Any:
    """The result of work that needs a thread without an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _with_names(path: Path, names: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    sections = tomllib.loads(path.read_text())
    return {name: sections.get(name, {}) | names.get(name, {}) for name in sections | names}


def _toml(sections: dict[str, dict[str, Any]]) -> str:
    def lines() -> Iterator[str]:
        for section, values in sections.items():
            yield f"[{section}]"
            yield from (f"{key} = {json.dumps(value)}" for key, value in values.items())

    return "\n".join(lines()) + "\n"
