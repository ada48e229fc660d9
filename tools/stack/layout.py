"""How many of each server a stack has, and by which way clients reach them."""

from __future__ import annotations

from dataclasses import dataclass

NODES_MAX = 9


@dataclass(frozen=True)
class Layout:
    """`fronted`: servers name other addresses than their own to clients, their fronts, where whoever uses the stack
    listens with proxies. Several Cassandra nodes listen on 127.0.0.1, 127.0.0.2 ... with the same ports, which only
    Linux allows without preparation.
    """

    cassandra_nodes: int = 1
    kafka_brokers: int = 1
    fronted: bool = False

    def __post_init__(self) -> None:
        for name, count in (("cassandra nodes", self.cassandra_nodes), ("kafka brokers", self.kafka_brokers)):
            if not 1 <= count <= NODES_MAX:
                raise ValueError(f"{name} must be 1 to {NODES_MAX}, is {count}")

    @property
    def hosts(self) -> list[str]:
        """All addresses on which a port has to be free."""
        return [host(number) for number in range(1, self.cassandra_nodes + 1)]


def host(number: int) -> str:
    """The address of the nth Cassandra node."""
    return f"127.0.0.{number}"


def front_host(number: int) -> str:
    """The address that the nth Cassandra node names to clients where a stack is fronted."""
    return f"127.0.1.{number}"


def replicas(nodes: int) -> int:
    """Of how many copies a cluster with so many nodes keeps its data."""
    return min(3, nodes)


def quorum(nodes: int) -> int:
    """How many copies must be written before an answer."""
    return replicas(nodes) // 2 + 1
