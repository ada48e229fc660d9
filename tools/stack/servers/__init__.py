"""The servers: each one's configuration, command line and probe."""

from .cassandra import Cassandra
from .elasticmq import ElasticMQ
from .kafka import Kafka
from .zookeeper import ZooKeeper

__all__ = ["Cassandra", "ElasticMQ", "Kafka", "ZooKeeper"]
