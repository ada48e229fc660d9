"""Kafka 4.1, one node that is broker and controller."""

from __future__ import annotations

import base64
import subprocess
import uuid

from ..errors import StackError
from ..jars import Java
from ..probes import kafka_answers
from ..server import Server

FORMAT_S_MAX = 60
CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
log.index.size.max.bytes=1048576
auto.create.topics.enable=false
default.replication.factor=1
min.insync.replicas=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Kafka(Server):
    """Where tasks go, and the journal. Everything is kept once, as there is one node."""

    name = "kafka"
    port_names = ("kafka", "kafka_controller")

    def answers(self) -> bool:
        return kafka_answers(self.port)

    def configure(self, java: Java) -> list[str]:
        ports = {"broker": self.port, "controller": self.ports["kafka_controller"]}
        config = self.write("server.properties", CONFIG.format(data=self.folder / "data", **ports))
        return [
            "-Xms512m", "-Xmx512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:+ExitOnOutOfMemoryError",
            *self._logging(), "-cp", self.class_path(), "kafka.Kafka", str(config),
        ]  # fmt: skip

    def prepare(self, java: Java) -> None:
        if (self.folder / "data" / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        done = subprocess.run(
            [java.command, "-Xmx128m", "-XX:TieredStopAtLevel=1", *self._logging(), "-cp", self.class_path(),
             "kafka.tools.StorageTool", "format", "--cluster-id", cluster.replace("-", "A"),
             "--config", str(self.folder / "conf" / "server.properties")],
            capture_output=True, text=True, check=False, timeout=FORMAT_S_MAX,
        )  # fmt: skip
        if done.returncode:
            raise StackError(f"kafka: its folder could not be formatted:\n{(done.stdout + done.stderr)[-2000:]}")

    def _logging(self) -> list[str]:
        return ["-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dkafka.logs.dir=" + str(self.folder / "log")]
