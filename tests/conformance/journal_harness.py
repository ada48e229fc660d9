"""What the suites of Journal and Deliveries need of an adapter, and what they send.

Every adapter has a module `factories_journal_<name>` with an async context manager `journal_harness(request)`, and
`factories_deliveries_<name>` with `deliveries_harness(request)`; the suites import them by name.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from uuid import uuid4

import pytest

from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.message import Headers, Message
from bucketsched.core.task import RowRef
from bucketsched.ports import Deliveries, Journal

NAMESPACE_ID = uuid4().bytes
ADAPTERS = ["memory", "simulated", "sqlite", pytest.param("kafka", marks=pytest.mark.stack)]


class JournalHarness(Protocol):
    """One journal with at least three lanes, all empty at first."""

    message_bytes_max: int
    """A message of this size or more can't be sent."""

    def open(self, lane: int) -> Journal:
        """A new instance on a lane, as a process that starts has it: not initialised, closed by the harness."""
        ...

    async def make_queue(self) -> Queue:
        """A new queue that can be sent to; its messages keep their order."""
        ...

    async def visible(self, queue: Queue, count: int) -> list[tuple[Headers, bytes]]:
        """All that a `read_committed` consumer of the queue sees; waits (bounded) until it is `count` messages.

        Then it makes sure that no more are visible.
        """
        ...


class DeliveriesHarness(Protocol):
    """Deliveries, and a way to have something delivered."""

    acks_beyond_gaps_are_durable: bool
    """False where only an unbroken row of acknowledged messages is remembered after close."""

    def open(self) -> Deliveries:
        """A new instance, as a process that starts has it."""
        ...

    async def make_queue(self) -> Queue:
        """A new queue; its messages keep their order."""
        ...

    async def publish(self, messages: Sequence[Message]) -> None:
        """Commits messages; on return they are visible."""
        ...


def message(queue: Queue, value: bytes, headers: Headers | None = None) -> Message:
    """A message to a queue."""
    ref = RowRef(1_000, queue.namespace_id, uuid4().bytes, 0, 1).pack()
    plain: Headers = [("ce_id", value[:32])] if headers is None else headers
    return Message(ref, queue, queue.topic, None, plain, value)


def worker_queue(name: str = "") -> Queue:
    """A queue where queues need no making."""
    return Queue(NAMESPACE_ID, "default", name or f"q-{uuid4().hex[:8]}", QueueKind.WORKER)


def journal_harness(adapter: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[JournalHarness]:
    """The journal harness of an adapter."""
    module: Any = importlib.import_module(f"factories_journal_{adapter}")
    harness: AbstractAsyncContextManager[JournalHarness] = module.journal_harness(request)
    return harness


def deliveries_harness(adapter: str, request: pytest.FixtureRequest) -> AbstractAsyncContextManager[DeliveriesHarness]:
    """The deliveries harness of an adapter."""
    module: Any = importlib.import_module(f"factories_deliveries_{adapter}")
    harness: AbstractAsyncContextManager[DeliveriesHarness] = module.deliveries_harness(request)
    return harness


async def collect(batches: AsyncIterator[list[Any]]) -> list[Any]:
    """All items of a stream of lists."""
    return [item async for batch in batches for item in batch]
