"""What says on the command line to which queue of SQS tasks are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..client import Sqs

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = [
    click.option("--queue-url", default="", help="Kind sqs: of the queue; a FIFO queue's ends in .fifo."),
    click.option("--region", default="", help="Kind sqs: of AWS, such as eu-central-1."),
    click.option("--endpoint-url", default="", help="Kind sqs: of a server that speaks like SQS [AWS's]."),
    click.option("--group", default="", help="Kind sqs, FIFO: the group of tasks that name none [their type]."),
    click.option("--group-key", default="", help="Kind sqs, FIFO: the metadata that names a task's group."),
]
_NAMES = ("queue_url", "region", "endpoint_url", "group", "group_key")
_SHARED = {"request_timeout": "timeout", "concurrency": "concurrency"}
"""Options that webhooks have as well, and what they are called here."""


def sqs_options(command: Command) -> Command:
    """Adds the options; `sqs_of` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def sqs_of(wanted: bool, options: dict[str, Any]) -> Sqs | None:
    """Takes the settings that the options mean out of `options`. None: another kind is wanted."""
    from ..client import Sqs

    own = {name: options.pop(name) for name in _NAMES}
    if not wanted:
        if any(own.values()):
            raise click.UsageError("options of kind sqs need --kind sqs")
        return None
    if not own["queue_url"] or not own["region"]:
        raise click.UsageError("kind sqs needs --queue-url and --region")
    given = {name: options[option] for option, name in _SHARED.items() if options[option] is not None}
    options.update(dict.fromkeys(_SHARED))
    if "timeout" in given:
        given["timeout"] = given["timeout"].total_seconds()
    return Sqs(**own, **given)


def described_sqs(sqs: Sqs | None) -> dict[str, Any]:
    """As it is shown."""
    if sqs is None:
        return {}
    return {name: getattr(sqs, name) for name in (*_NAMES, *_SHARED.values())}
