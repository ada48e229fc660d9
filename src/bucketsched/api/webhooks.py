"""bucketsched.v1.Webhook from and to what the core knows. Secrets come in and never go out."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from ..core.durations import duration_ms
from ..core.retry import DEFAULT_RETRY, RetryPolicy
from ..core.webhook import Webhook
from ..stubs.v1 import queue_pb2 as pb
from .retries import length

_DEFAULT = Webhook("")


def webhook_of(message: pb.Webhook) -> Webhook:
    """What was asked for, with defaults for what was left out. Raises InvalidArgument."""
    given = {field.name: _length_ms(found, field.name) for field, found in message.ListFields() if field.message_type}
    return Webhook(
        url=message.url,
        secrets=tuple(message.secrets),
        timeout_ms=given.get("timeout", _DEFAULT.timeout_ms),
        concurrency=message.concurrency or _DEFAULT.concurrency,
        retry=RetryPolicy(
            tries_max=message.tries_max or DEFAULT_RETRY.tries_max,
            delay_ms_first=given.get("delay_first", DEFAULT_RETRY.delay_ms_first),
            delay_ms_max=given.get("delay_max", DEFAULT_RETRY.delay_ms_max),
            elapsed_ms_max=given.get("elapsed_max", DEFAULT_RETRY.elapsed_ms_max),
        ),
        retried_statuses=tuple(sorted(set(message.retried_statuses))) or _DEFAULT.retried_statuses,
        networks=tuple(message.networks),
    )


def webhook_message(webhook: Webhook | None) -> pb.Webhook | None:
    """What is shown of it."""
    if webhook is None:
        return None
    return pb.Webhook(
        url=webhook.url,
        secret_count=len(webhook.secrets),
        timeout=length(webhook.timeout_ms),
        concurrency=webhook.concurrency,
        tries_max=webhook.retry.tries_max,
        delay_first=length(webhook.retry.delay_ms_first),
        delay_max=length(webhook.retry.delay_ms_max),
        elapsed_max=length(webhook.retry.elapsed_ms_max),
        retried_statuses=webhook.retried_statuses,
        networks=webhook.networks,
    )


def _length_ms(found: Duration, field: str) -> int:
    return duration_ms(found.seconds, found.nanos, f"webhook.{field}")
