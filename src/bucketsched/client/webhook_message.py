"""A webhook's settings as messages of bucketsched.v1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from ..core.durations import seconds_ms
from ..core.errors import InvalidArgument
from ..stubs.v1 import queue_pb2
from .fields import check_text, seconds_of
from .webhook import Webhook

_INT32_MAX = 2**31 - 1
Item = TypeVar("Item")


def to_message(webhook: Webhook) -> queue_pb2.Webhook:
    """As it is sent. Raises InvalidArgument for what no message can hold; the rest is up to the server."""
    check_text("webhook.url", webhook.url)
    for name, texts in (("secrets", webhook.secrets), ("networks", webhook.networks)):
        for text in _several(name, texts):
            check_text(f"webhook.{name}", text)
    for name in ("concurrency", "tries_max"):
        _check_number(name, getattr(webhook, name))
    for status in _several("retried_statuses", webhook.retried_statuses):
        _check_number("retried_statuses", status)
    return queue_pb2.Webhook(
        url=webhook.url,
        secrets=webhook.secrets,
        timeout=_duration("timeout", webhook.timeout),
        concurrency=webhook.concurrency,
        tries_max=webhook.tries_max,
        delay_first=_duration("delay_first", webhook.delay_first),
        delay_max=_duration("delay_max", webhook.delay_max),
        elapsed_max=_duration("elapsed_max", webhook.elapsed_max),
        retried_statuses=webhook.retried_statuses,
        networks=webhook.networks,
    )


def from_message(message: queue_pb2.Webhook) -> Webhook:
    """As the server shows it."""
    return Webhook(
        url=message.url,
        timeout=seconds_of(message.timeout),
        concurrency=message.concurrency,
        tries_max=message.tries_max,
        delay_first=seconds_of(message.delay_first),
        delay_max=seconds_of(message.delay_max),
        elapsed_max=seconds_of(message.elapsed_max),
        retried_statuses=tuple(message.retried_statuses),
        networks=tuple(message.networks),
        secret_count=message.secret_count,
    )


def _several(name: str, values: Sequence[Item]) -> Sequence[Item]:
    """A single text would be taken for its characters."""
    if isinstance(values, str | bytes):
        raise InvalidArgument(f"webhook.{name}", f"must be a list, is {type(values).__name__}")
    return values


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, int) or not 1 <= value <= _INT32_MAX:
        raise InvalidArgument(f"webhook.{name}", f"must be a number above 0, is {value!r}")


def _duration(name: str, seconds: float) -> Duration:
    whole, rest = divmod(seconds_ms(seconds, f"webhook.{name}"), 1000)
    return Duration(seconds=whole, nanos=rest * 1_000_000)
