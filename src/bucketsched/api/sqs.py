"""bucketsched.v1.Sqs from and to what the core knows."""

from __future__ import annotations

from ..core.durations import duration_ms
from ..core.sqs import Sqs
from ..stubs.v1 import queue_pb2 as pb
from .retries import length

_DEFAULT = Sqs("", "")


def sqs_of(message: pb.Sqs) -> Sqs:
    """What was asked for, with defaults for what was left out. Raises InvalidArgument."""
    timeout_ms = _DEFAULT.timeout_ms
    if message.HasField("timeout"):
        timeout_ms = duration_ms(message.timeout.seconds, message.timeout.nanos, "sqs.timeout")
    return Sqs(
        queue_url=message.queue_url,
        region=message.region,
        endpoint_url=message.endpoint_url,
        group=message.group,
        group_key=message.group_key,
        timeout_ms=timeout_ms,
        concurrency=message.concurrency or _DEFAULT.concurrency,
    )


def sqs_message(sqs: Sqs | None) -> pb.Sqs | None:
    """What is shown of it."""
    if sqs is None:
        return None
    return pb.Sqs(
        queue_url=sqs.queue_url,
        region=sqs.region,
        endpoint_url=sqs.endpoint_url,
        group=sqs.group,
        group_key=sqs.group_key,
        timeout=length(sqs.timeout_ms),
        concurrency=sqs.concurrency,
    )
