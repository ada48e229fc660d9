"""bucketsched: a durable, distributed scheduler for delayed tasks.

The SDK's names (`Client`, `Worker`, `Task`, ...) are loaded when they are first used, so that a server or the command
line does not pay for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import (
        Attempt,
        AttemptOutcome,
        BatchLimits,
        CancelOutcome,
        Client,
        CreatedTask,
        Email,
        EmailTls,
        NamespaceInfo,
        NewTask,
        NoRetry,
        NoticeEvent,
        NoticeRule,
        Priority,
        QueueInfo,
        QueueKind,
        RetryAfter,
        RetryPolicy,
        ServerInfo,
        Sqs,
        SyncClient,
        Task,
        TaskCount,
        TaskInfo,
        TaskOrder,
        TaskState,
        UpdateOutcome,
        UpdateResult,
        Webhook,
        Worker,
    )

__version__: str
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
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("bucketsched")
    if name in __all__:
        return getattr(import_module(".client", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
