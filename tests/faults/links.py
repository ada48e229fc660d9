"""TCP proxies before servers and nodes, which can cut, hold or slow down the connections of single processes.

A proxy passes bytes and knows nothing of what they mean. Whose a connection is, it finds out from the kernel, once
there is a rule to know it for: the client's socket has an inode, and one of the known processes has it open.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

CHUNK_BYTES = 64 * 1024
EVERYBODY = "*"
BIND_TRIES, BIND_S = 50, 0.1


class Mode(StrEnum):
    """What a link does. CUT: resets and refuses. HOLD: nothing passes, connections stay. DEAF: requests pass, answers
    are held. SLOW: each chunk waits a while.
    """

    CUT = "cut"
    HOLD = "hold"
    DEAF = "deaf"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Rule:
    """How a link is broken. `delay_ms` for SLOW."""

    mode: Mode
    delay_ms: int = 0


@dataclass(eq=False, slots=True)
class _Connection:
    """`client`: the name of its process; None as long as nobody has asked."""

    port: int
    writers: list[asyncio.StreamWriter]
    client: str | None = None

    def drop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Listens at `front` and passes on to `address`. `whose`: the names of the processes behind clients' ports."""

    def __init__(
        self, name: str, front: str, address: str, whose: Callable[[Collection[int]], Mapping[int, str]]
    ) -> None:
        self.name, self.front, self.address = name, front, address
        self._whose = whose
        self._rules: dict[str, Rule] = {}
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens. Raises OSError if something else does so there."""
        host, _, port = self.front.rpartition(":")
        for tries_left in reversed(range(BIND_TRIES)):
            if self._server is not None:
                return
            try:
                self._server = await asyncio.start_server(self._accept, host, int(port))
            except OSError:  # a listener that was closed just now may still be there
                if not tries_left:
                    raise
                await asyncio.sleep(BIND_S)

    def refuse(self) -> None:
        """New connections are refused until the next `start`, as by a machine on which nobody listens there."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def stop(self) -> None:
        """Drops everything."""
        self.refuse()
        for task in list(self._running):
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def break_(self, client: str, rule: Rule) -> None:
        """From now on the connections of this process, or EVERYBODY's, are under a rule."""
        self._rules[client] = rule
        self._identify()
        self._wake()
        if rule.mode is Mode.CUT:
            for connection in list(self._connections):
                if client in (EVERYBODY, connection.client):
                    connection.drop()

    def mend(self, client: str) -> None:
        """Takes the rule back; what was held goes on."""
        self._rules.pop(client, None)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _identify(self) -> None:
        unknown = [connection for connection in self._connections if connection.client is None]
        if self._rules and unknown:
            names = self._whose([connection.port for connection in unknown])
            for connection in unknown:
                connection.client = names.get(connection.port, "")

    def _rule(self, connection: _Connection) -> Rule | None:
        if not self._rules:
            return None
        return self._rules.get(connection.client or "") or self._rules.get(EVERYBODY)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy stops
        finally:
            self._running.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer.get_extra_info("peername")[1], [writer])
        self._connections.add(connection)
        self._identify()
        try:
            if (rule := self._rule(connection)) is None or rule.mode is not Mode.CUT:
                await self._join(connection, reader, writer)
        finally:
            self._connections.discard(connection)
            connection.drop()

    async def _join(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.address.rpartition(":")
        try:
            from_server, to_server = await asyncio.open_connection(host, int(port))
        except OSError:
            return
        connection.writers.append(to_server)
        flows = [
            asyncio.create_task(self._pass(connection, reader, to_server, (Mode.HOLD,))),
            asyncio.create_task(self._pass(connection, from_server, writer, (Mode.HOLD, Mode.DEAF))),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)

    async def _pass(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        held_by: tuple[Mode, ...],
    ) -> None:
        """Until one end closes, which is passed on. Raises OSError where it was reset."""
        while True:
            data = await reader.read(CHUNK_BYTES)
            while (rule := self._rule(connection)) and rule.mode in held_by:
                await self._changed.wait()
            if rule and rule.mode is Mode.SLOW:
                await asyncio.sleep(rule.delay_ms / 1000)
            if writer.is_closing():
                raise ConnectionResetError
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


class Sockets:
    """Finds the processes behind loopback ports, in Linux' /proc. `pids`: those that may have them, by name."""

    def __init__(self, pids: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._pids = pids

    def whose(self, ports: Collection[int]) -> dict[int, str]:
        """For each port, the name of the process that has a socket bound to it; "" if it is none of the known ones."""
        owners = {inode: name for name, pid in self._pids() for inode in _open_files(pid)}
        found = dict.fromkeys(ports, "")
        for port, inode in _bound():
            if port in found and inode in owners:
                found[port] = owners[inode]
        return found


def _bound() -> Iterator[tuple[int, str]]:
    """Ports and the sockets that are bound to them."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                yield int(fields[1].rpartition(":")[2], 16), f"socket:[{fields[9]}]"


def _open_files(pid: int) -> set[str]:
    folder, found = f"/proc/{pid}/fd", set()
    with suppress(OSError):
        for entry in os.listdir(folder):
            with suppress(OSError):
                found.add(os.readlink(f"{folder}/{entry}"))
    return found
