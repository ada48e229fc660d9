"""The settings of an SQS queue: which one its tasks are sent to. Credentials are the process's own, never a queue's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

GROUP_LENGTH_MAX = 128
FIFO = ".fifo"

_GROUP = re.compile(r"[!-~]+")
"""What SQS allows in the id of a group."""


@dataclass(frozen=True, slots=True)
class Sqs:
    """Where a queue's tasks are sent. `endpoint_url`: of a server that speaks SQS; empty: that of the region at AWS.

    FIFO: a task's group is the value of its metadata `group_key`, else `group`, else its type.
    """

    queue_url: str
    region: str
    endpoint_url: str = ""
    group: str = ""
    group_key: str = ""
    timeout_ms: int = 15_000
    """Of one request."""
    concurrency: int = 100
    """Messages of the queue under way at once, in one process."""

    @property
    def fifo(self) -> bool:
        """Whether it keeps the order within a group. By its name, as SQS has it."""
        return self.queue_url.endswith(FIFO)

    @property
    def host(self) -> str:
        """What answers, as in a log."""
        return urlsplit(self.endpoint_url).netloc or f"sqs.{self.region}"


def is_group(text: str) -> bool:
    """Whether SQS takes it for the id of a group."""
    return len(text) <= GROUP_LENGTH_MAX and bool(_GROUP.fullmatch(text))
