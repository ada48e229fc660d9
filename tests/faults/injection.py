"""Carries a schedule out: each fault in a task of its own, written down when it begins and when it has ended."""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tools.stack import Server, StackError

from .cluster import ChildFailed, Rig
from .history import now_ms
from .links import Mode, Rule
from .schedule import Fault, Kind

COMMAND_S_MAX = 30.0
SOME_SKIPPED = 4
"""Exit code of a rebalance that could not do all of it."""
UNDO_TRIES, UNDO_S = 5, 2.0
ROLLING_READY_S_MAX = 15.0
LINK_MODES = {Kind.CUT: Mode.CUT, Kind.HOLD: Mode.HOLD, Kind.DEAF: Mode.DEAF, Kind.SLOW: Mode.SLOW}


class Injection:
    """Breaks and heals. Faults that can't be carried out are written down as such, and not counted."""

    def __init__(self, rig: Rig, say: Callable[[str], None]) -> None:
        self._rig, self._say = rig, say
        self._work: dict[Kind, Callable[[Fault], Awaitable[None]]] = {
            Kind.KILL: self._kill,
            Kind.TERMINATE: self._terminate,
            Kind.PAUSE: self._pause,
            Kind.ROLLING_RESTART: self._rolling_restart,
            Kind.SERVER_KILL: self._server_kill,
            Kind.SERVER_PAUSE: self._server_pause,
            Kind.DISK_FULL: self._disk_full,
            Kind.REBALANCE: self._rebalance,
            Kind.DRAIN: self._drain,
            Kind.MIDDLE_OF_PLAN: self._middle_of_plan,
            Kind.CLOCK_JUMP: self._clock_jump,
            **dict.fromkeys(LINK_MODES, self._link),
        }
        self.problems: list[str] = []
        """Servers that did not come back."""

    async def run(self, faults: list[Fault]) -> None:
        """From now on; returns when the last one is healed."""
        begun = time.monotonic()
        async with asyncio.TaskGroup() as running:
            for fault in faults:
                await asyncio.sleep(max(0.0, begun + fault.at_s - time.monotonic()))
                running.create_task(self._one(fault))

    async def _one(self, fault: Fault) -> None:
        begin_ms, problem = now_ms(), ""
        about = {"kind": fault.kind, "target": fault.target, "amount": fault.amount}
        self._rig.history.note({"e": "fault-begin", **about, "t": begin_ms})
        self._say(f"  {fault.kind} {fault.target} for {fault.duration_s:g} s")
        try:
            await self._work[fault.kind](fault)
        except ChildFailed as failure:
            problem = str(failure)
        except StackError as failure:
            problem = str(failure)
            self.problems.append(f"{fault.kind} {fault.target}: {problem[:500]}")
        end = {"e": "fault", **about, "begin": begin_ms, "end": now_ms()}
        self._rig.history.note(end | ({"problem": problem} if problem else {}))

    # ---------------------------------------------------------------- processes

    async def _kill(self, fault: Fault) -> None:
        node = self._rig.nodes[fault.target]
        await self._rig.kill(node)
        await asyncio.sleep(fault.duration_s)
        await self._rig.revive(node)

    async def _terminate(self, fault: Fault) -> None:
        node = self._rig.nodes[fault.target]
        await self._rig.terminate(node)
        await asyncio.sleep(fault.duration_s)
        await self._rig.revive(node)

    async def _pause(self, fault: Fault) -> None:
        node = self._rig.nodes[fault.target]
        self._rig.signal(node, signal.SIGSTOP)
        await asyncio.sleep(fault.duration_s)
        self._rig.signal(node, signal.SIGCONT)

    async def _rolling_restart(self, fault: Fault) -> None:
        for name in fault.target.split(","):
            node = self._rig.nodes[name]
            await self._rig.terminate(node)
            await self._rig.revive(node)
            assert node.child is not None
            try:
                await node.child.line(ROLLING_READY_S_MAX)
            except ChildFailed:
                continue  # another fault keeps it from starting

    # ---------------------------------------------------------------- links and servers

    async def _link(self, fault: Fault) -> None:
        client, _, server = fault.target.partition(">")
        proxy = self._rig.proxies[server]
        proxy.break_(client, Rule(LINK_MODES[fault.kind], fault.amount))
        await asyncio.sleep(fault.duration_s)
        proxy.mend(client)

    def _server(self, fault: Fault) -> Server:
        return self._rig.stack.server(fault.target)

    async def _server_kill(self, fault: Fault) -> None:
        server = self._server(fault)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(fault.duration_s)
        await asyncio.to_thread(server.start)

    async def _server_pause(self, fault: Fault) -> None:
        server = self._server(fault)
        await asyncio.to_thread(server.pause)
        await asyncio.sleep(fault.duration_s)
        await asyncio.to_thread(server.resume)

    async def _disk_full(self, fault: Fault) -> None:
        """No file of the server can grow; then it is started again, as most end by themselves or stand still."""
        server = self._server(fault)
        if process := server.process:
            stop_growth(process.pid)
        await asyncio.sleep(fault.duration_s)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)

    # ---------------------------------------------------------------- administration

    async def _admin(self, *arguments: str) -> None:
        """Raises ChildFailed where the order could not be given, as when ZooKeeper is away."""
        code, _, complained = await self._rig.command("admin", *arguments, timeout_s=COMMAND_S_MAX)
        if code not in (0, SOME_SKIPPED):
            raise ChildFailed(f"admin {' '.join(arguments)}: {complained.strip()[-300:]}")

    async def _rebalance(self, fault: Fault) -> None:
        await self._admin("rebalance")
        await asyncio.sleep(fault.duration_s)

    async def _drain(self, fault: Fault) -> None:
        await self._admin("drain", fault.target)
        await asyncio.sleep(fault.duration_s)
        for _ in range(UNDO_TRIES - 1):
            try:
                await self._admin("drain", fault.target, "--undo")
                return
            except ChildFailed:
                await asyncio.sleep(UNDO_S)
        await self._admin("drain", fault.target, "--undo")

    async def _clock_jump(self, fault: Fault) -> None:
        clock = self._rig.clocks[fault.target]
        clock.shift(fault.amount / 1000)
        await asyncio.sleep(fault.duration_s)
        clock.shift(0)

    async def _middle_of_plan(self, fault: Fault) -> None:
        """A coordinator that dies when it has computed its next plan; then it runs as before."""
        node = self._rig.nodes[fault.target]
        await self._rig.kill(node)
        await self._rig.revive(node, {"BUCKETSCHED_FAILPOINT": "plan.computed:1"})
        assert node.child is not None
        node.held = True  # its death is ours
        with suppress(TimeoutError):
            await asyncio.wait_for(node.child.ended(), fault.duration_s)
        await self._rig.kill(node)
        await self._rig.revive(node)


def stop_growth(pid: int) -> None:
    """Whatever the process appends to a file fails from now on, as on a full disk, but on nobody else's."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
