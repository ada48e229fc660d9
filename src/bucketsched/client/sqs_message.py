"""The settings of an SQS queue as messages of bucketsched.v1."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..stubs.v1 import queue_pb2
from .fields import check_text, length_message, seconds_of
from .sqs import Sqs

_INT32_MAX = 2**31 - 1
_TEXTS = ("queue_url", "region", "endpoint_url", "group", "group_key")


def sqs_message(sqs: Sqs) -> queue_pb2.Sqs:
    """As it is sent. Raises InvalidArgument for what no message can hold; the rest is up to the server."""
    texts: dict[str, str] = {name: getattr(sqs, name) for name in _TEXTS}
    for name, text in texts.items():
        check_text(f"sqs.{name}", text)
    if not isinstance(sqs.concurrency, int) or not 1 <= sqs.concurrency <= _INT32_MAX:
        raise InvalidArgument("sqs.concurrency", f"must be a number above 0, is {sqs.concurrency!r}")
    timeout = length_message("sqs.timeout", sqs.timeout)
    return queue_pb2.Sqs(**texts, timeout=timeout, concurrency=sqs.concurrency)


def sqs_from_message(message: queue_pb2.Sqs) -> Sqs:
    """As the server shows it."""
    return Sqs(
        queue_url=message.queue_url,
        region=message.region,
        endpoint_url=message.endpoint_url,
        group=message.group,
        group_key=message.group_key,
        timeout=seconds_of(message.timeout),
        concurrency=message.concurrency,
    )
