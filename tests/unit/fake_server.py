"""A server for the SDK and the command line, whose tasks are a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bucketsched.adapters.system_clock import SystemClock
from bucketsched.api.errors import Context
from bucketsched.api.info import InfoServicer
from bucketsched.api.rpc import Service, unary, unary_service
from bucketsched.api.server import GrpcServer
from bucketsched.core.errors import AlreadyExists, NotFound
from bucketsched.core.validation import Limits
from bucketsched.stubs.v1 import queue_pb2, task_pb2

SHARDS = 16


class SkewedClock(SystemClock):
    """A server's clock that goes wrong."""

    def __init__(self, skew_ms: int) -> None:
        super().__init__()
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return super().now_ms() + self.skew_ms


class FakeServer:
    """Remembers what it was asked. `on_batch(number, request)` may raise; `on_item(request)` may answer an error."""

    def __init__(self) -> None:
        self.batches: list[task_pb2.BatchCreateTasksRequest] = []
        self.tasks: dict[str, task_pb2.CreateTaskRequest] = {}
        self.on_batch: Callable[[int, task_pb2.BatchCreateTasksRequest], None] | None = None
        self.on_item: Callable[[task_pb2.CreateTaskRequest], task_pb2.ItemError | None] | None = None
        self.gate: asyncio.Event | None = None
        self.in_flight = 0
        self.reads = 0
        self.most_in_flight = 0
        self.on_cancel: Callable[[], None] | None = None
        self.cancel_outcome = task_pb2.CANCEL_OUTCOME_ALREADY_DISPATCHED
        self.queues: dict[str, queue_pb2.Queue] = {}
        self.clock = SkewedClock(0)
        self.message_bytes_max = 8 * 1024 * 1024
        self.address = "127.0.0.1:0"
        self.more_services: list[Service] = []
        self._server: GrpcServer | None = None

    async def start(self) -> None:
        tasks = {
            "BatchCreateTasks": unary(self.batch_create, task_pb2.BatchCreateTasksRequest),
            "GetTask": unary(self.get, task_pb2.GetTaskRequest),
            "CancelTask": unary(self.cancel, task_pb2.CancelTaskRequest),
        }
        queues = {
            "CreateQueue": unary(self.create_queue, queue_pb2.CreateQueueRequest),
            "GetQueue": unary(self.get_queue, queue_pb2.GetQueueRequest),
            "ListQueues": unary(self.list_queues, queue_pb2.ListQueuesRequest),
        }
        services = [
            InfoServicer("1.2.3", "embedded", SHARDS, Limits(), self.clock).service(),
            unary_service("bucketsched.v1.TaskService", tasks),
            unary_service("bucketsched.v1.QueueService", queues),
            *self.more_services,
        ]
        self._server = GrpcServer(self.address, services, message_bytes_max=self.message_bytes_max)
        self.address = await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def batch_create(
        self, request: task_pb2.BatchCreateTasksRequest, context: Context
    ) -> task_pb2.BatchCreateTasksResponse:
        self.batches.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.gate:
                await self.gate.wait()
            if self.on_batch:
                self.on_batch(len(self.batches), request)
            return task_pb2.BatchCreateTasksResponse(results=[self._create(item) for item in request.requests])
        finally:
            self.in_flight -= 1

    def _create(self, item: task_pb2.CreateTaskRequest) -> task_pb2.CreateTaskResult:
        error = self.on_item(item) if self.on_item else None
        if error is not None:
            return task_pb2.CreateTaskResult(error=error)
        self.tasks[item.task_id] = item
        created = task_pb2.CreateTaskResponse(
            task_id=item.task_id, due_time=item.due_time, state=task_pb2.TASK_STATE_PENDING
        )
        return task_pb2.CreateTaskResult(created=created)

    async def get(self, request: task_pb2.GetTaskRequest, context: Context) -> task_pb2.GetTaskResponse:
        self.reads += 1
        if self.gate:
            await self.gate.wait()
        item = self._find(request.task_id)
        task = task_pb2.Task(
            task_id=item.task_id,
            namespace=item.namespace,
            queue=item.queue,
            type=item.type,
            payload=item.payload,
            metadata=item.metadata,
            due_time=item.due_time,
            priority=item.priority,
            state=task_pb2.TASK_STATE_DISPATCHED,
            attempt=1,
            dispatch_time=item.due_time,
        )
        return task_pb2.GetTaskResponse(task=task)

    async def cancel(self, request: task_pb2.CancelTaskRequest, context: Context) -> task_pb2.CancelTaskResponse:
        if self.on_cancel:
            self.on_cancel()
        self._find(request.task_id)
        return task_pb2.CancelTaskResponse(outcome=self.cancel_outcome)

    def _find(self, task_id: str) -> task_pb2.CreateTaskRequest:
        if task_id not in self.tasks:
            raise NotFound("task_id", f"{task_id} does not exist")
        return self.tasks[task_id]

    async def create_queue(
        self, request: queue_pb2.CreateQueueRequest, context: Context
    ) -> queue_pb2.CreateQueueResponse:
        queue = self.queues.setdefault(request.queue.name, request.queue)
        if queue != request.queue:
            raise AlreadyExists("name", f"{queue.name} exists and differs")
        return queue_pb2.CreateQueueResponse(queue=queue)

    async def get_queue(self, request: queue_pb2.GetQueueRequest, context: Context) -> queue_pb2.GetQueueResponse:
        if request.name not in self.queues:
            raise NotFound("queue", "does not exist")
        return queue_pb2.GetQueueResponse(queue=self.queues[request.name])

    async def list_queues(self, request: queue_pb2.ListQueuesRequest, context: Context) -> queue_pb2.ListQueuesResponse:
        names = sorted(name for name in self.queues if name > request.page_token)
        page, rest = names[:2], names[2:]
        return queue_pb2.ListQueuesResponse(
            queues=[self.queues[name] for name in page], next_page_token=page[-1] if rest else ""
        )
