"""The client for programs without an event loop: the same calls, blocking.

A `SyncClient` runs a `Client` in an event loop of its own, in a thread of its own. So calls from many threads share one
connection, and creates that run at the same time are sent together, as if they were tasks of one loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from ..core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE, QueueKind
from ..core.errors import BucketschedError, Unavailable
from ..core.task import Priority, TaskState
from ..core.task_query import TaskOrder
from .client import DEFAULT_TARGET, LIST_PAGE, Client
from .create_batcher import BatchLimits
from .mail import Email
from .model import (
    UNCHANGED,
    Attempt,
    CancelOutcome,
    CreatedTask,
    NamespaceInfo,
    NewTask,
    QueueInfo,
    ServerInfo,
    TaskCount,
    TaskInfo,
    Unchanged,
    UpdateOutcome,
    UpdateResult,
)
from .notice_rule import NoticeRule
from .retry_policy import RetryPolicy
from .sqs import Sqs
from .webhook import Webhook

Result = TypeVar("Result")
CLOSE_S_MAX = 10.0


class SyncClient:
    """See `Client` for the parameters and for what the calls raise. Use it as a context manager, or call `close`.

    May be shared by threads, not by processes: after a fork make a new one. Not for use within a running event loop,
    which its calls would hold up.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        timeout: float = 30.0,
        batching: BatchLimits | None = None,
    ) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._closing = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bucketsched-client", daemon=True)
        self._thread.start()
        self._client = self._run(lambda: _made(target, namespace, timeout, batching))

    def __enter__(self) -> Self:
        self._run(self._client.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection and the thread. Calls that others are in raise Unavailable. May be called again."""
        with self._closing:
            if self._closed:
                return
            try:
                self._run(self._client.close)
            finally:
                self._closed = True
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(CLOSE_S_MAX)
                if not self._thread.is_alive():
                    self._loop.close()

    @property
    def target(self) -> str:
        """host:port of the server, or several."""
        return self._client.target

    @property
    def namespace(self) -> str:
        """Which one all calls mean."""
        return self._client.namespace

    def _run(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Runs it in the client's loop, and waits. An interrupt of the caller cancels it there."""
        if os.getpid() != self._pid:
            raise Unavailable("the client was made before a fork: make a new one in each process")
        if self._closed:
            raise Unavailable("the client is closed")
        running: Future[Result] = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    # ------------------------------------------------------------ tasks

    def create(
        self,
        type: str,
        payload: bytes = b"",
        *,
        queue: str | None = None,
        delay: float | timedelta | None = None,
        due: datetime | None = None,
        priority: Priority = Priority.NORMAL,
        metadata: dict[str, str] | None = None,
        task_id: str | None = None,
        content_type: str = "",
        idempotency_key: str = "",
        retry: RetryPolicy | None = None,
        start_by: datetime | None = None,
        expire_after: float | timedelta | None = None,
        notices: Sequence[NoticeRule] = (),
        timeout: float | None = None,
    ) -> CreatedTask:
        """See Client.create."""
        return self._run(
            lambda: self._client.create(
                type,
                payload,
                queue=queue,
                delay=delay,
                due=due,
                priority=priority,
                metadata=metadata,
                task_id=task_id,
                content_type=content_type,
                idempotency_key=idempotency_key,
                retry=retry,
                start_by=start_by,
                expire_after=expire_after,
                notices=notices,
                timeout=timeout,
            )
        )

    def create_many(
        self, tasks: Iterable[NewTask], *, timeout: float | None = None
    ) -> list[CreatedTask | BucketschedError]:
        """See Client.create_many. The iterable is gone through here, in the caller's thread."""
        wanted = list(tasks)
        return self._run(lambda: self._client.create_many(wanted, timeout=timeout))

    def mint(self, *, delay: float | timedelta | None = None, due: datetime | None = None) -> str:
        """See Client.mint."""
        return self._run(lambda: self._client.mint(delay=delay, due=due))

    def get(self, task_id: str) -> TaskInfo:
        """See Client.get."""
        return self._run(lambda: self._client.get(task_id))

    def cancel(self, task_id: str) -> CancelOutcome:
        """See Client.cancel."""
        return self._run(lambda: self._client.cancel(task_id))

    def update(
        self,
        task_id: str,
        *,
        payload: bytes | None = None,
        delay: float | timedelta | None = None,
        due: datetime | None = None,
        priority: Priority | None = None,
        metadata: Mapping[str, str] | None = None,
        content_type: str | None = None,
        expected_generation: int | None = None,
        start_by: datetime | None = None,
    ) -> UpdateResult:
        """See Client.update."""
        return self._run(
            lambda: self._client.update(
                task_id,
                payload=payload,
                delay=delay,
                due=due,
                priority=priority,
                metadata=metadata,
                content_type=content_type,
                expected_generation=expected_generation,
                start_by=start_by,
            )
        )

    def run_now(self, task_id: str) -> UpdateOutcome:
        """See Client.run_now."""
        return self._run(lambda: self._client.run_now(task_id))

    def redrive(self, task_id: str) -> UpdateResult:
        """See Client.redrive."""
        return self._run(lambda: self._client.redrive(task_id))

    def attempts(self, task_id: str) -> list[Attempt]:
        """See Client.attempts."""
        return self._run(lambda: self._client.attempts(task_id))

    def count_tasks(
        self,
        *,
        queue: str = "",
        type: str = "",
        state: TaskState | str | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> TaskCount:
        """See Client.count_tasks."""
        return self._run(
            lambda: self._client.count_tasks(
                queue=queue, type=type, state=state, due_from=due_from, due_until=due_until, metadata=metadata
            )
        )

    def list_tasks(
        self,
        *,
        queue: str = "",
        type: str = "",
        state: TaskState | str | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
        order: TaskOrder | str = TaskOrder.NEXT,
        page_size: int = LIST_PAGE,
    ) -> Iterator[TaskInfo]:
        """See Client.list_tasks."""
        tasks = self._client.list_tasks(
            queue=queue,
            type=type,
            state=state,
            due_from=due_from,
            due_until=due_until,
            metadata=metadata,
            order=order,
            page_size=page_size,
        )

        async def following() -> TaskInfo | None:
            return await anext(tasks, None)

        while (task := self._run(following)) is not None:
            yield task

    # ------------------------------------------------------------ queues and namespaces

    def create_queue(
        self,
        name: str,
        kind: QueueKind = QueueKind.WORKER,
        *,
        topic: str = "",
        partitions: int = 0,
        replication: int = 0,
        priority_topics: bool = False,
        webhook: Webhook | None = None,
        sqs: Sqs | None = None,
        email: Email | None = None,
        retry: RetryPolicy | None = None,
        notices: Sequence[NoticeRule] = (),
    ) -> QueueInfo:
        """See Client.create_queue."""
        return self._run(
            lambda: self._client.create_queue(
                name,
                kind,
                topic=topic,
                partitions=partitions,
                replication=replication,
                priority_topics=priority_topics,
                webhook=webhook,
                sqs=sqs,
                email=email,
                retry=retry,
                notices=notices,
            )
        )

    def update_queue(
        self,
        name: str,
        *,
        retry: RetryPolicy | Unchanged | None = UNCHANGED,
        notices: Sequence[NoticeRule] | Unchanged = UNCHANGED,
    ) -> QueueInfo:
        """See Client.update_queue."""
        return self._run(lambda: self._client.update_queue(name, retry=retry, notices=notices))

    def update_settings(self, name: str, settings: Sqs | Email) -> QueueInfo:
        """See Client.update_settings."""
        return self._run(lambda: self._client.update_settings(name, settings))

    def update_webhook(self, name: str, webhook: Webhook) -> QueueInfo:
        """See Client.update_webhook."""
        return self._run(lambda: self._client.update_webhook(name, webhook))

    def get_queue(self, name: str = DEFAULT_QUEUE) -> QueueInfo:
        """See Client.get_queue."""
        return self._run(lambda: self._client.get_queue(name))

    def list_queues(self) -> list[QueueInfo]:
        """See Client.list_queues."""
        return self._run(self._client.list_queues)

    def create_namespace(self, name: str) -> NamespaceInfo:
        """See Client.create_namespace."""
        return self._run(lambda: self._client.create_namespace(name))

    def list_namespaces(self) -> list[NamespaceInfo]:
        """See Client.list_namespaces."""
        return self._run(self._client.list_namespaces)

    def worker_addresses(self, queue: str, *, timeout: float | None = None) -> list[str]:
        """See Client.worker_addresses."""
        return self._run(lambda: self._client.worker_addresses(queue, timeout=timeout))

    def info(self, timeout: float | None = None) -> ServerInfo:
        """See Client.info."""
        return self._run(lambda: self._client.info(timeout))


async def _made(target: str, namespace: str, timeout: float, batching: BatchLimits | None) -> Client:
    """In the loop that it belongs to."""
    return Client(target, namespace, timeout=timeout, batching=batching)
