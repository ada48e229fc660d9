"""The settings of an SQS queue, as the client gives and takes them."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.sqs import Sqs as Settings

_DEFAULT = Settings("", "")


@dataclass(frozen=True, slots=True)
class Sqs:
    """Where the tasks of a queue are sent. Credentials are those of the delivering processes.

    `endpoint_url`: of a server that speaks like SQS; else that of the region. FIFO queues (by their names): a task's
    group is the value of its metadata `group_key`, else `group`, else its type. `timeout`: of one request, in seconds.
    `concurrency`: messages under way at once in each process.
    """

    queue_url: str
    region: str
    endpoint_url: str = ""
    group: str = ""
    group_key: str = ""
    timeout: float = _DEFAULT.timeout_ms / 1000
    concurrency: int = _DEFAULT.concurrency
