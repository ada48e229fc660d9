"""All servers in one folder."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .addresses import Addresses
from .errors import StackError
from .jars import Jars
from .layout import Layout, quorum, replicas
from .ports import choose
from .server import START_S_MAX, Server
from .servers import Cassandra, ElasticMQ, Kafka, ZooKeeper

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = ROOT / ".stack"
JARS_FOLDER = DEFAULT_FOLDER / "jars"
ONE_OF_EACH = Layout()
SETTINGS = """\
# Written by tools.stack: how to reach the servers that it started.
[cassandra]
contact_points = [{cassandra}]
local_datacenter = "datacenter1"
replication = {copies}

[zookeeper]
hosts = "{zookeeper}"

[kafka]
bootstrap = "{kafka}"
replication = {messages}
min_insync_replicas = {in_sync}
"""


def _silent(_: str) -> None:
    """Says nothing."""


class Stack:
    """Cassandra, Kafka and ZooKeeper with their files in `folder`; one of each, unless the layout says otherwise.

    `cassandra` and `kafka` are the first of `cassandra_nodes` and `kafka_brokers`.
    """

    def __init__(
        self, folder: Path = DEFAULT_FOLDER, say: Callable[[str], None] = _silent, layout: Layout = ONE_OF_EACH
    ) -> None:
        self.folder = folder.resolve()
        self.say = say
        self.layout = layout
        jars = Jars(JARS_FOLDER, say)
        nodes, brokers = range(1, layout.cassandra_nodes + 1), range(1, layout.kafka_brokers + 1)
        self.cassandra_nodes = tuple(Cassandra(self.folder, jars, layout, number) for number in nodes)
        self.kafka_brokers = tuple(Kafka(self.folder, jars, layout, number) for number in brokers)
        self.cassandra, self.kafka = self.cassandra_nodes[0], self.kafka_brokers[0]
        self.zookeeper = ZooKeeper(self.folder, jars, layout)
        self.elasticmq = ElasticMQ(self.folder, jars, layout)
        self._share(self._last_ports())

    @property
    def servers(self) -> tuple[Server, ...]:
        """All of them, the slowest to start first."""
        return *self.cassandra_nodes, *self.kafka_brokers, self.zookeeper

    @property
    def known(self) -> tuple[Server, ...]:
        """With those that `up` leaves alone, as no process of ours needs them."""
        return *self.servers, self.elasticmq

    @property
    def settings(self) -> Path:
        """The settings file that reaches these servers; `up` writes it."""
        return self.folder / "settings.toml"

    @property
    def addresses(self) -> Addresses:
        """How to reach the servers, once they are up. Raises StackError before."""
        return Addresses.read(self.settings)

    def server(self, name: str) -> Server:
        """One by its name. Raises StackError."""
        for server in self.servers:
            if server.name == name:
                return server
        raise StackError(f"no server {name!r}; there are {', '.join(s.name for s in self.servers)}")

    def running(self) -> list[Server]:
        """Those whose process lives."""
        return [server for server in self.servers if server.process]

    def healthy(self) -> bool:
        """Whether all run and answer."""
        return all(server.process and server.answers() for server in self.servers)

    def up(self, timeout_s: float = START_S_MAX) -> None:
        """Starts what does not run, all at once, and returns when all answer. Raises StackError; then those that this
        call started are stopped again.
        """
        with self._locked():
            ports = self._choose_ports()
            self._share(ports)
            for server in self.servers:
                server.jars.of(server.kind)
            (self.folder / "ports.json").write_text(json.dumps(ports))
            started: list[Server] = []
            try:
                self._start(started, timeout_s)
            except BaseException:
                self._each(started, lambda server: server.stop(polite_s=5))
                raise
            self.settings.write_text(self._settings_text())

    def down(self) -> None:
        """Stops all that run; their data stays for the next `up`."""
        if not self.folder.exists():
            return
        with self._locked():
            self._each(self.running(), self._stop)

    def wipe(self) -> None:
        """Stops all and removes their data; the jars stay."""
        self.down()
        for server in self.servers:
            server.wipe()
        for name in ("settings.toml", "ports.json", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        if self.folder != DEFAULT_FOLDER:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, started: list[Server], timeout_s: float) -> None:
        begun = time.monotonic()
        for server in self.servers:
            if server.launch():
                started.append(server)
                self.say(f"{server.name}: starting on {server.address}")

        def wait(server: Server) -> None:
            server.wait_ready(timeout_s)
            if server in started:
                self.say(f"{server.name}: answers on {server.address} ({time.monotonic() - begun:.1f} s)")

        self._each(list(self.servers), wait)

    def _stop(self, server: Server) -> None:
        server.stop()
        self.say(f"{server.name}: stopped")

    @staticmethod
    def _each(servers: list[Server], work: Callable[[Server], None]) -> None:
        """Does it for all of them at once; raises the first error when all have ended."""
        if servers:
            with ThreadPoolExecutor(len(servers)) as pool:
                list(pool.map(work, servers))

    def _settings_text(self) -> str:
        layout = self.layout
        return SETTINGS.format(
            cassandra=", ".join(f'"{node.front}"' for node in self.cassandra_nodes),
            kafka=",".join(broker.front for broker in self.kafka_brokers),
            zookeeper=self.zookeeper.front,
            copies=replicas(layout.cassandra_nodes),
            messages=replicas(layout.kafka_brokers),
            in_sync=quorum(layout.kafka_brokers),
        )

    def _share(self, ports: dict[str, int]) -> None:
        for server in self.servers:
            server.ports = ports

    def _last_ports(self) -> dict[str, int]:
        try:
            return dict(json.loads((self.folder / "ports.json").read_text()))
        except (FileNotFoundError, ValueError):
            return {}

    def _choose_ports(self) -> dict[str, int]:
        """Running servers keep theirs; the others get the last ones if those are free."""
        last = self._last_ports()
        kept = {name: last[name] for server in self.running() for name in server.port_names if name in last}
        names = dict.fromkeys(name for server in self.servers for name in server.port_names)
        open_names = [name for name in names if name not in kept]
        return kept | choose(open_names, last, set(kept.values()), self.layout.hosts)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One `up` or `down` of a folder at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
