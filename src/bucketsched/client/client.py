"""The client: creates, reads, changes and cancels tasks, and manages queues and namespaces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.field_mask_pb2 import FieldMask

from ..core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE, QueueKind
from ..core.errors import BucketschedError, InvalidArgument, RequestError, Unavailable
from ..core.task import Priority, TaskState
from ..core.task_query import TaskOrder
from ..errors import CreateUnavailable
from ..stubs.v1 import (
    info_pb2,
    info_pb2_grpc,
    queue_pb2,
    queue_pb2_grpc,
    task_pb2,
    task_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from . import convert, request, status
from .channel import open_channel
from .clock import WallClock
from .create_batcher import BatchLimits, CreateBatcher
from .fields import check_text
from .mail import Email
from .mail_message import email_message
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
from .notice_message import to_messages as notice_messages
from .notice_rule import NoticeRule
from .retry import pauses
from .retry_message import to_message as retry_message
from .retry_policy import RetryPolicy
from .sqs import Sqs
from .sqs_message import sqs_message
from .task_list import build_count, build_list
from .webhook import Webhook
from .webhook_message import to_message

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")

DEFAULT_TARGET = "127.0.0.1:7400"
TRY_S_MAX = 10.0
INFO_S_MAX = 300.0
"""How old what is known of the server may become before it is asked again."""
CLOCKS_DIFFER_MS = 1_000
LIST_PAGE = 500
YIELD_TASKS = 500


class Client:
    """A connection to a bucketsched server or cluster. Use it as an async context manager, or call `close`.

    `target`: host:port, or several separated by commas; `namespace`: which one all calls mean; `timeout`: how long, in
    seconds, a call is tried while the server can't be reached, before it raises Unavailable.

    Creates that run at the same time are sent together. A call whose outcome is not known is sent again; for creates
    that is safe because the task's id is made here, before the first try. A relative `delay` is resolved at that moment
    too, so a create that needs several tries is due when it would have been with one.

    Raises, all from `bucketsched.errors`: InvalidArgument, NotFound, AlreadyExists and FailedPrecondition with the
    `field` at fault; Unavailable.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        timeout: float = 30.0,
        batching: BatchLimits | None = None,
    ) -> None:
        self.target = target
        self.namespace = namespace
        self._timeout_s = timeout
        self._batching = batching or BatchLimits()
        self._clock = WallClock()
        self._channel: grpc.aio.Channel | None = None
        self._batcher: CreateBatcher | None = None
        self._info: ServerInfo | None = None
        self._info_at = 0.0
        self._asking: asyncio.Task[ServerInfo] | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection. Creates that nobody waited for raise Unavailable."""
        self._closed = True
        if self._batcher is not None:
            await self._batcher.close()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    # ------------------------------------------------------------ tasks

    async def create(
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
        """Creates a task. On return it is stored durably; see `NewTask` for the parameters."""
        what = (type, payload, queue, delay, due, priority, metadata, task_id, content_type, idempotency_key)
        task = NewTask(*what, retry, start_by, expire_after, notices)
        timeout_s = self._timeout_s if timeout is None else timeout
        server = await self.info(timeout_s)
        built = self._build(task, server)
        try:
            return convert.created(await (await self._batched(server).enqueue(built, timeout_s)))
        except (RequestError, Unavailable) as error:
            raise _in_words_of_the_caller(error, task, built) from error

    async def create_many(
        self, tasks: Iterable[NewTask], *, timeout: float | None = None
    ) -> list[CreatedTask | BucketschedError]:
        """Creates many; for each, in their order, the created task or the error that it would have raised."""
        timeout_s = self._timeout_s if timeout is None else timeout
        server = await self.info(timeout_s)
        batcher = self._batched(server)
        pending = []
        for number, task in enumerate(tasks):
            pending.append(await self._begin(task, server, batcher, timeout_s))
            if number % YIELD_TASKS == YIELD_TASKS - 1:
                await asyncio.sleep(0)  # what is queued goes out while the rest is built
        return [outcome if isinstance(outcome, BucketschedError) else await outcome() for outcome in pending]

    async def _begin(
        self, task: NewTask, server: ServerInfo, batcher: CreateBatcher, timeout_s: float
    ) -> BucketschedError | Callable[[], Awaitable[CreatedTask | BucketschedError]]:
        """Queues a create; how to wait for what becomes of it, or why there is nothing to wait for."""
        try:
            built = self._build(task, server)
        except InvalidArgument as error:
            return error
        try:
            answer = await batcher.enqueue(built, timeout_s)
        except Unavailable as error:
            return _in_words_of_the_caller(error, task, built)
        return partial(_outcome, task, built, answer)

    async def mint(self, *, delay: float | timedelta | None = None, due: datetime | None = None) -> str:
        """An id for a task that is to be due then, to be stored before `create(task_id=...)`.

        Creating a task with it again, also after a crash, is the same task, as long as everything else is the same.
        """
        server = await self.info()
        now_ns = self._now_ns(server)
        due_ms = request.due_ms_of(delay, due, now_ns, server.delay_ms_max)
        return request.mint(due_ms, now_ns, server.shards)

    async def get(self, task_id: str) -> TaskInfo:
        """The task as it stands. Raises NotFound."""
        check_text("task_id", task_id)
        message = task_pb2.GetTaskRequest(namespace=self.namespace, task_id=task_id)
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).GetTask, message)
        return convert.task(response.task)

    async def cancel(self, task_id: str) -> CancelOutcome:
        """Cancels a task that was not dispatched yet. The answer is final. Raises NotFound."""
        check_text("task_id", task_id)
        message = task_pb2.CancelTaskRequest(namespace=self.namespace, task_id=task_id)
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).CancelTask, message)
        return convert.cancel_outcome(response.outcome)

    async def update(
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
        """Changes a task that waits; what is None stays as it is. UPDATED: it never goes as it was before.

        A delay counts from now. Raises NotFound; FailedPrecondition if the task is not of `expected_generation`.
        """
        check_text("task_id", task_id)
        due_ms = None
        if delay is not None or due is not None:
            server = await self.info()
            due_ms = request.due_ms_of(delay, due, self._now_ns(server), server.delay_ms_max)
        message = request.build_update(
            self.namespace, task_id, payload, metadata, priority, content_type, due_ms, expected_generation, start_by
        )
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).UpdateTask, message)
        outcome = convert.update_outcome(response.outcome)
        return UpdateResult(outcome, convert.task(response.task) if outcome.updated else None)

    async def run_now(self, task_id: str) -> UpdateOutcome:
        """Makes a task that waits due now. Raises NotFound."""
        check_text("task_id", task_id)
        message = task_pb2.RunTaskNowRequest(namespace=self.namespace, task_id=task_id)
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).RunTaskNow, message)
        return convert.update_outcome(response.outcome)

    async def redrive(self, task_id: str) -> UpdateResult:
        """Does a task all over, from now on, that has FAILED or EXPIRED: UPDATED. One that waits stays as it is.

        Raises NotFound.
        """
        check_text("task_id", task_id)
        message = task_pb2.RedriveTaskRequest(namespace=self.namespace, task_id=task_id)
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).RedriveTask, message)
        outcome = convert.update_outcome(response.outcome)
        return UpdateResult(outcome, convert.task(response.task) if response.HasField("task") else None)

    async def attempts(self, task_id: str) -> list[Attempt]:
        """The execution log of a task, oldest first: of its attempts the last 1,000. Raises NotFound."""
        check_text("task_id", task_id)
        message = task_pb2.ListAttemptsRequest(namespace=self.namespace, task_id=task_id)
        found: list[Attempt] = []
        while True:
            response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).ListAttempts, message)
            found += map(convert.attempt, response.attempts)
            if not response.next_page_token:
                return found
            message.page_token = response.next_page_token

    async def count_tasks(
        self,
        *,
        queue: str = "",
        type: str = "",
        state: TaskState | str | None = None,
        due_from: datetime | None = None,
        due_until: datetime | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> TaskCount:
        """How many tasks match everything given, as far as a walk of bounded length tells. Raises NotFound (queue)."""
        message = build_count(self.namespace, queue, type, state, due_from, due_until, metadata)
        response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).CountTasks, message)
        return TaskCount(response.count, response.exact)

    async def list_tasks(
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
    ) -> AsyncIterator[TaskInfo]:
        """All tasks that match everything given, page after page: `async for task in client.list_tasks(...)`.

        In the order of their due times, with NEWEST the latest one first; `due_until` itself is left out. Tasks that
        are created or moved meanwhile may be there or not. Raises NotFound (queue).
        """
        message = build_list(self.namespace, queue, type, state, due_from, due_until, metadata, order, page_size)
        while True:
            response = await self._call(lambda channel: task_pb2_grpc.TaskServiceStub(channel).ListTasks, message)
            for found in response.tasks:
                yield convert.task(found)
            if not response.next_page_token:
                return
            message.page_token = response.next_page_token

    # ------------------------------------------------------------ queues and namespaces

    async def create_queue(
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
        """Creates a queue; a queue that is there already is returned if it is the same. Raises AlreadyExists.

        `webhook`, `sqs`, `email`: for the kind called so, and for no other. `retry`: of tasks without a policy of their
        own; not for KAFKA.
        """
        for field, value in (("name", name), ("topic", topic)):
            check_text(field, value)
        for field, number in (("partitions", partitions), ("replication", replication)):
            if not isinstance(number, int) or not -(2**31) <= number < 2**31:
                raise InvalidArgument(field, f"must be a number, is {number!r}")
        queue = queue_pb2.Queue(
            namespace=self.namespace,
            name=name,
            kind=convert.to_queue_kind(kind),
            topic=topic,
            partitions=partitions,
            replication=replication,
            priority_topics=priority_topics,
            webhook=to_message(webhook) if webhook is not None else None,
            sqs=sqs_message(sqs) if sqs is not None else None,
            email=email_message(email) if email is not None else None,
            policy=queue_pb2.QueuePolicy(retry=retry_message(retry), notices=notice_messages(notices)),
        )
        message = queue_pb2.CreateQueueRequest(queue=queue)
        response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).CreateQueue, message)
        return convert.queue(response.queue)

    async def update_queue(
        self,
        name: str,
        *,
        retry: RetryPolicy | Unchanged | None = UNCHANGED,
        notices: Sequence[NoticeRule] | Unchanged = UNCHANGED,
    ) -> QueueInfo:
        """Changes the retry policy of a queue (None: that by default), what is told of its tasks, or both.

        It holds for tasks that are there already, too: their owners follow within seconds. Raises NotFound, also for a
        queue that is to get notices; FailedPrecondition for a retry policy of a queue of kind KAFKA.
        """
        check_text("name", name)
        given = {"retry": retry, "notices": notices}
        mask = FieldMask(paths=[field for field, value in given.items() if value is not UNCHANGED])
        policy = queue_pb2.QueuePolicy(
            retry=None if isinstance(retry, Unchanged) else retry_message(retry),
            notices=() if isinstance(notices, Unchanged) else notice_messages(notices),
        )
        message = queue_pb2.UpdateQueueRequest(namespace=self.namespace, name=name, policy=policy, update_mask=mask)
        response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).UpdateQueue, message)
        return convert.queue(response.queue)

    async def update_settings(self, name: str, settings: Sqs | Email) -> QueueInfo:
        """Replaces the settings of a queue of kind SQS or EMAIL. Raises NotFound; FailedPrecondition for another kind,
        and where a FIFO queue would become a standard one or the other way about.

        Processes that deliver follow within seconds.
        """
        check_text("name", name)
        message = queue_pb2.UpdateSettingsRequest(namespace=self.namespace, name=name)
        if isinstance(settings, Sqs):
            message.sqs.CopyFrom(sqs_message(settings))
        else:
            message.email.CopyFrom(email_message(settings))
        response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).UpdateSettings, message)
        return convert.queue(response.queue)

    async def update_webhook(self, name: str, webhook: Webhook) -> QueueInfo:
        """Replaces the settings of a webhook queue; without secrets among them it keeps its own. Raises NotFound.

        Processes that deliver follow within seconds. To go over to a new secret: give both, wait until the receiver
        knows the new one, give that alone.
        """
        check_text("name", name)
        settings = to_message(webhook)
        message = queue_pb2.UpdateWebhookRequest(namespace=self.namespace, name=name, webhook=settings)
        response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).UpdateWebhook, message)
        return convert.queue(response.queue)

    async def get_queue(self, name: str = DEFAULT_QUEUE) -> QueueInfo:
        """A queue. Raises NotFound."""
        check_text("name", name)
        message = queue_pb2.GetQueueRequest(namespace=self.namespace, name=name)
        response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).GetQueue, message)
        return convert.queue(response.queue)

    async def list_queues(self) -> list[QueueInfo]:
        """All queues of the namespace, by name."""
        return [queue async for queue in self._queues()]

    async def _queues(self) -> AsyncIterator[QueueInfo]:
        message = queue_pb2.ListQueuesRequest(namespace=self.namespace, page_size=LIST_PAGE)
        while True:
            response = await self._call(lambda channel: queue_pb2_grpc.QueueServiceStub(channel).ListQueues, message)
            for queue in response.queues:
                yield convert.queue(queue)
            if not response.next_page_token:
                return
            message.page_token = response.next_page_token

    async def create_namespace(self, name: str) -> NamespaceInfo:
        """Creates a namespace, or returns the one of this name."""
        check_text("name", name)
        message = queue_pb2.CreateNamespaceRequest(name=name)
        response = await self._call(
            lambda channel: queue_pb2_grpc.NamespaceServiceStub(channel).CreateNamespace, message
        )
        return convert.namespace(response.namespace)

    async def list_namespaces(self) -> list[NamespaceInfo]:
        """All namespaces, by name."""
        message = queue_pb2.ListNamespacesRequest()
        response = await self._call(
            lambda channel: queue_pb2_grpc.NamespaceServiceStub(channel).ListNamespaces, message
        )
        return [convert.namespace(namespace) for namespace in response.namespaces]

    async def worker_addresses(self, queue: str, *, timeout: float | None = None) -> list[str]:
        """Where a worker of this queue has to attach. Raises NotFound; FailedPrecondition where it has no workers."""
        check_text("queue", queue)
        message = worker_pb2.ListEndpointsRequest(namespace=self.namespace, queue=queue)
        response = await self._call(
            lambda channel: worker_pb2_grpc.WorkerServiceStub(channel).ListEndpoints, message, timeout
        )
        return list(response.addresses)

    # ------------------------------------------------------------ the server

    async def info(self, timeout: float | None = None) -> ServerInfo:
        """What the server says of itself; asked once, and again behind the caller when it has become old."""
        known = self._info
        if known is not None and self._clock.monotonic() - self._info_at < INFO_S_MAX:
            return known
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_info())
            self._asking.add_done_callback(self._asked)
        return known if known is not None else await self._told(self._asking, timeout)

    async def _told(self, asking: asyncio.Task[ServerInfo], timeout: float | None) -> ServerInfo:
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(asking)
        except TimeoutError as error:
            raise Unavailable("the server does not answer") from error
        except asyncio.CancelledError as error:
            if self._cut_off():
                raise Unavailable("the client was closed") from error
            raise

    def _cut_off(self) -> bool:
        """True if it is not the caller who was cancelled, but its call, because the client was closed."""
        task = asyncio.current_task()
        return self._closed and task is not None and not task.cancelling()

    def _asked(self, task: asyncio.Task[ServerInfo]) -> None:
        self._asking = None
        if task.cancelled() or task.exception() is not None:
            self._info_at = self._clock.monotonic() - INFO_S_MAX + TRY_S_MAX

    async def _ask_info(self) -> ServerInfo:
        message = info_pb2.GetServerInfoRequest()
        response, sent_ns, received_ns = await self._timed_info(message)
        offset_ms = request.from_timestamp(response.server_time) - (sent_ns + received_ns) // 2 // request.NS_PER_MS
        if abs(offset_ms) < CLOCKS_DIFFER_MS + (received_ns - sent_ns) // request.NS_PER_MS:
            offset_ms = 0
        elif self._info is None:
            log.warning("the clock here differs from the server's by %d ms; delays follow the server's", offset_ms)
        self._info, self._info_at = convert.server_info(response, offset_ms), self._clock.monotonic()
        return self._info

    async def _timed_info(
        self, message: info_pb2.GetServerInfoRequest
    ) -> tuple[info_pb2.GetServerInfoResponse, int, int]:
        """The answer and when the try that brought it began and ended."""
        sent_ns = 0

        def method(channel: grpc.aio.Channel) -> Any:
            nonlocal sent_ns
            sent_ns = self._clock.now_ns()
            return info_pb2_grpc.InfoServiceStub(channel).GetServerInfo

        response = await self._call(method, message)
        return response, sent_ns, self._clock.now_ns()

    # ------------------------------------------------------------ the way there

    def _build(self, task: NewTask, server: ServerInfo) -> request.CreateRequest:
        return request.build(task, self.namespace, DEFAULT_QUEUE, self._now_ns(server), server)

    def _now_ns(self, server: ServerInfo) -> int:
        return self._clock.now_ns() + server.clock_offset_ms * request.NS_PER_MS

    def _batched(self, server: ServerInfo) -> CreateBatcher:
        if self._batcher is None:
            self._batcher = CreateBatcher(self._send_batch, self._clock, self._batching, server.batch_tasks_max)
        return self._batcher

    async def _send_batch(
        self, message: task_pb2.BatchCreateTasksRequest, timeout_s: float
    ) -> task_pb2.BatchCreateTasksResponse:
        stub = task_pb2_grpc.TaskServiceStub(await self._connected())
        return await stub.BatchCreateTasks(message, timeout=timeout_s)

    async def _connected(self) -> grpc.aio.Channel:
        async with self._opening:
            if self._closed:
                raise Unavailable("the client is closed")
            if self._channel is None:
                check_text("namespace", self.namespace)
                self._channel = await open_channel(self.target)
            return self._channel

    async def _call(self, method: Callable[[grpc.aio.Channel], Any], message: Any, timeout: float | None = None) -> Any:
        """Calls until there is an answer or the time is up. All calls that come here can be repeated."""
        deadline = self._clock.monotonic() + (self._timeout_s if timeout is None else timeout)
        for shortest_s in pauses():
            pause_s = shortest_s
            left_s = deadline - self._clock.monotonic()
            try:
                channel = await self._connected()
                return await method(channel)(message, timeout=max(0.05, min(left_s, TRY_S_MAX)))
            except grpc.aio.AioRpcError as error:
                translated = status.from_call(error)
                if not isinstance(translated, Unavailable):
                    raise translated from error
                pause_s = max(pause_s, translated.retry_after_ms / 1000)
                if self._clock.monotonic() + pause_s >= deadline:
                    raise translated from error
            except asyncio.CancelledError as error:
                if self._cut_off():
                    raise Unavailable("the client was closed") from error
                raise
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")


async def _outcome(
    task: NewTask, built: request.CreateRequest, answer: Awaitable[task_pb2.CreateTaskResponse]
) -> CreatedTask | BucketschedError:
    try:
        return convert.created(await answer)
    except BucketschedError as error:
        return _in_words_of_the_caller(error, task, built)


def _in_words_of_the_caller(error: BucketschedError, task: NewTask, built: request.CreateRequest) -> BucketschedError:
    """The request says due_time where the caller said due or delay, and has the id, which the caller may not know."""
    if isinstance(error, Unavailable):
        return CreateUnavailable(built.message.task_id, str(error), error)
    if isinstance(error, RequestError) and error.field == "due_time":
        return type(error)("due" if task.delay is None else "delay", error.message)
    return error
