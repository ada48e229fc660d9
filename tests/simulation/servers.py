"""What all nodes of a world share."""

from __future__ import annotations

from dataclasses import dataclass

from bucketsched.adapters.memory.keys import MemoryKeyStore
from bucketsched.adapters.memory.store import MemoryCatalog
from bucketsched.core.catalog import Queue
from bucketsched.core.cluster import ClusterConstants

from .broker import Broker
from .consumers import ConsumerGroups
from .ensemble import Ensemble
from .invariants import Invariants
from .loop import VirtualLoop
from .network import Network
from .replicas import Cassandra
from .trace import Trace


@dataclass(slots=True)
class Servers:
    """The three services, the network between, and who watches."""

    loop: VirtualLoop
    network: Network
    constants: ClusterConstants
    broker: Broker
    cassandra: Cassandra
    catalog: MemoryCatalog
    keys: MemoryKeyStore
    ensemble: Ensemble
    groups: ConsumerGroups
    invariants: Invariants
    trace: Trace
    worker_queue: Queue
    healed: bool = False
    """True once no more faults come."""
