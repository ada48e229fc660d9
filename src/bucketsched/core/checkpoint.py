"""The progress of one range, as a taker finds it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Ordered by (epoch, sequence): a zombie's late write can't move it back.

    `applied_offset` is the last record of `journal`'s partition `lane` of which everything that concerns this range is
    stored; `applied_hash` proves that the journal still is the one it was. Every bucket before `first_open_bucket` is
    closed; `low_due_ms` says per open bucket what is done up to.
    """

    epoch: int
    sequence: int
    journal: str
    lane: int
    applied_offset: int
    applied_hash: bytes
    first_open_bucket: int
    low_due_ms: dict[int, int] = field(default_factory=dict)

    @property
    def order(self) -> int:
        """Epoch and sequence as one positive 63-bit number, used as the write's time stamp."""
        assert 0 <= self.epoch < 1 << 31, self.epoch
        assert 0 <= self.sequence < 1 << 32, self.sequence
        return (self.epoch << 32) + self.sequence + 1


def record_hash(value: bytes) -> bytes:
    """16 bytes that stand for a journal record in a checkpoint."""
    return hashlib.blake2b(value, digest_size=16).digest()
