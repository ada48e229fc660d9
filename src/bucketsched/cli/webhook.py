"""What says on the command line where and how a queue's tasks are posted."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from .parameters import LENGTH

if TYPE_CHECKING:
    from ..client import Webhook

SECRET_BYTES = 32
Command = TypeVar("Command", bound=Callable[..., Any])

_REQUEST_OPTIONS = [
    click.option(
        "--request-timeout",
        "request_timeout",
        type=LENGTH,
        help="Kinds webhook, sqs, email: of one request [15s; email: 30s].",
    ),
    click.option("--concurrency", type=int, help="Kinds webhook, sqs, email: at once in each process [16, 100, 8]."),
]
_OPTIONS = [
    click.option("--url", default="", help="Kind webhook: where tasks are posted, https://... or http://..."),
    click.option(
        "--secret-file",
        type=click.File(),
        help="Kind webhook: secrets that sign, whsec_..., one a line; - reads them from the standard input.",
    ),
    *_REQUEST_OPTIONS,
    click.option("--tries-max", type=int, help="Kind webhook: how often a task is tried [10]."),
    click.option(
        "--delay-first", type=LENGTH, help="Kind webhook: longest pause behind the first try; it doubles [1s]."
    ),
    click.option("--delay-max", type=LENGTH, help="Kind webhook: longest pause [5m]."),
    click.option("--elapsed-max", type=LENGTH, help="Kind webhook: no try begins later after the first [1h]."),
    click.option(
        "--retry-status",
        "retried_statuses",
        type=int,
        multiple=True,
        help="Kind webhook: a status of 300 to 499 that is tried again; others are final [408, 425, 429].",
    ),
    click.option(
        "--allow-network",
        "networks",
        multiple=True,
        help="Kind webhook: a network (CIDR) that is not public and may be posted to, if the server allows it, too.",
    ),
]


def request_options(command: Command) -> Command:
    """Adds those that other kinds have as well."""
    for option in reversed(_REQUEST_OPTIONS):
        command = option(command)
    return command


def webhook_options(command: Command) -> Command:
    """Adds the options; `webhook_of` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def webhook_of(url: str, secret_file: TextIO | None, **given: Any) -> Webhook | None:
    """The settings that the options mean. None: there is no URL, and nothing else was given."""
    from ..client import Webhook

    given["timeout"] = given.pop("request_timeout")
    chosen = {name: _plain(value) for name, value in given.items() if value not in (None, ())}
    if secret_file is not None:
        chosen["secrets"] = tuple(secret_file.read().split())
    if not url and chosen:
        raise click.UsageError("options of kind webhook need --url")
    return Webhook(url, **chosen) if url else None


def described(webhook: Webhook | None) -> dict[str, Any]:
    """As it is shown."""
    if webhook is None:
        return {}
    return {
        "url": webhook.url,
        "secrets": webhook.secret_count,
        "timeout": webhook.timeout,
        "concurrency": webhook.concurrency,
        "tries_max": webhook.tries_max,
        "delay_first": webhook.delay_first,
        "delay_max": webhook.delay_max,
        "elapsed_max": webhook.elapsed_max,
        "retried_statuses": list(webhook.retried_statuses),
        "networks": list(webhook.networks),
    }


def new_secret() -> str:
    """A fresh one."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def _plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value
