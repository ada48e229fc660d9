"""ZooKeeper 3.9, one server."""

from __future__ import annotations

from ..jars import Java
from ..probes import zookeeper_answers
from ..server import Server

CONFIG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=60000
dataDir={data}
clientPortAddress=127.0.0.1
clientPort={port}
maxClientCnxns=0
preAllocSize=4096
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr
"""


class ZooKeeper(Server):
    """Where ownership is decided. Its tick allows sessions from 1 s."""

    kind = "zookeeper"

    def answers(self) -> bool:
        return zookeeper_answers(self.address)

    def configure(self, java: Java) -> list[str]:
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = self.write("zoo.cfg", CONFIG.format(data=data, port=self.port))
        return [
            "-Xmx128m", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-cp", self.class_path(), "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config),
        ]  # fmt: skip
