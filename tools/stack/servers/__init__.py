"""The three servers: each one's configuration, command line and probe."""

from .cassandra import Cassandra
from .kafka import Kafka
from .zookeeper import ZooKeeper

__all__ = ["Cassandra", "Kafka", "ZooKeeper"]
