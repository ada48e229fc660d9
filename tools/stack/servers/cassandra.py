"""Cassandra 5.0, one node or several."""

from __future__ import annotations

from ..jars import Java
from ..layout import front_host, host
from ..probes import cassandra_answers
from ..server import Server

CONFIG = """\
cluster_name: bucketsched
num_tokens: 4
auto_bootstrap: false
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1:{storage}"
listen_address: {host}
storage_port: {storage}
rpc_address: {host}
broadcast_rpc_address: {front}
native_transport_port: {native}
# Acknowledged means on the disk: writes of 2 ms share one fsync. Each waits for it on a thread of its own.
commitlog_sync: group
commitlog_sync_group_window: 2ms
concurrent_writes: {writes}
commitlog_total_space: 512MiB
commitlog_segment_size: 16MiB
memtable_heap_space: {memtables}MiB
memtable_offheap_space: {memtables}MiB
paxos_variant: v2
batch_size_warn_threshold: 64KiB
batch_size_fail_threshold: 64KiB
unlogged_batch_across_partitions_warn_threshold: 1000
auto_snapshot: false
hinted_handoff_enabled: false
"""
LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{ISO8601} %-5level [%thread] %logger{20} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"""
EXPORTS = """
java.base/jdk.internal.misc java.base/jdk.internal.ref java.base/sun.nio.ch java.base/java.lang.ref
java.management.rmi/com.sun.jmx.remote.internal.rmi java.rmi/sun.rmi.registry java.rmi/sun.rmi.server
java.sql/java.sql jdk.unsupported/sun.misc jdk.compiler/com.sun.tools.javac.file
"""
OPENS = """
java.base/java.lang.module java.base/jdk.internal.loader java.base/jdk.internal.ref java.base/jdk.internal.reflect
java.base/jdk.internal.math java.base/jdk.internal.module java.base/jdk.internal.util.jar java.base/sun.nio.ch
java.base/java.io java.base/java.lang java.base/java.lang.reflect java.base/java.util java.base/java.util.concurrent
java.base/java.util.concurrent.atomic java.base/java.nio java.base/java.net
jdk.management/com.sun.management.internal
"""
ALONE = ("-Xms1g", "-Xmx1g", "-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100")
AMONG_OTHERS = (
    *("-Xms640m", "-Xmx640m", "-XX:TieredStopAtLevel=1", "-Dcassandra.consistent.rangemovement=false"),
    "-Dcassandra.ring_delay_ms=40000",  # how long a node looks for the first one, which starts at the same time
)
SECURITY_MANAGER_GONE = 18
"""From this Java on, Cassandra's use of a security manager has to be allowed by name."""


class Cassandra(Server):
    """Where the rows are. Durable as in production (commit log synced before an answer), but it starts at once."""

    kind = "cassandra"

    @property
    def port_names(self) -> tuple[str, ...]:
        return self.kind, f"{self.kind}_storage"  # all nodes' ports: their hosts differ

    @property
    def host(self) -> str:
        return host(self.number)

    @property
    def front(self) -> str:
        return f"{front_host(self.number)}:{self.port}" if self.layout.fronted else self.address

    def answers(self) -> bool:
        return cassandra_answers(self.address)

    def configure(self, java: Java) -> list[str]:
        alone = self.layout.cassandra_nodes == 1
        text = CONFIG.format(
            host=self.host,
            front=self.front.rpartition(":")[0],
            native=self.port,
            storage=self.ports[f"{self.kind}_storage"],
            writes=128 if alone else 64,
            memtables=192 if alone else 64,
        )
        config = self.write("cassandra.yaml", text)
        logback = self.write("logback.xml", LOGBACK)
        jars = self.jars.of(self.kind)
        agent = next(jars.glob("jamm-*.jar"))
        newer = ["-Djava.security.manager=allow"] if java.version >= SECURITY_MANAGER_GONE else []
        return [
            *(ALONE if alone else AMONG_OTHERS),
            "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=50", "-XX:+ExitOnOutOfMemoryError", "-Xss512k",
            f"-javaagent:{agent}", "-Djdk.attach.allowAttachSelf=true", *newer,
            *(word for item in EXPORTS.split() for word in ("--add-exports", f"{item}=ALL-UNNAMED")),
            *(word for item in OPENS.split() for word in ("--add-opens", f"{item}=ALL-UNNAMED")),
            "-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true",
            f"-Dcassandra.config={config.as_uri()}", f"-Dcassandra.storagedir={self.folder / 'data'}",
            f"-Dcassandra.logdir={self.log.parent}", f"-Dlogback.configurationFile={logback}",
            "-Dcassandra-foreground=yes",  # else it closes its output, and so its log, once it has started
            "-cp", self.class_path(), "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip
