"""Range checkpoints as protobuf."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ..core.checkpoint import Checkpoint, CheckpointCorrupt
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


def decode_checkpoint(range_id: int, order: int, value: bytes) -> Checkpoint:
    """Reverse of `encode_checkpoint`. Raises CheckpointCorrupt, also where the order is another one than it says."""
    try:
        message = pb.RangeCheckpoint.FromString(value)
    except DecodeError as error:
        raise CheckpointCorrupt(range_id, order, str(error)) from error
    checkpoint = _checkpoint(message)
    if checkpoint.order != order:
        raise CheckpointCorrupt(range_id, order, f"it says that it is the one of order {checkpoint.order}, not {order}")
    return checkpoint


def _checkpoint(message: pb.RangeCheckpoint) -> Checkpoint:
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
