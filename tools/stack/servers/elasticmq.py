"""ElasticMQ 1.6: SQS's protocol, with its limits, from one process that keeps all in memory."""

from __future__ import annotations

from ..jars import Java
from ..probes import http_answers
from ..server import Server

CONFIG = """\
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats {{ enabled = false }}
generate-node-address = false
queues {{ }}
"""


class ElasticMQ(Server):
    """Where tests of SQS queues have their queues."""

    kind = "elasticmq"

    def answers(self) -> bool:
        return http_answers(self.address)

    def configure(self, java: Java) -> list[str]:
        config = self.write("elasticmq.conf", CONFIG.format(port=self.port))
        return [
            "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError",
            f"-Dconfig.file={config}", "-cp", self.class_path(), "org.elasticmq.server.Main",
        ]  # fmt: skip
