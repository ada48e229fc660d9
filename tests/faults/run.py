"""One run: start, load and faults, drain, look, judge."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError
from bench.processes import Child, Children
from tests.faketime import FakeClock, library
from tools.stack import DEFAULT_FOLDER, Layout, Stack, own_stack

from bucketsched import Client, QueueKind
from bucketsched.core.cluster import ClusterConstants
from bucketsched.errors import BucketschedError

from . import assembling
from .checker import check
from .cluster import ROLES, Rig, having
from .ending import journal_sections, read_rows, read_topics
from .history import HistoryReader, HistoryWriter, now_ms
from .injection import Injection
from .load import LoadConfig
from .model import Outcome
from .outside import message_event
from .report import summary
from .scenarios import Scenario
from .schedule import GAP_S_MEAN, OPTIONAL, Fault, Kind, Targets, draw
from .tasks import Violation

FOLDER = DEFAULT_FOLDER / "faults"
KAFKA_QUEUES = {"orders": 4, "mails": 2}
"""Queues and the partitions of their topics."""
WORKER_QUEUE = "jobs"
READY_S_MAX = 120.0
LOAD_END_S_MAX = 120.0
FSCK_S_MAX = 120.0
FSCK_TRIES = 4
DIFFERENCES, UNREACHED = 1, 5
"""The exit codes of an fsck that has found some, and of one that servers did not answer in time."""
DRAIN_S_MAX = 90.0
"""How long after the end of the load what was acknowledged may take to come: then it is lost."""
LOOK_S = 0.5
QUIET_S = 3.0
"""How long is waited for what must not come."""
BUCKET_MS = 60_000
VIOLATIONS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Order:
    """What to run. `repeat`: the command that does it again. `scenario` None: faults are drawn from the seed, `gap_s`
    apart on average.
    """

    seed: int
    seconds: float
    rate: float
    brokers: int
    repeat: str
    keep: bool = False
    scenario: Scenario | None = None
    gap_s: float = GAP_S_MEAN


@dataclass(slots=True)
class Result:
    """The JSON line and what was found."""

    line: dict[str, Any]
    violations: list[Violation]
    folder: Path
    problems: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing was found, and the run itself did what it should."""
        return not (self.violations or self.problems)


def say(line: str) -> None:
    """Progress for people."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


@asynccontextmanager
async def servers(brokers: int, folder: Path | None = None) -> AsyncIterator[Stack]:
    """Servers of the rig's own, for one run after the other, or those that run in `folder`. Raises StackError."""
    layout = Layout(cassandra_nodes=3, kafka_brokers=brokers, fronted=True)
    if folder is not None:
        yield Stack(folder, say, layout)
        return
    manager = own_stack(say, layout)
    stack = await asyncio.to_thread(manager.__enter__)
    try:
        yield stack
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def perform(order: Order, stack: Stack) -> Result:
    """A whole run. Raises ChildFailed."""
    name = f"{order.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = FOLDER / name
    folder.mkdir(parents=True)
    result = await _on(stack, folder, order)
    if not result.clean or order.keep:
        await asyncio.to_thread(_keep_logs, stack, folder)
    else:
        shutil.rmtree(folder)
    return result


def _keep_logs(stack: Stack, folder: Path) -> None:
    for server in stack.servers:
        if server.log.exists():
            shutil.copy(server.log, folder / f"{server.name}.log")


async def _on(stack: Stack, folder: Path, order: Order) -> Result:
    history = HistoryWriter(folder / assembling.FAULTS)
    async with Children(folder) as children:
        names = order.scenario.nodes if order.scenario else tuple(ROLES)
        faults = faults_of(order, targets_of(stack, names))
        rig = Rig(stack, f"faults_{secrets.token_hex(6)}", names, folder, children, history)
        jumping = {fault.target for fault in faults if fault.kind is Kind.CLOCK_JUMP}
        rig.clocks = {name: FakeClock(folder / name) for name in jumping}
        try:
            await rig.open()
            say("the cluster is ready")
            result = await _Run(rig, folder, order, faults).whole()
            try:
                await rig.drop()
            except (BucketschedError, KafkaError) as error:
                say(f"something of {rig.name} is left on the servers: {error!r}")
            return result
        finally:
            await rig.close()
            history.close()


def targets_of(stack: Stack, names: tuple[str, ...]) -> Targets:
    """What there is to break."""
    pollers, servers = having("poller", names), [server.name for server in stack.servers]
    links = [(name, server) for name in names for server in servers]
    links += [(name, stack.zookeeper.name) for name in pollers] * 2
    links += [(api, poller) for api in having("api", names) for poller in pollers]
    extra = OPTIONAL if clocks_can_be_faked() else OPTIONAL - {Kind.CLOCK_JUMP}
    return Targets(names, tuple(pollers), tuple(having("coordinator", names)), tuple(servers), tuple(links), extra)


def clocks_can_be_faked() -> bool:
    """Whether libfaketime is installed."""
    try:
        return bool(library())
    except FileNotFoundError:
        return False


def faults_of(order: Order, targets: Targets) -> list[Fault]:
    """Those of the scenario, or of the seed."""
    return order.scenario.faults(targets) if order.scenario else draw(order.seed, order.seconds, targets, order.gap_s)


class _Run:
    """The phases of a run."""

    def __init__(self, rig: Rig, folder: Path, order: Order, faults: list[Fault]) -> None:
        self._rig, self._folder, self._order, self._faults = rig, folder, order, faults
        self._settings = rig.settings
        self._end = HistoryWriter(folder / assembling.END)
        self._topics: list[str] = []
        self._problems: list[str] = []
        self._start_ms = 0

    async def whole(self) -> Result:
        await self._make_queues()
        children = self._rig.children
        bootstrap, addresses = self._settings.kafka.bootstrap, ",".join(self._rig.api_addresses)
        recorder = await self._outside(children, "messages", assembling.MESSAGES, bootstrap, *self._topics)
        worker = await self._outside(children, "deliveries", assembling.DELIVERIES, addresses, WORKER_QUEUE)
        await self._load_and_faults()
        await self._drain()
        await self._fsck()
        for child in (worker, recorder):
            await children.end(child)
        self._problems += [f"{name} did not end in order" for name in await self._rig.stop_nodes()]
        await self._read_end()
        say("checking")
        figures, violations = judge(self._folder)
        head = {"seed": self._order.seed, "seconds": self._order.seconds, "brokers": self._order.brokers}
        line = {**head, **figures, "problems": self._problems}
        if scenario := self._order.scenario:
            late_ms = max((entry["worst_late_ms"] for entry in line["by_fault"].values()), default=0)
            late_ms_max = scenario.late_ms_max + line["calm_late_ms"]
            line |= {"scenario": scenario.about, "fault_late_ms": late_ms, "fault_late_ms_max": late_ms_max}
            if late_ms > late_ms_max:
                self._problems.append(f"{late_ms} ms late under faults, allowed are {late_ms_max} ms")
        return Result(line, violations, self._folder, self._problems)

    async def _make_queues(self) -> None:
        async with Client(",".join(self._rig.api_addresses)) as client:
            for name, partitions in KAFKA_QUEUES.items():
                await client.create_queue(
                    name, QueueKind.KAFKA, topic=f"{self._rig.name}-{name}", partitions=partitions
                )
            await client.create_queue(WORKER_QUEUE, partitions=3)
            self._topics = [queue.topic for queue in await client.list_queues() if queue.topic]

    async def _outside(self, children: Children, kind: str, file: str, *arguments: str) -> Child:
        path = str(self._folder / file)
        child = await children.start(kind, "tests.faults.outside", kind, path, *arguments)
        await child.line(READY_S_MAX)
        return child

    async def _load_and_faults(self) -> None:
        order = self._order
        self._start_ms = now_ms() + 2_000
        config = LoadConfig(
            self._rig.api_addresses,
            [*KAFKA_QUEUES, WORKER_QUEUE],
            str(self._folder / assembling.LOAD),
            order.seed,
            order.rate,
            order.seconds,
            self._start_ms,
        )
        child = await self._rig.children.start("load", "tests.faults.load", config.text())
        await child.line(READY_S_MAX)
        say(f"{order.seconds:.0f} s of load and {len(self._faults)} faults begin")
        injection = Injection(self._rig, say)
        await injection.run(self._faults)
        self._problems += injection.problems + self._rig.crashes
        say("all faults are healed")
        if down := await self._rig.running(READY_S_MAX):
            self._problems.append(f"not running after all faults: {', '.join(down)}")
        await child.line(order.seconds + LOAD_END_S_MAX)
        await self._rig.children.end(child)

    async def _drain(self) -> None:
        """Returns when everything that was acknowledged and not cancelled has come, or its time is up."""
        left, missing = _Left(self._folder), set[str]()
        for _ in range(int(DRAIN_S_MAX / LOOK_S)):
            if not (missing := left.missing()):
                break
            await asyncio.sleep(LOOK_S)
        say(f"{len(missing)} have not come" if missing else "everything has come")
        await asyncio.sleep(QUIET_S)

    async def _fsck(self) -> None:
        """What the product itself finds, while it runs."""
        for _ in range(FSCK_TRIES):
            order = ("admin", "fsck", "--output", "json")
            code, printed, complained = await self._rig.command(*order, timeout_s=FSCK_S_MAX)
            if code != UNREACHED:
                break
        if code not in (0, DIFFERENCES):
            self._problems.append(f"fsck ended with code {code}: {complained.strip()[-300:]}")
            return
        for found in json.loads(printed)["differences"]:
            text = f"{found['kind']}: generation {found['generation']}, {found['detail']}"
            self._end.note({"e": "difference", "id": found["task_id"], "text": text})

    async def _read_end(self) -> None:
        say("reading topics, journal and rows")
        constants, writer = self._rig.constants, self._end
        cluster = ClusterConstants(constants["cluster_id"], constants["shards"], constants["ranges"])
        found = await read_topics(self._settings.kafka.bootstrap, [*self._topics, cluster.journal_name])
        for section in journal_sections(found.pop(cluster.journal_name)):
            writer.note(assembling.section_event(section))
        for topic, records in found.items():
            for partition, record in records:
                writer.note(message_event(record, (topic, partition), None))
        first, last = self._start_ms // BUCKET_MS - 2, now_ms() // BUCKET_MS + 2
        for row in await read_rows(self._settings, cluster, first, last):
            writer.note(assembling.row_event(row))
        writer.close()


def judge(folder: Path) -> tuple[dict[str, Any], list[Violation]]:
    """The figures of a run that has left its history there, and what is wrong with it."""
    history = assembling.assemble(folder, frozenset({WORKER_QUEUE}))
    violations = check(history)
    return summary(history, violations), violations


class _Left:
    """Follows the files of a run to know what has still to come."""

    def __init__(self, folder: Path) -> None:
        names = (assembling.LOAD, assembling.MESSAGES, assembling.DELIVERIES)
        self._load, self._messages, self._deliveries = (HistoryReader(folder / name) for name in names)
        self._asked: dict[int, tuple[str, str, str]] = {}
        self._wanted: dict[str, str] = {}
        self._cancelled: set[str] = set()
        self._came: set[str] = set()
        self._delivered: set[str] = set()

    def missing(self) -> set[str]:
        """Tasks that were acknowledged, surely not cancelled, and have not come."""
        for event in self._load.fresh():
            if event["e"] == "start":
                self._asked[event["n"]] = (event["op"], event["id"], event.get("queue", ""))
                continue
            op, task_id, queue = self._asked.pop(event["n"])
            task_id = event.get("id", task_id)
            if op == "create" and event["outcome"] == Outcome.OK:
                self._wanted[task_id] = queue
            if op == "cancel" and event["outcome"] in (Outcome.CANCELLED, Outcome.UNKNOWN):
                self._cancelled.add(task_id)
        self._came.update(event["dispatch"][0] for event in self._messages.fresh())
        self._delivered.update(event["dispatch"][0] for event in self._deliveries.fresh())
        return {
            task_id
            for task_id, queue in self._wanted.items()
            if task_id not in self._cancelled
            and task_id not in (self._delivered if queue == WORKER_QUEUE else self._came)
        }


def show(result: Result, order: Order) -> None:
    """Violations for people, the JSON line for machines."""
    for violation in result.violations[:VIOLATIONS_SHOWN]:
        say(f"{violation.kind}: {violation.task_id} {violation.text}")
    for problem in result.problems:
        say(f"problem: {problem}")
    if result.folder.exists():
        (result.folder / "violations.json").write_text(
            json.dumps([[each.kind, each.task_id, each.text] for each in result.violations], indent=1)
        )
        say(f"the history is in {result.folder}")
    if not result.clean:
        say(f"again: {order.repeat}")
    say(", ".join(f"{name} {count}" for name, count in result.line["outcomes"].items()))
    print(json.dumps(result.line, separators=(",", ":"), ensure_ascii=False), flush=True)
