"""The settings of an e-mail queue, as the client gives and takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.mail import Email as Settings
from ..core.mail import Tls

_DEFAULT = Settings("", "")


@dataclass(frozen=True, slots=True)
class Email:
    """How the tasks of a queue are mailed: by the server `host`, from `sender`, to the address that a task's metadata
    `to_key` names, else to all of `to`.

    `subject` may have {type}, {task_id}, {event}, {queue}, {namespace} in it. `login`: the name of credentials in the
    settings of the delivering processes. `timeout`: of one mail, in seconds. `concurrency`: mails at once in a process.
    """

    host: str
    sender: str
    to: Sequence[str] = ()
    to_key: str = ""
    subject: str = _DEFAULT.subject
    port: int = _DEFAULT.port
    tls: Tls | str = _DEFAULT.tls
    login: str = ""
    timeout: float = _DEFAULT.timeout_ms / 1000
    concurrency: int = _DEFAULT.concurrency
