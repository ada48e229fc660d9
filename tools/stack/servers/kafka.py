"""Kafka 4.1, nodes that are broker and controller each."""

from __future__ import annotations

import base64
import subprocess
import uuid

from ..errors import StackError
from ..jars import Java
from ..layout import quorum, replicas
from ..probes import kafka_answers
from ..server import Server

FORMAT_S_MAX = 60
CONFIG = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=BROKERS
listeners=PLAINTEXT://{address},BROKERS://127.0.0.1:{between},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{front},BROKERS://127.0.0.1:{between}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
log.index.size.max.bytes=1048576
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={quorum}
offsets.topic.num.partitions=4
offsets.topic.replication.factor={replicas}
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={quorum}
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={quorum}
group.initial.rebalance.delay.ms=0
"""
FRONTED = """\
# A record's time is when the broker got it, whatever the clock of its sender says.
log.message.timestamp.type=LogAppendTime
"""
MANY = """\
# A broker that is gone is missed sooner than by default.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
replica.lag.time.max.ms=4000
controller.quorum.election.timeout.ms=1000
controller.quorum.fetch.timeout.ms=2000
# All start at once, which takes a while on few cores.
initial.broker.registration.timeout.ms=240000
"""


class Kafka(Server):
    """Where tasks go, and the journal: with one broker kept once, with several kept three times."""

    kind = "kafka"

    @property
    def port_names(self) -> tuple[str, ...]:
        return (*super().port_names, f"{self.name}_controller", f"{self.name}_brokers")

    def answers(self) -> bool:
        return kafka_answers(self.address)

    def configure(self, java: Java) -> list[str]:
        brokers = self.layout.kafka_brokers
        text = CONFIG.format(
            number=self.number,
            address=self.address,
            front=self.front,
            controller=self.ports[f"{self.name}_controller"],
            between=self.ports[f"{self.name}_brokers"],
            voters=self._voters(),
            data=self.folder / "data",
            replicas=replicas(brokers),
            quorum=quorum(brokers),
        )
        text += (FRONTED if self.layout.fronted else "") + (MANY if brokers > 1 else "")
        config = self.write("server.properties", text)
        return [
            "-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError",
            *self._logging(), "-cp", self.class_path(), "kafka.Kafka", str(config),
        ]  # fmt: skip

    def prepare(self, java: Java) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_URL, self._voters()).bytes).decode().rstrip("=")
        done = subprocess.run(
            [java.command, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._logging(), "-cp", self.class_path(),
             "kafka.tools.StorageTool", "format", "--ignore-formatted", "--cluster-id", cluster.replace("-", "A"),
             "--config", str(self.folder / "conf" / "server.properties")],
            capture_output=True, text=True, check=False, timeout=FORMAT_S_MAX,
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"{self.name}: its folder could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")

    def _voters(self) -> str:
        """All controllers; with their ports they name the cluster, too."""
        names = [self.name_of(number) for number in range(1, self.layout.kafka_brokers + 1)]
        return ",".join(f"{n}@127.0.0.1:{self.ports[f'{name}_controller']}" for n, name in enumerate(names, 1))

    def _logging(self) -> list[str]:
        return ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dkafka.logs.dir=" + str(self.folder / "log")]
