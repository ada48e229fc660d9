"""The processes under test, each started again whenever it has ended, and the proxies on their ways."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from bench.processes import Child, ChildFailed, Children, run_once
from tests.faketime import FakeClock
from tools.stack import ROOT, Stack
from tools.stack.ports import choose

from bucketsched.adapters.cassandra.session import CassandraSession
from bucketsched.config import Settings, load

from .ending import persistently
from .history import HistoryWriter, now_ms
from .links import Proxy, Sockets

READY_S_MAX = 180.0
MIGRATE_S_MAX = 240.0
LOOK_S = 0.1
RESTART_S = 1.0
"""After how long a process that has ended by itself is started again, as by whatever supervises it."""
LAWFUL_EXITS = (0, 5)
"""Codes with which a process may end by itself: in order, or since a server could not be reached at its start."""
CONSTANTS = ("--shards", "32", "--ranges", "16", "--lanes", "8", "--horizon", "20s", "--grace", "10s")
"""So few and short that buckets close, and tasks lie within the horizon and beyond it, in a short run."""
ROLES = {
    "api-1": "api",
    "api-2": "api",
    "poller-1": "poller,coordinator",
    "poller-2": "poller,coordinator",
    "poller-3": "poller",
    "deliver-1": "deliver",
}


def having(role: str, names: Iterable[str]) -> list[str]:
    """Those of the processes with a role."""
    return [name for name in names if role in ROLES[name].split(",")]


@dataclass(slots=True)
class Node:
    """One process under test, started again when it ends. `held`: a fault has it for now.

    `turn`: it is started or ended by one at a time, since a start takes a while.
    """

    name: str
    roles: str
    grpc: str
    internal: str
    internal_front: str
    child: Child | None = None
    held: bool = False
    watching: asyncio.Task[None] | None = None
    starts: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def alive(self) -> bool:
        """Whether its process runs, paused or not."""
        return self.child is not None and os.path.exists(f"/proc/{self.child.pid}")


@dataclass
class Rig:
    """A cluster on a stack, where `name` keeps it apart from others. `names`: its processes, as in ROLES.

    `folder` holds logs and history.
    """

    stack: Stack
    name: str
    names: tuple[str, ...]
    folder: Path
    children: Children
    history: HistoryWriter
    nodes: dict[str, Node] = field(default_factory=dict)
    proxies: dict[str, Proxy] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, FakeClock] = field(default_factory=dict)
    """Of the processes whose wall clock jumps."""
    crashes: list[str] = field(default_factory=list)
    """Processes that have ended by a defect of theirs."""
    ending: bool = False

    # ---------------------------------------------------------------- set up

    async def open(self) -> None:
        """Proxies, cluster, processes; returns when all are ready. Raises ChildFailed."""
        self._make_nodes()
        sockets = Sockets(self._pids)
        for server in self.stack.servers:
            self.proxies[server.name] = Proxy(server.name, server.front, server.address, sockets.whose)
        for node in self.nodes.values():
            if "poller" in node.roles:
                self.proxies[node.name] = Proxy(node.name, node.internal_front, node.internal, sockets.whose)
        for proxy in self.proxies.values():
            await proxy.start()
        printed = await run_once(
            "migrate", "bucketsched", "admin", "migrate", *CONSTANTS, "--output", "json",
            env=self.environment, timeout_s=MIGRATE_S_MAX,
        )  # fmt: skip
        self.constants = json.loads(printed)
        await asyncio.gather(*(self.start(node) for node in self.nodes.values()))
        try:
            async with asyncio.timeout(READY_S_MAX):
                await asyncio.gather(*(self._ready(node) for node in self.nodes.values()))
        except TimeoutError:
            raise ChildFailed(f"the processes were not all ready within {READY_S_MAX:.0f} s") from None

    async def _ready(self, node: Node) -> None:
        """Waits until a start of this process has come to its end; those that fail are repeated."""
        while True:
            child = node.child
            assert child is not None
            try:
                await child.line(READY_S_MAX)
                return
            except ChildFailed:
                assert node.watching is not None
                await asyncio.wait([node.watching])  # which starts it again

    def _make_nodes(self) -> None:
        names = [f"{name}/{port}" for name in self.names for port in ("grpc", "internal", "front")]
        ports = choose(names, {}, set(self.stack.cassandra.ports.values()))
        for name in self.names:
            grpc, internal, front = (f"127.0.0.1:{ports[f'{name}/{port}']}" for port in ("grpc", "internal", "front"))
            self.nodes[name] = Node(name, ROLES[name], grpc, internal, front)

    def _pids(self) -> Iterator[tuple[str, int]]:
        for node in self.nodes.values():
            if node.child is not None:
                yield node.name, node.child.pid

    @property
    def environment(self) -> dict[str, str]:
        """What tells a command which cluster is meant."""
        return {
            "BUCKETSCHED_CONFIG": str(self.stack.settings),
            "BUCKETSCHED_CASSANDRA__KEYSPACE": self.name,
            "BUCKETSCHED_ZOOKEEPER__ROOT": f"/{self.name}",
        }

    @property
    def settings(self) -> Settings:
        """The same for whoever reads its servers."""
        names = {"cassandra": {"keyspace": self.name}, "zookeeper": {"root": f"/{self.name}"}}
        return load(str(self.stack.settings), names)

    @property
    def api_addresses(self) -> list[str]:
        """Of the api processes, which keep them over restarts."""
        return [self.nodes[name].grpc for name in having("api", self.names)]

    # ---------------------------------------------------------------- processes

    async def start(self, node: Node, extra: Mapping[str, str] | None = None) -> None:
        """Starts a process; it is watched from then on."""
        async with node.turn:
            await self._start(node, extra)

    async def _start(self, node: Node, extra: Mapping[str, str] | None = None) -> None:
        settings = {
            "name": node.name,
            "grpc_address": node.grpc,
            "internal_address": node.internal,
            "metrics_address": "127.0.0.1:0",
        }
        if "poller" in node.roles:
            settings["advertise_internal"] = node.internal_front
        pairs = [part for key, value in settings.items() for part in ("--set", f"node.{key}={value}")]
        arguments = ("bucketsched", "node", "--roles", node.roles, *pairs, "--set", "log.format=json")
        if proxy := self.proxies.get(node.name):
            await proxy.start()
        node.starts += 1
        env = {**self.environment, **self._faked(node.name), **(extra or {})}
        node.child = await self.children.start(node.name, *arguments, "--output", "json", env=env)
        node.watching = asyncio.create_task(self._watch(node, node.child))

    def _faked(self, name: str) -> dict[str, str]:
        """What gives a process a wall clock of its own, if it is to have one."""
        if name not in self.clocks:
            return {}
        faked = self.clocks[name].environment
        return faked | {"PYTHONPATH": f"{faked['PYTHONPATH']}:{os.environ.get('PYTHONPATH', '')}"}

    async def _watch(self, node: Node, child: Child) -> None:
        """Starts it again when it has ended by itself."""
        code = await child.ended()
        if proxy := self.proxies.get(node.name):
            proxy.refuse()
        self.history.note({"e": "exit", "process": node.name, "code": code, "t": now_ms(), "held": node.held})
        if code not in LAWFUL_EXITS and not (node.held or self.ending):
            self.crashes.append(f"{node.name} ended by itself with code {code}")
        if not (self.ending or node.held):
            await asyncio.sleep(RESTART_S)
            async with node.turn:
                if not (self.ending or node.held) and node.child is child:
                    await self._start(node)

    async def kill(self, node: Node) -> None:
        """As by kill -9; it stays down until `start`."""
        node.held = True
        async with node.turn:
            if node.child is not None:
                await node.child.kill()

    async def terminate(self, node: Node) -> None:
        """Asks it to end, and returns when it has."""
        node.held = True
        async with node.turn:
            if node.child is not None and node.alive:
                self.signal(node, signal.SIGTERM)
                await node.child.ended()

    async def revive(self, node: Node, extra: Mapping[str, str] | None = None) -> None:
        """Starts what was killed or ended for a fault."""
        if node.watching is not None:
            await asyncio.wait([node.watching])
        node.held = False
        await self.start(node, extra)

    def signal(self, node: Node, number: signal.Signals) -> None:
        """To a process that still runs."""
        if node.child is not None and node.alive:
            with suppress(ProcessLookupError):
                os.kill(node.child.pid, number)

    async def command(self, *arguments: str, timeout_s: float) -> tuple[int, str, str]:
        """Exit code, output and errors of `bucketsched ...`. Raises ChildFailed if it does not end in time."""
        words = (sys.executable, "-m", "bench.leash", str(os.getpid()), sys.executable, "-m", "bucketsched", *arguments)
        process = await asyncio.create_subprocess_exec(
            *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, **self.environment}
        )
        try:
            printed, complained = await asyncio.wait_for(process.communicate(), timeout_s)
        except TimeoutError:
            raise ChildFailed(f"bucketsched {' '.join(arguments)} did not end within {timeout_s:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, printed.decode(errors="replace"), complained.decode(errors="replace")

    async def running(self, within_s: float) -> list[str]:
        """Waits until all processes run again; the names of those that don't."""
        for _ in range(int(within_s / LOOK_S)):
            if all(node.alive for node in self.nodes.values()):
                return []
            await asyncio.sleep(LOOK_S)
        return [node.name for node in self.nodes.values() if not node.alive]

    async def stop_nodes(self) -> list[str]:
        """Ends all processes under test in order; the names of those that did not end with code 0."""
        self.ending = True
        bad = []
        for node in reversed(self.nodes.values()):
            async with node.turn:
                self.signal(node, signal.SIGTERM)
        for node in self.nodes.values():
            if node.child is None:
                continue
            try:
                code = await asyncio.wait_for(node.child.ended(), READY_S_MAX)
            except TimeoutError:
                code = -1
                await node.child.kill()
            if code:
                bad.append(node.name)
        return bad

    async def drop(self) -> None:
        """Removes what it has on the servers: a long series of runs would fill them."""
        session = await persistently(lambda: CassandraSession.connect(self.settings.cassandra))
        try:
            drop = f"DROP KEYSPACE IF EXISTS {self.name}"
            await persistently(lambda: session.change_schema(drop, keyspace=""))
        finally:
            await session.close()
        admin = AIOKafkaAdminClient(bootstrap_servers=self.settings.kafka.bootstrap)
        await admin.start()
        try:
            marks = self.name, self.constants["cluster_id"][:8]
            await admin.delete_topics([t for t in await admin.list_topics() if any(mark in t for mark in marks)])
        finally:
            await admin.close()

    async def close(self) -> None:
        """Everything ends."""
        self.ending = True
        for node in self.nodes.values():
            if node.watching is not None:
                node.watching.cancel()
        await self.children.end_all()
        for proxy in self.proxies.values():
            await proxy.stop()


__all__ = ["ChildFailed", "Node", "Rig"]
