"""`bucketsched queue`: create, get, list, update, update-webhook, update-sqs, update-email, make-secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .connection import Connection, connection_options
from .mail import described_email, email_of, email_options
from .notice import described_notices, notify_option
from .output import instant, show, show_all
from .retry import RETRY_OPTIONS, described_retry, retry_of, retry_options
from .sqs import described_sqs, sqs_of, sqs_options
from .webhook import described, new_secret, request_options, webhook_of, webhook_options

if TYPE_CHECKING:
    from ..client import NoticeRule, QueueInfo

_COLUMNS = ("name", "kind", "topic", "partitions", "replication", "priority_topics", "created")
KINDS = ["worker", "kafka", "webhook", "sqs", "email"]


@click.group()
def queue() -> None:
    """Create, show and change queues."""


@queue.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), default="worker", show_default=True)
@click.option("--topic", default="", help="Kind kafka: the topic [<namespace>.<name>].")
@click.option("--partitions", type=int, default=0, help="Of the topic, if it is created here.")
@click.option("--replication", type=int, default=0, help="Of the topic, if it is created here.")
@click.option("--priority-topics", is_flag=True, help="Kind kafka: HIGH and LOW get topics of their own.")
@webhook_options
@sqs_options
@email_options
@retry_options
@notify_option
@connection_options
def create(
    connection: Connection,
    name: str,
    kind: str,
    topic: str,
    partitions: int,
    replication: int,
    priority_topics: bool,
    notices: tuple[NoticeRule, ...],
    **options: Any,
) -> None:
    """Create a queue. One that is there already and is the same is fine."""
    from ..core.catalog import QueueKind

    retry = retry_of(**{name: options.pop(name) for name in RETRY_OPTIONS})
    sqs = sqs_of(kind == "sqs", options)
    email = email_of(kind == "email", options)
    settings = webhook_of(**options)
    created = connection.call(
        lambda client: client.create_queue(
            name,
            QueueKind[kind.upper()],
            topic=topic,
            partitions=partitions,
            replication=replication,
            priority_topics=priority_topics,
            webhook=settings,
            sqs=sqs,
            email=email,
            retry=retry,
            notices=notices,
        )
    )
    show(connection, _described(created))


@queue.command()
@click.argument("name")
@click.option("--default-retry", is_flag=True, help="Retry policy: that by default, or of the webhook.")
@retry_options
@click.option("--no-notices", is_flag=True, help="Nothing is told of its tasks any more.")
@notify_option
@connection_options
def update(
    connection: Connection,
    name: str,
    default_retry: bool,
    no_notices: bool,
    notices: tuple[NoticeRule, ...],
    **options: Any,
) -> None:
    """Change the retry policy of a queue, or what is told of its tasks, also for tasks that are there already.

    What is not said of a retry policy is as by default; what is told is all that is told from now on.
    """
    retry = retry_of(**options)
    if retry is not None and default_retry:
        raise click.UsageError("--default-retry can't be given together with options of a retry policy")
    if notices and no_notices:
        raise click.UsageError("--no-notices and --notify can't be given together")
    changes: dict[str, Any] = {"retry": retry} if retry is not None or default_retry else {}
    changes |= {"notices": notices} if notices or no_notices else {}
    if not changes:
        raise click.UsageError("options of a retry policy, --default-retry, --notify or --no-notices are needed")
    show(connection, _described(connection.call(lambda client: client.update_queue(name, **changes))))


@queue.command("update-webhook")
@click.argument("name")
@webhook_options
@connection_options
def update_webhook(connection: Connection, name: str, **webhook: Any) -> None:
    """Replace the settings of a webhook queue. Without --secret-file it keeps its secrets; the rest needs saying."""
    settings = webhook_of(**webhook)
    if settings is None:
        raise click.UsageError("--url is needed")
    show(connection, _described(connection.call(lambda client: client.update_webhook(name, settings))))


@queue.command("update-sqs")
@click.argument("name")
@sqs_options
@request_options
@connection_options
def update_sqs(connection: Connection, name: str, **options: Any) -> None:
    """Replace the settings of an SQS queue; all need saying. A FIFO queue stays one."""
    settings = sqs_of(True, options)
    assert settings is not None
    show(connection, _described(connection.call(lambda client: client.update_settings(name, settings))))


@queue.command("update-email")
@click.argument("name")
@email_options
@request_options
@connection_options
def update_email(connection: Connection, name: str, **options: Any) -> None:
    """Replace the settings of an e-mail queue; all need saying."""
    settings = email_of(True, options)
    assert settings is not None
    show(connection, _described(connection.call(lambda client: client.update_settings(name, settings))))


@queue.command("make-secret")
def make_secret() -> None:
    """Print a fresh secret for signing webhooks."""
    print(new_secret())


@queue.command()
@click.argument("name")
@connection_options
def get(connection: Connection, name: str) -> None:
    """Show a queue."""
    show(connection, _described(connection.call(lambda client: client.get_queue(name))))


@queue.command("list")
@connection_options
def list_(connection: Connection) -> None:
    """Show all queues of the namespace."""
    rows = [_described(found) for found in connection.call(lambda client: client.list_queues())]
    show_all(connection, "queues", _COLUMNS, rows)


def _described(found: QueueInfo) -> dict[str, Any]:
    return {
        "namespace": found.namespace,
        "name": found.name,
        "kind": str(found.kind),
        "topic": found.topic,
        "partitions": found.partitions,
        "replication": found.replication,
        "priority_topics": found.priority_topics,
        "created": instant(found.created),
        "retry": described_retry(found.retry),
        "notices": described_notices(found.notices),
        **described(found.webhook),
        **described_sqs(found.sqs),
        **described_email(found.email),
    }
