"""The settings of an e-mail queue: by which server its tasks are mailed, from whom, to whom."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

ADDRESS_LENGTH_MAX = 254
_ADDRESS = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})*")


class Tls(StrEnum):
    """How a connection is made safe. NONE: not at all."""

    STARTTLS = "STARTTLS"
    TLS = "TLS"
    NONE = "NONE"


@dataclass(frozen=True, slots=True)
class Email:
    """How the tasks of a queue are mailed. `login`: the name of credentials in the server's settings; "": none."""

    host: str
    sender: str
    to: tuple[str, ...] = ()
    to_key: str = ""
    """The metadata that names the recipient of a task; without it, or where a task has none: `to`."""
    subject: str = "{event} {type} {task_id}"
    port: int = 587
    tls: Tls = Tls.STARTTLS
    login: str = ""
    timeout_ms: int = 30_000
    """Of one mail, from connecting to the server's last word."""
    concurrency: int = 8
    """Mails of the queue at once, in one process: each has a connection of its own."""

    @property
    def server(self) -> str:
        """Host and port, as in a log and in settings."""
        return f"{self.host}:{self.port}"

    @property
    def on_loopback(self) -> bool:
        """Whether what is sent never leaves the machine."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def is_address(text: str) -> bool:
    """Whether this is an address and nothing else: no name, no list, nothing that could end a header."""
    return len(text) <= ADDRESS_LENGTH_MAX and bool(_ADDRESS.fullmatch(text))
