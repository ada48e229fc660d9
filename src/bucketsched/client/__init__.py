"""The SDK: `Client` creates, reads, changes and cancels tasks; `Worker` runs handlers for them. Both are asyncio, and
`SyncClient` is the client for programs that are not.

A `Client` gathers concurrent creates into batches and sends what failed again, under ids that it makes itself. A
`Worker` attaches to every process that delivers its queue, and is the same for a cluster and for `bucketsched dev`.
"""

from __future__ import annotations

from ..core.catalog import QueueKind
from ..core.execution import AttemptEnd as AttemptOutcome
from ..core.mail import Tls as EmailTls
from ..core.notice_rule import NoticeEvent
from ..core.task import Priority, TaskState
from ..core.task_query import TaskOrder
from .client import Client
from .create_batcher import BatchLimits
from .mail import Email
from .model import (
    Attempt,
    CancelOutcome,
    CreatedTask,
    NamespaceInfo,
    NewTask,
    QueueInfo,
    ServerInfo,
    TaskCount,
    TaskInfo,
    UpdateOutcome,
    UpdateResult,
)
from .notice_rule import NoticeRule
from .outcome import NoRetry, RetryAfter
from .retry_policy import RetryPolicy
from .sqs import Sqs
from .sync_client import SyncClient
from .task import Task
from .webhook import Webhook
from .worker import Worker

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "BatchLimits",
    "CancelOutcome",
    "Client",
    "CreatedTask",
    "Email",
    "EmailTls",
    "NamespaceInfo",
    "NewTask",
    "NoRetry",
    "NoticeEvent",
    "NoticeRule",
    "Priority",
    "QueueInfo",
    "QueueKind",
    "RetryAfter",
    "RetryPolicy",
    "ServerInfo",
    "Sqs",
    "SyncClient",
    "Task",
    "TaskCount",
    "TaskInfo",
    "TaskOrder",
    "TaskState",
    "UpdateOutcome",
    "UpdateResult",
    "Webhook",
    "Worker",
]
