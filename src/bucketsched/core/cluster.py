"""What is fixed for a cluster's whole life, and how shards and ranges follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from .errors import ConfigError
from .task_id import SHARDS_MAX


@dataclass(frozen=True, slots=True)
class ClusterConstants:
    """Given once to `admin migrate`, kept in the store. All processes of a cluster must agree on them."""

    cluster_id: UUID
    shards: int = 256
    ranges: int = 64
    horizon_ms: int = 120_000
    grace_ms: int = 600_000
    retention_ms: int = 90 * 86_400_000
    lanes: int = 32

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= SHARDS_MAX:
            raise ConfigError(f"shards must be 1 to {SHARDS_MAX}, is {self.shards}")
        if not 1 <= self.ranges <= self.shards or self.shards % self.ranges:
            raise ConfigError(f"ranges must divide shards ({self.shards}), is {self.ranges}")
        if not 5_000 <= self.horizon_ms <= 3_600_000:
            raise ConfigError(f"horizon must be 5 s to 1 h, is {self.horizon_ms} ms")
        if not 1_000 <= self.grace_ms <= 86_400_000:
            raise ConfigError(f"grace must be 1 s to 24 h, is {self.grace_ms} ms")
        if not 1 <= self.lanes <= 1024:
            raise ConfigError(f"lanes must be 1 to 1024, is {self.lanes}")
        if self.retention_ms < self.grace_ms + 3_600_000:
            raise ConfigError("retention must exceed grace by at least an hour")

    @property
    def shards_per_range(self) -> int:
        """How many shards one range holds."""
        return self.shards // self.ranges

    def range_of(self, shard: int) -> int:
        """The range that owns a shard."""
        return shard // self.shards_per_range

    def shards_of(self, range_id: int) -> range:
        """The shards of a range."""
        return range(range_id * self.shards_per_range, (range_id + 1) * self.shards_per_range)

    @property
    def journal_name(self) -> str:
        """The journal's topic: with the cluster's id, so that two clusters on one Kafka stay apart."""
        return f"bucketsched-{self.cluster_id}-journal"

    @property
    def clock_topic(self) -> str:
        """The topic whose append times tell the brokers' time."""
        return f"bucketsched-{self.cluster_id}-clock"

    def transactional_id(self, lane: int) -> str:
        """The Kafka transactional id of a lane: the fencing domain."""
        return f"{self.cluster_id}-lane-{lane}"
