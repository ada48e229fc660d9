"""One outage: what is taken away, for how long, and what must come of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import permutations
from typing import Any

from tests.nodes import Cluster, Process, now_ms, until
from tests.outages.caller import Caller
from tests.workload import Workload
from tools.stack import Server, Stack

from bucketsched import CreatedTask, NewTask, Priority
from bucketsched.core import task_id as ids

LOADED_S = 3.0
"""How long before the outage the tasks that fall due in it are created: they are loaded by then."""
CREATE_EVERY_S = 0.25
CREATE_DELAY_S = 0.8
LATE_MS_MAX = 2_000
"""What need not wait for a server that is away is not later than this."""
RECOVERY_S_MAX = 20.0
CATCH_UP_S_MAX = 60.0
MEMORY_MIB_MAX = 150.0
"""What a process may grow by while tasks wait for a server; a 60 s backlog of 500/s takes a tenth of it."""
LINES_MAX = 60
"""Of one kind in one process's log: said 10 times in the first 10 minutes, for each of several causes."""


@dataclass(frozen=True)
class Outage:
    """`servers` go away `how` ("killed" or "paused") for `away_s`, and come back in that order."""

    name: str
    servers: tuple[str, ...]
    how: str
    away_s: float
    rate: float = 100.0
    """Tasks that fall due a second, created before."""


@dataclass
class Report:
    """What was seen. Milliseconds, seconds, MiB."""

    outage: str
    away_s: float
    loaded: int = 0
    loaded_late_ms_max: int = 0
    """Of those due while the servers were away."""
    created: int = 0
    refused: int = 0
    refused_with_retry_info: int = 0
    create_s_max: float = 0
    creates_again_s: float = -1
    """From the last server's return to the first create that was accepted; -1: there was no refusal."""
    caught_up_s: float = 0
    """From the last server's return until everything that was due had come."""
    new_on_time_s: float = 0
    """From the return until a fresh task came within a second of its due time."""
    cancels_refused: int = 0
    grown_mib: float = 0
    lines_max: int = 0
    noisiest: str = ""
    lost: int = 0
    twice: int = 0
    early: int = 0
    order: int = 0
    """Pairs of neighbours that came against (priority, due) order, of what waited for Kafka."""
    broken: list[str] = field(default_factory=list)

    def expect(self, holds: bool, promise: str) -> None:
        """Takes note of a promise that does not hold."""
        if not holds:
            self.broken.append(promise)

    def as_json(self) -> dict[str, Any]:
        """For a line."""
        return {name: round(v, 2) if isinstance(v, float) else v for name, v in asdict(self).items()}


ALL = ("zookeeper", "cassandra", "kafka")


def full_lengths(scale: float = 1.0) -> list[Outage]:
    """What the promises say."""
    one = [
        Outage(f"{server}-{how}", (server,), how, seconds * scale, rate)
        for server, seconds, rate in (("zookeeper", 120, 100), ("cassandra", 90, 100), ("kafka", 60, 500))
        for how in ("killed", "paused")
    ]
    orders = list(permutations(ALL))
    return one + [
        Outage(f"all-{how}-back-{'-'.join(order)}", order, how, 20 * scale, 50)
        for order, how in zip(orders, ("killed", "paused") * 3, strict=True)
    ]


class Trial:
    """Runs outages against one cluster, whose processes live through all of them."""

    def __init__(self, stack: Stack, cluster: Cluster, work: Workload) -> None:
        self._stack, self._cluster, self._work = stack, cluster, work
        self._processes: Sequence[Process] = [process for process in cluster.processes if process.code is None]

    async def run(self, outage: Outage) -> Report:
        """Never raises for a broken promise: the report says it."""
        report = Report(outage.name, outage.away_s)
        self._processes = [process for process in self._processes if process.code is None]
        before = {process.name: process.memory_mib() for process in self._processes}
        said = {process.name: len(process.err()) for process in self._processes}
        loaded = await self._load(outage)
        async with Caller(self._processes[0].address, self._work.queue) as caller:
            cancelled = (await self._create([outage.away_s + 30] * 3)) if "kafka" in outage.servers else []
            away_ms = await self._take_away(outage)
            refusing = asyncio.create_task(self._cancel_all(caller, cancelled, report, outage.away_s))
            await self._create_while(caller, away_ms + outage.away_s * 1000)
            await refusing
            self._note_creates(report, caller)
            back_ms, creating = now_ms(), asyncio.create_task(self._create_until_accepted(caller))
            await self._bring_back(outage)
            last_ms = now_ms()
            accepted_ms = await creating
            if report.refused:
                report.creates_again_s = max(0.0, (accepted_ms - last_ms) / 1000)
            tasks = [*loaded, *cancelled, *caller.accepted]
            await self._catch_up(report, tasks, last_ms)
            report.new_on_time_s = await self._on_time_again(caller, last_ms)
            await self._work.recorder.quiet()
            self._check_arrivals(report, [*tasks, *caller.accepted], caller.unknown)
        self._check_lateness(report, outage, loaded, away_ms, back_ms)
        if outage.servers == ("kafka",):
            report.order = self._misordered(away_ms, back_ms)
        self._check_processes(report, before, said)
        self._judge(report, outage)
        return report

    # ---- the servers

    def _server(self, name: str) -> Server:
        return self._stack.server(name)

    async def _take_away(self, outage: Outage) -> int:
        for name in outage.servers:
            server = self._server(name)
            await asyncio.to_thread(server.kill if outage.how == "killed" else server.pause)
        return now_ms()

    async def _bring_back(self, outage: Outage) -> None:
        for name in outage.servers:
            server = self._server(name)
            if outage.how == "paused":
                server.resume()
                await until(server.answers, f"{name} answers")
            else:
                await asyncio.to_thread(server.start)

    # ---- the load

    async def _load(self, outage: Outage) -> list[CreatedTask]:
        count = int(outage.rate * (outage.away_s + 2))
        first_s = LOADED_S + count / 2_000
        delays = [first_s + i / outage.rate for i in range(count)]
        tasks = await self._create(delays)
        await asyncio.sleep(max(0.0, (tasks[0].due_ms - now_ms()) / 1000 - 0.5))
        return tasks

    async def _create(self, delays_s: Sequence[float]) -> list[CreatedTask]:
        """One in four is of high, one of low priority."""
        ranks = (Priority.HIGH, Priority.NORMAL, Priority.NORMAL, Priority.LOW)
        wanted = [
            NewTask("t", b"x" * 200, self._work.queue, delay=delay, priority=ranks[number % 4])
            for number, delay in enumerate(delays_s)
        ]
        created = await self._work.client.create_many(wanted)
        tasks = [task for task in created if isinstance(task, CreatedTask)]
        assert len(tasks) == len(wanted), created[:3]
        return tasks

    async def _create_while(self, caller: Caller, until_ms: float) -> None:
        creating: set[asyncio.Task[bool]] = set()
        while now_ms() < until_ms:
            creating.add(asyncio.create_task(caller.create(CREATE_DELAY_S)))
            await asyncio.sleep(CREATE_EVERY_S)
            creating = {task for task in creating if not task.done()}
        await asyncio.gather(*creating)

    async def _create_until_accepted(self, caller: Caller) -> int:
        """The instant."""
        while not await caller.create(CREATE_DELAY_S):  # noqa: ASYNC110 - it asks a server
            await asyncio.sleep(0.05)
        return now_ms()

    async def _cancel_all(self, caller: Caller, tasks: list[CreatedTask], report: Report, away_s: float) -> None:
        """Without Kafka a cancel is refused, and the task goes on as if nobody had asked."""
        if tasks:
            await asyncio.sleep(min(2.0, away_s / 2))
        for task in tasks:
            report.cancels_refused += await caller.cancel_is_refused(task.id)
        report.expect(report.cancels_refused == len(tasks), "a cancel without Kafka is UNAVAILABLE")

    def _note_creates(self, report: Report, caller: Caller) -> None:
        report.created, report.refused = len(caller.accepted), caller.refused
        report.refused_with_retry_info, report.create_s_max = caller.with_retry_info, caller.seconds_max

    # ---- what came of it

    async def _catch_up(self, report: Report, tasks: list[CreatedTask], back_ms: int) -> None:
        """All that is due by now, and the rest as it falls due."""
        due = [task for task in tasks if task.due_ms <= now_ms()]
        try:
            await self._work.recorder.until_all(due, CATCH_UP_S_MAX)
            report.caught_up_s = max(0.0, (now_ms() - back_ms) / 1000)
            left_s = max((task.due_ms for task in tasks), default=0) / 1000 - time.time()
            await self._work.recorder.until_all(tasks, max(0.0, left_s) + CATCH_UP_S_MAX)
        except AssertionError as error:
            report.broken.append(f"everything comes: {error}")

    async def _on_time_again(self, caller: Caller, back_ms: int) -> float:
        """Tasks are created until one of them comes in time."""
        deadline = time.monotonic() + RECOVERY_S_MAX
        while time.monotonic() < deadline:
            known = len(caller.accepted)
            if await caller.create(0.5):
                task = caller.accepted[known]
                await self._work.recorder.until_all([task])
                if self._work.recorder.of(task).late_ms < 1_000:
                    return max(0.0, (task.due_ms - back_ms) / 1000)
        return RECOVERY_S_MAX

    def _check_arrivals(self, report: Report, tasks: list[CreatedTask], unknown: set[str]) -> None:
        """Since the trial began: earlier outages' tasks are among what was seen."""
        seen = self._work.recorder.seen
        counts = Counter(one.event.task_id for one in seen)
        report.lost = len({task.id for task in tasks} - counts.keys())
        report.twice = sum(count > 1 for count in counts.values())
        report.early = sum(one.at_ms < one.event.due_ms for one in seen)

    def _check_lateness(
        self, report: Report, outage: Outage, loaded: list[CreatedTask], away_ms: int, back_ms: int
    ) -> None:
        meant = {task.id for task in loaded if away_ms <= task.due_ms < back_ms}
        late = [one.late_ms for one in self._work.recorder.seen if one.event.task_id in meant]
        report.loaded, report.loaded_late_ms_max = len(meant), max(late, default=0)
        report.expect(bool(meant), "tasks fall due while the servers are away")
        if "kafka" not in outage.servers:
            report.expect(report.loaded_late_ms_max < LATE_MS_MAX, f"what is loaded comes within {LATE_MS_MAX} ms")

    def _misordered(self, away_ms: int, back_ms: int) -> int:
        """Neighbours of one range in one partition, of what was due while Kafka was away, against the promised order:
        each lane keeps it for its own ranges.

        A step of priority is worth as much as `poller.ageing_ms` of waiting.
        """
        ageing_ms = self._cluster.settings.poller.ageing_ms
        last: dict[object, int] = {}
        wrong = 0
        for one in self._work.recorder.seen:
            if away_ms + 1_000 <= one.event.due_ms < back_ms - 1_000 and one.event.due_ms + 1_000 < one.at_ms:
                key = one.event.due_ms + ageing_ms * one.event.priority
                shard = ids.shard_in(ids.parse(one.event.task_id, self._cluster.constants.shards))
                place = (one.partition, self._cluster.constants.range_of(shard))
                wrong += key < last.get(place, 0)
                last[place] = key
        return wrong

    def _check_processes(self, report: Report, before: dict[str, float], said: dict[str, int]) -> None:
        for process in self._processes:
            report.expect(process.code is None, f"{process.name} lives")
            if process.code is not None:
                continue
            report.grown_mib = max(report.grown_mib, process.memory_mib("VmHWM") - before[process.name])
            fresh = process.err()[said[process.name] :].splitlines()
            kinds = Counter(
                line.partition('"event": "')[2].partition('"')[0] for line in fresh if '"debug"' not in line
            )
            name, count = kinds.most_common(1)[0] if kinds else ("", 0)
            if count > report.lines_max:
                report.lines_max, report.noisiest = count, name

    def _judge(self, report: Report, outage: Outage) -> None:
        report.expect(report.lost == 0, "nothing acknowledged is lost")
        report.expect(report.twice == 0, "nothing comes twice")
        report.expect(report.early == 0, "nothing comes early")
        report.expect(report.order == 0, "a backlog drains in (priority, due) order")
        report.expect(report.new_on_time_s < RECOVERY_S_MAX, "dispatch is on time again")
        report.expect(report.grown_mib < MEMORY_MIB_MAX, "memory stays bounded")
        report.expect(report.lines_max < LINES_MAX, "logs stay short")
        report.expect(report.refused == report.refused_with_retry_info, "UNAVAILABLE comes with RetryInfo")
        if "cassandra" in outage.servers:
            report.expect(report.refused > 0, "without Cassandra creates are refused")
        else:
            report.expect(report.refused == 0, "creates are accepted")
