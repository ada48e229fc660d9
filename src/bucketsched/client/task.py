"""A task as a handler gets it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..core.task import Priority
from ..stubs.v1 import worker_pb2
from . import convert
from .model import to_datetime
from .request import from_timestamp


@dataclass(slots=True)
class Task:
    """One attempt at a task. Delivery is at least once: `key` is the same each time this attempt is delivered.

    `epoch` only grows for tasks of one shard: a store that remembers the highest can refuse what a stale process sends.
    `offer_count` counts how often this server process has offered the attempt. Times in ms since the Unix epoch.
    """

    id: str
    type: str
    payload: bytes
    metadata: dict[str, str]
    namespace: str
    queue: str
    content_type: str
    priority: Priority
    due_ms: int
    dispatched_ms: int
    lease_expires_ms: int
    generation: int
    attempt: int
    epoch: int
    offer_count: int

    @classmethod
    def from_offer(cls, offer: worker_pb2.Offer) -> Task:
        """The task of an offer."""
        return cls(
            id=offer.task_id,
            type=offer.type,
            payload=offer.payload,
            metadata=dict(offer.metadata) if offer.metadata else {},
            namespace=offer.namespace,
            queue=offer.queue,
            content_type=offer.content_type,
            priority=convert.priority(offer.priority),
            due_ms=from_timestamp(offer.due_time),
            dispatched_ms=from_timestamp(offer.dispatch_time),
            lease_expires_ms=from_timestamp(offer.lease_expire_time),
            generation=offer.generation,
            attempt=offer.attempt,
            epoch=offer.epoch,
            offer_count=offer.offer_count,
        )

    @property
    def key(self) -> str:
        """Names this attempt. The same as `ce_id` in Kafka."""
        return f"{self.id}/{self.generation}/{self.attempt}"

    def once(self, step: str) -> str:
        """A key for something that the handler does once for this task, however often it is attempted: to be handed to
        whatever takes idempotency keys (a payment service, a unique column). `step` tells several of them apart."""
        return f"{self.id}/{self.generation}/{step}"

    @property
    def due(self) -> datetime:
        """When it was due, UTC."""
        return to_datetime(self.due_ms)

    @property
    def dispatched(self) -> datetime:
        """When it was dispatched, UTC."""
        return to_datetime(self.dispatched_ms)

    @property
    def lease_expires(self) -> datetime:
        """When it has timed out unless its lease is extended, as it is while the handler runs, UTC."""
        return to_datetime(self.lease_expires_ms)

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text. Raises UnicodeDecodeError."""
        return self.payload.decode(encoding)

    def json(self) -> Any:
        """The payload as JSON. Raises ValueError."""
        return json.loads(self.payload)
