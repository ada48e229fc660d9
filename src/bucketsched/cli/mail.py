"""What says on the command line how a queue's tasks are mailed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ..client import Email

Command = TypeVar("Command", bound=Callable[..., Any])
_OPTIONS = [
    click.option("--smtp-host", default="", help="Kind email: the mail server."),
    click.option("--smtp-port", type=int, help="Kind email [587]."),
    click.option("--smtp-tls", type=click.Choice(["starttls", "tls", "none"]), help="Kind email [starttls]."),
    click.option("--smtp-login", default="", help="Kind email: the name of credentials in the server's settings."),
    click.option("--from", "mail_from", default="", help="Kind email: the sender's address."),
    click.option("--to", "mail_to", multiple=True, help="Kind email: a recipient's address; may be repeated."),
    click.option("--to-key", default="", help="Kind email: the metadata that names a task's recipient."),
    click.option("--subject", default="", help="Kind email: with {type}, {task_id}, {event}, {queue}, {namespace}."),
]
_NAMES = {
    "smtp_host": "host",
    "smtp_port": "port",
    "smtp_tls": "tls",
    "smtp_login": "login",
    "mail_from": "sender",
    "mail_to": "to",
    "to_key": "to_key",
    "subject": "subject",
}
_SHARED = {"request_timeout": "timeout", "concurrency": "concurrency"}
"""Options that webhooks have as well, and what they are called here."""


def email_options(command: Command) -> Command:
    """Adds the options; `email_of` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def email_of(wanted: bool, options: dict[str, Any]) -> Email | None:
    """Takes the settings that the options mean out of `options`. None: another kind is wanted."""
    from ..client import Email

    own = {name: value for option, name in _NAMES.items() if (value := options.pop(option))}
    if not wanted:
        if own:
            raise click.UsageError("options of kind email need --kind email")
        return None
    if "host" not in own or "sender" not in own:
        raise click.UsageError("kind email needs --smtp-host and --from")
    own |= {name: options[option] for option, name in _SHARED.items() if options[option] is not None}
    options.update(dict.fromkeys(_SHARED))
    if "timeout" in own:
        own["timeout"] = own["timeout"].total_seconds()
    return Email(**own)


def described_email(email: Email | None) -> dict[str, Any]:
    """As it is shown."""
    if email is None:
        return {}
    shown = {name: getattr(email, name) for name in (*_NAMES.values(), *_SHARED.values())}
    return shown | {"to": list(email.to), "tls": str(email.tls)}
