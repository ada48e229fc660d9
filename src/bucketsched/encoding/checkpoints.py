"""Range checkpoints as protobuf."""

from __future__ import annotations

from ..core.checkpoint import Checkpoint
from ..stubs.internal.v1 import storage_pb2 as pb


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The stored form."""
    return pb.RangeCheckpoint(
        epoch=checkpoint.epoch,
        sequence=checkpoint.sequence,
        journal=checkpoint.journal,
        lane=checkpoint.lane,
        applied_offset=checkpoint.applied_offset,
        applied_hash=checkpoint.applied_hash,
        first_open_bucket=checkpoint.first_open_bucket,
        low_due_ms=checkpoint.low_due_ms,
    ).SerializeToString()


def decode_checkpoint(value: bytes) -> Checkpoint:
    """Reverse of `encode_checkpoint`."""
    message = pb.RangeCheckpoint.FromString(value)
    return Checkpoint(
        message.epoch,
        message.sequence,
        message.journal,
        message.lane,
        message.applied_offset,
        message.applied_hash,
        message.first_open_bucket,
        dict(message.low_due_ms),
    )
