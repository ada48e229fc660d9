"""The open load, and what follows a recorder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, cast

import pytest
from bench.arrivals import LINE_ARRIVALS_MAX, Arrivals
from bench.lateness import Arrival
from bench.load import create_ahead, due_times, now_ms
from bench.processes import Child, ChildFailed
from bench.recording import Recording

from bucketsched import Client, CreatedTask, NewTask
from bucketsched.errors import Unavailable


class FakeClient:
    """Accepts what is due at an even millisecond. `slow` calls stay open until `go` is set."""

    def __init__(self, slow: int = 0, count: int = 0) -> None:
        self.calls: list[tuple[int, list[int]]] = []
        self.go, self.called_for_all = asyncio.Event(), asyncio.Event()
        self._slow, self._count = slow, count

    async def create_many(self, tasks: Iterable[NewTask]) -> list[CreatedTask | Unavailable]:
        due = [round(task.due.timestamp() * 1000) for task in tasks if task.due]
        self.calls.append((now_ms(), due))
        if sum(len(batch) for _, batch in self.calls) == self._count:
            self.called_for_all.set()
        if len(self.calls) <= self._slow:
            await self.go.wait()
        return [Unavailable("odd") if ms % 2 else CreatedTask(f"id-{ms}", ms) for ms in due]


def test_due_times_are_ordered_within_their_time_and_repeatable() -> None:
    due = due_times(1_000, 2.0, 500, seed=3)
    assert due == sorted(due) == due_times(1_000, 2.0, 500, seed=3)
    assert len(due) == 500
    assert 1_000 <= due[0] < 1_100
    assert 2_900 <= due[-1] < 3_000


async def test_tasks_are_created_at_their_pace_ahead_of_time() -> None:
    client = FakeClient()
    start = now_ms() + 300
    due = [start + 2 * i - start % 2 for i in range(200)]
    creation = await create_ahead(cast(Client, client), "q", due, lead_ms=250)
    assert sorted(creation.due_ms.values()) == due
    assert creation.acknowledged_late == 0
    assert len(client.calls) > 3
    for at_ms, batch in client.calls:
        assert at_ms >= batch[-1] - 250


async def test_a_slow_create_does_not_hold_up_the_others() -> None:
    client = FakeClient(slow=1, count=20)
    start = now_ms() + 100
    due = [start - start % 2 + 20 * i for i in range(20)]
    creating = asyncio.create_task(create_ahead(cast(Client, client), "q", due, lead_ms=100))
    await asyncio.wait_for(client.called_for_all.wait(), 10)
    assert not creating.done()
    client.go.set()
    creation = await creating
    assert len(creation.due_ms) == len(due)
    assert creation.acknowledged_late >= len(client.calls[0][1])


async def test_refused_creates_are_told() -> None:
    even = now_ms() // 2 * 2
    creation = await create_ahead(cast(Client, FakeClient()), "q", [even, even + 1], lead_ms=1_000)
    assert list(creation.due_ms.values()) == [even]
    assert creation.errors == ["odd"]


class FakeRecorder:
    """Says what it is given; ends when given None."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[Any] = asyncio.Queue()

    async def line(self, timeout_s: float) -> Any:
        line = await self.lines.get()
        if line is None:
            raise ChildFailed("the recorder ended")
        return line

    def say(self, *ids: str) -> None:
        self.lines.put_nowait([[task_id, 7] for task_id in ids])


async def recording_of(recorder: FakeRecorder) -> Recording:
    recorder.lines.put_nowait("ready")
    return await Recording.of(cast(Child, recorder))


async def test_waits_for_all_that_should_come() -> None:
    recorder = FakeRecorder()
    recording = await recording_of(recorder)
    waiting = asyncio.create_task(recording.all_of(["a", "b"], 10))
    recorder.say("a", "x")
    await asyncio.sleep(0.01)
    assert not waiting.done()
    recorder.say("b")
    assert await waiting
    assert recording.arrivals == [Arrival("a", 7), Arrival("x", 7), Arrival("b", 7)]
    await recording.close()


async def test_says_what_is_missing_when_the_time_is_up() -> None:
    recorder = FakeRecorder()
    recording = await recording_of(recorder)
    recorder.say("a")
    assert not await recording.all_of(["a", "b", "c"], 0.05)
    assert recording.missing(["a", "b", "c"]) == 2
    await recording.close()


async def test_a_recorder_that_ends_ends_the_waiting() -> None:
    recorder = FakeRecorder()
    recording = await recording_of(recorder)
    recorder.lines.put_nowait(None)
    with pytest.raises(ChildFailed):
        await recording.all_of(["a"], 10)
    with pytest.raises(ChildFailed):
        await recording.settle(10)
    await recording.close()


async def test_quiet_waits_until_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.recording.QUIET_S", 0.1)
    recorder = FakeRecorder()
    recording = await recording_of(recorder)
    recorder.say("a")
    asyncio.get_running_loop().call_later(0.15, recorder.say, "b")
    await recording.quiet()
    assert recording.count == 2
    recording.forget()
    assert recording.count == 0
    await recording.close()


def test_arrivals_are_written_in_order_in_bounded_lines(capsys: pytest.CaptureFixture[str]) -> None:
    arrivals = Arrivals()
    arrivals.write_all()
    arrivals.ready()
    for number in range(LINE_ARRIVALS_MAX + 1):
        arrivals.add(str(number), number)
    arrivals.write_all()
    ready, first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert ready == "ready"
    assert [item[1] for item in first] == list(range(LINE_ARRIVALS_MAX))
    assert second == [[str(LINE_ARRIVALS_MAX), LINE_ARRIVALS_MAX]]
