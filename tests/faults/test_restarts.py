"""Processes that end by themselves are started again, and faults have their way with them meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.faults import cluster
from tests.faults.cluster import Node, Rig
from tests.faults.history import HistoryWriter

DEADLINE_S = 10.0
NO_PID = 1 << 30


class Child:
    """Stands for a process; ends when it is told to."""

    pid = NO_PID

    def __init__(self) -> None:
        self.code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, code: int) -> None:
        if not self.code.done():
            self.code.set_result(code)

    async def ended(self) -> int:
        return await asyncio.shield(self.code)

    async def kill(self) -> None:
        self.end(-9)


class Children:
    """Starts them as slowly as `may_start` says."""

    def __init__(self) -> None:
        self.started: list[Child] = []
        self.begun, self.may_start = asyncio.Event(), asyncio.Event()

    async def start(self, *_: str, env: dict[str, str]) -> Child:
        self.begun.set()
        await self.may_start.wait()
        self.started.append(Child())
        return self.started[-1]


async def test_who_is_killed_while_it_is_being_started_again_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "RESTART_S", 0)
    children, history = Children(), HistoryWriter(tmp_path / "history")
    children.may_start.set()
    stack: Any = SimpleNamespace(settings="settings.toml")
    rig = Rig(stack, "rig", ("api-1",), tmp_path, cast(Any, children), history)
    node = Node("api-1", "api", "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    await rig.start(node)
    children.may_start.clear()
    children.begun.clear()
    children.started[0].end(cluster.LAWFUL_EXITS[1])
    await asyncio.wait_for(children.begun.wait(), DEADLINE_S)
    killing = asyncio.create_task(rig.kill(node))
    await asyncio.sleep(0)
    children.may_start.set()
    await asyncio.wait_for(killing, DEADLINE_S)
    assert [child.code.done() for child in children.started] == [True, True]
    await asyncio.wait_for(rig.revive(node), DEADLINE_S)
    assert cast(Any, node.child) is children.started[-1]
    assert [child.code.done() for child in children.started] == [True, True, False]
    await rig.kill(node)
    history.close()
