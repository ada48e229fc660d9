"""What comes out: a plain `read_committed` consumer that writes down what it sees and when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from aiokafka import AIOKafkaConsumer
from tests.nodes import DEADLINE_S, now_ms, until

from bucketsched.core.message import TaskEvent, from_headers

QUIET_S = 0.3
POLL_MS = 50


class Expected(Protocol):
    """A created task."""

    @property
    def id(self) -> str: ...


@dataclass(slots=True)
class Seen:
    """One record: when it came, and what it says."""

    at_ms: int
    topic: str
    headers: dict[str, bytes]
    event: TaskEvent
    partition: int = 0

    @property
    def late_ms(self) -> int:
        """How long after its due time."""
        return self.at_ms - self.event.due_ms


@dataclass
class Recorder:
    """Reads topics from their beginning, in the background, while its `async with` block runs."""

    bootstrap: str
    topics: tuple[str, ...]
    seen: list[Seen] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        self._consumer = AIOKafkaConsumer(
            *self.topics,
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=POLL_MS,
        )
        await self._consumer.start()
        assigned = {place.topic for place in self._consumer.assignment()}
        assert assigned == set(self.topics), f"make the topics first: {assigned}"
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()

    async def _read(self) -> None:
        while True:
            records = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=5_000)
            at_ms = now_ms()
            for place, batch in records.items():
                self.seen += [
                    Seen(at_ms, place.topic, dict(r.headers), from_headers(r.headers, r.value), place.partition)
                    for r in batch
                ]
            await asyncio.sleep(0)

    async def until_all(self, tasks: Iterable[Expected], within_s: float = DEADLINE_S) -> None:
        """Waits until every one of these tasks has come at least once."""
        missing = {task.id for task in tasks}
        looked = 0

        def all_came() -> bool:
            nonlocal looked
            assert not self._reading.done(), self._reading
            fresh, looked = self.seen[looked:], len(self.seen)
            missing.difference_update(seen.event.task_id for seen in fresh)
            return not missing

        try:
            await until(all_came, "every task came", within_s)
        except AssertionError as error:
            raise AssertionError(f"{len(missing)} tasks are missing, such as {sorted(missing)[:3]}") from error

    async def quiet(self, seconds: float = QUIET_S) -> None:
        """Waits until nothing more has come for so long."""
        count = -1
        while count != len(self.seen):
            count = len(self.seen)
            await asyncio.sleep(seconds)

    def of(self, task: Expected) -> Seen:
        """The one record of this task."""
        [seen] = [seen for seen in self.seen if seen.event.task_id == task.id]
        return seen

    def check(self, tasks: Iterable[Expected]) -> None:
        """Exactly these tasks came, each once, and none early."""
        counts = Counter(seen.event.task_id for seen in self.seen)
        twice = [task_id for task_id, count in counts.items() if count > 1]
        assert not twice, f"{len(twice)} came twice, such as {[s for s in self.seen if s.event.task_id == twice[0]]}"
        early = [seen for seen in self.seen if seen.at_ms < seen.event.due_ms]
        assert not early, f"{len(early)} came early, such as {early[0]}"
        wanted = {task.id for task in tasks}
        assert counts.keys() == wanted, (f"{len(wanted - counts.keys())} lost", counts.keys() - wanted)

    async def exactly(self, tasks: Iterable[Expected], within_s: float = DEADLINE_S) -> None:
        """Waits for all of them, and then for more that must not come."""
        tasks = list(tasks)
        await self.until_all(tasks, within_s)
        await self.quiet()
        self.check(tasks)
