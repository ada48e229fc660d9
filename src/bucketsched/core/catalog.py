"""Namespaces and queues: what tasks belong to and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .mail import Email
from .queue_policy import NO_POLICY, QueuePolicy
from .retry import DEFAULT_RETRY, RetryPolicy
from .sqs import Sqs
from .task import Priority
from .webhook import Webhook

DEFAULT_NAMESPACE = "default"
DEFAULT_QUEUE = "default"


class QueueKind(StrEnum):
    """Where a queue's tasks go."""

    KAFKA = "KAFKA"
    WORKER = "WORKER"
    WEBHOOK = "WEBHOOK"
    SQS = "SQS"
    EMAIL = "EMAIL"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A tenant. `namespace_id` (16 bytes, never reused) is what rows carry."""

    name: str
    namespace_id: bytes
    created_ms: int


@dataclass(frozen=True, slots=True)
class Queue:
    """A named destination. `topic` is empty in embedded mode; WEBHOOK, SQS and EMAIL have settings called so."""

    namespace_id: bytes
    namespace: str
    name: str
    kind: QueueKind
    topic: str = ""
    partitions: int = 0
    replication: int = 0
    priority_topics: bool = False
    created_ms: int = 0
    webhook: Webhook | None = None
    policy: QueuePolicy = NO_POLICY
    sqs: Sqs | None = None
    email: Email | None = None

    @property
    def pushed_at_once(self) -> int:
        """How many of its tasks one process has under way at once; 0 where others come for them."""
        settings = self.webhook or self.sqs or self.email
        return settings.concurrency if settings else 0

    @property
    def retry_policy(self) -> RetryPolicy:
        """What holds for tasks without a policy of their own."""
        return self.policy.retry or (self.webhook.retry if self.webhook else DEFAULT_RETRY)

    @property
    def tracks_outcomes(self) -> bool:
        """True if it is known how its attempts end: whoever delivers them says so."""
        return self.kind is not QueueKind.KAFKA

    def topic_for(self, priority: Priority) -> str:
        """The topic of a task of this priority."""
        if not self.priority_topics or priority is Priority.NORMAL:
            return self.topic
        return f"{self.topic}.{priority.name.lower()}"

    @property
    def topics(self) -> list[str]:
        """Every topic of this queue, highest priority first."""
        if not self.priority_topics:
            return [self.topic]
        return [self.topic_for(priority) for priority in Priority]
