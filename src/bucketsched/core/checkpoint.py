"""The progress of one range, as a taker finds it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from .errors import BucketschedError

NO_OFFSET = -1


class CheckpointCorrupt(BucketschedError):
    """What is stored is not a checkpoint. `order`: that of its write, which the next one has to exceed."""

    def __init__(self, range_id: int, order: int, reason: str) -> None:
        super().__init__(f"the checkpoint of range {range_id} can't be decoded: {reason}")
        self.order = order


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


def epoch_of(order: int) -> int:
    """The epoch in a checkpoint's order."""
    return (order - 1) >> 32


def sequence_of(order: int) -> int:
    """The sequence in a checkpoint's order."""
    return (order - 1) & 0xFFFFFFFF


def record_hash(value: bytes) -> bytes:
    """16 bytes that stand for a journal record in a checkpoint."""
    return hashlib.blake2b(value, digest_size=16).digest()
