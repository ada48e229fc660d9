"""bucketsched.v1.TaskService."""

from __future__ import annotations

from google.protobuf.message import Message

from ..core import task_id as ids
from ..core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE
from ..core.durations import duration_ms, timestamp_ms
from ..core.errors import InvalidArgument, RequestError, Unavailable
from ..core.task import Priority, StoredTask, TaskState
from ..core.task_change import ChangeResult
from ..core.task_query import TaskOrder, TaskQuery
from ..core.task_update import TaskUpdate
from ..core.validation import NewTask
from ..ports import CancelResult, Changed
from ..service.executions import ShownTask, shown_by_facts
from ..service.queries import TaskQueries
from ..service.tasks import Created, CreateResult, TaskService
from ..stubs.v1 import task_pb2 as pb
from .attempts import attempt_message
from .errors import Context, code_of, message_of, retry_delay
from .instants import timestamp, timestamp_or_none
from .notices import notice_messages, notices_of
from .retries import retry_message, retry_of
from .rpc import Service, unary, unary_service

ANSWER_MARGIN_S = 0.05
"""An answer leaves this long before the client's deadline, or after 3/4 of a short one."""

_PRIORITIES = {
    pb.PRIORITY_UNSPECIFIED: Priority.NORMAL,
    pb.PRIORITY_HIGH: Priority.HIGH,
    pb.PRIORITY_NORMAL: Priority.NORMAL,
    pb.PRIORITY_LOW: Priority.LOW,
}
_PRIORITY_NUMBERS = {
    Priority.HIGH: pb.PRIORITY_HIGH,
    Priority.NORMAL: pb.PRIORITY_NORMAL,
    Priority.LOW: pb.PRIORITY_LOW,
}
_STATES = {
    TaskState.PENDING: pb.TASK_STATE_PENDING,
    TaskState.DISPATCHED: pb.TASK_STATE_DISPATCHED,
    TaskState.CANCELLED: pb.TASK_STATE_CANCELLED,
    TaskState.FAILED: pb.TASK_STATE_FAILED,
    TaskState.RUNNING: pb.TASK_STATE_RUNNING,
    TaskState.SUCCEEDED: pb.TASK_STATE_SUCCEEDED,
    TaskState.RETRYING: pb.TASK_STATE_RETRYING,
    TaskState.EXPIRED: pb.TASK_STATE_EXPIRED,
}
_OUTCOMES = {
    CancelResult.CANCELLED: pb.CANCEL_OUTCOME_CANCELLED,
    CancelResult.ALREADY_DISPATCHED: pb.CANCEL_OUTCOME_ALREADY_DISPATCHED,
    CancelResult.ALREADY_CANCELLED: pb.CANCEL_OUTCOME_ALREADY_CANCELLED,
    CancelResult.ALREADY_FAILED: pb.CANCEL_OUTCOME_ALREADY_FAILED,
    CancelResult.ALREADY_SUCCEEDED: pb.CANCEL_OUTCOME_ALREADY_SUCCEEDED,
    CancelResult.ALREADY_EXPIRED: pb.CANCEL_OUTCOME_ALREADY_EXPIRED,
}
_UPDATE_OUTCOMES = {
    ChangeResult.CHANGED: pb.UPDATE_OUTCOME_UPDATED,
    ChangeResult.ALREADY_DISPATCHED: pb.UPDATE_OUTCOME_ALREADY_DISPATCHED,
    ChangeResult.ALREADY_CANCELLED: pb.UPDATE_OUTCOME_ALREADY_CANCELLED,
    ChangeResult.ALREADY_FAILED: pb.UPDATE_OUTCOME_ALREADY_FAILED,
    ChangeResult.ALREADY_SUCCEEDED: pb.UPDATE_OUTCOME_ALREADY_SUCCEEDED,
    ChangeResult.ALREADY_EXPIRED: pb.UPDATE_OUTCOME_ALREADY_EXPIRED,
}
_ORDERS = {
    pb.TASK_ORDER_UNSPECIFIED: TaskOrder.NEXT,
    pb.TASK_ORDER_NEXT: TaskOrder.NEXT,
    pb.TASK_ORDER_NEWEST: TaskOrder.NEWEST,
}
_ASKED_STATES: dict[int, TaskState | None] = {
    pb.TASK_STATE_UNSPECIFIED: None,
    **{number: state for state, number in _STATES.items()},
}
UPDATABLE = frozenset({"payload", "content_type", "metadata", "priority", "due_time", "delay", "start_by"})
"""What an update mask may name."""


class TaskServicer:
    """Serves the use cases of tasks."""

    def __init__(self, tasks: TaskService, queries: TaskQueries) -> None:
        self._tasks, self._queries = tasks, queries

    def service(self) -> Service:
        """To be added to a server."""
        return unary_service(
            "bucketsched.v1.TaskService",
            {
                "CreateTask": unary(self.create_task, pb.CreateTaskRequest),
                "BatchCreateTasks": unary(self.batch_create_tasks, pb.BatchCreateTasksRequest),
                "GetTask": unary(self.get_task, pb.GetTaskRequest),
                "ListTasks": unary(self.list_tasks, pb.ListTasksRequest),
                "CancelTask": unary(self.cancel_task, pb.CancelTaskRequest),
                "UpdateTask": unary(self.update_task, pb.UpdateTaskRequest),
                "RunTaskNow": unary(self.run_task_now, pb.RunTaskNowRequest),
                "RedriveTask": unary(self.redrive_task, pb.RedriveTaskRequest),
                "ListAttempts": unary(self.list_attempts, pb.ListAttemptsRequest),
                "CountTasks": unary(self.count_tasks, pb.CountTasksRequest),
            },
        )

    async def create_task(self, request: pb.CreateTaskRequest, context: Context) -> pb.CreateTaskResponse:
        """OK once it is on a quorum of disks."""
        (result,) = await self._tasks.create_many([new_task(request)], _timeout_s(context))
        if isinstance(result, Exception):
            raise result
        return _created(result)

    async def batch_create_tasks(
        self, request: pb.BatchCreateTasksRequest, context: Context
    ) -> pb.BatchCreateTasksResponse:
        """One result an item; the RPC itself fails only where there are too many."""
        self._tasks.check_batch(len(request.requests))
        items = [_new_task_or_error(item) for item in request.requests]
        valid = [item for item in items if isinstance(item, NewTask)]
        created = iter(await self._tasks.create_many(valid, _timeout_s(context)))
        results = (next(created) if isinstance(item, NewTask) else item for item in items)
        return pb.BatchCreateTasksResponse(results=[_item_result(result) for result in results])

    async def get_task(self, request: pb.GetTaskRequest, context: Context) -> pb.GetTaskResponse:
        """The task as it stands."""
        shown = await self._tasks.show(request.namespace or DEFAULT_NAMESPACE, request.task_id)
        return pb.GetTaskResponse(task=task_message(shown))

    async def list_tasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        """A page of tasks."""
        page = await self._queries.list(task_query(request), request.page_size, request.page_token)
        return pb.ListTasksResponse(tasks=map(task_message, page.tasks), next_page_token=page.next_page_token)

    async def cancel_task(self, request: pb.CancelTaskRequest, context: Context) -> pb.CancelTaskResponse:
        """What became of the cancel, for good."""
        result = await self._tasks.cancel(request.namespace or DEFAULT_NAMESPACE, request.task_id)
        return pb.CancelTaskResponse(outcome=_OUTCOMES[result])

    async def update_task(self, request: pb.UpdateTaskRequest, context: Context) -> pb.UpdateTaskResponse:
        """What became of the update, for good, and the task as it is now."""
        changed = await self._tasks.update(
            request.namespace or DEFAULT_NAMESPACE, request.task_id, task_update(request)
        )
        return pb.UpdateTaskResponse(outcome=_UPDATE_OUTCOMES[changed.result], task=_changed_task(changed))

    async def run_task_now(self, request: pb.RunTaskNowRequest, context: Context) -> pb.RunTaskNowResponse:
        """What became of it, for good."""
        changed = await self._tasks.run_now(request.namespace or DEFAULT_NAMESPACE, request.task_id)
        return pb.RunTaskNowResponse(outcome=_UPDATE_OUTCOMES[changed.result])

    async def redrive_task(self, request: pb.RedriveTaskRequest, context: Context) -> pb.RedriveTaskResponse:
        """What became of it, for good, and the task as it is now."""
        changed = await self._tasks.redrive(request.namespace or DEFAULT_NAMESPACE, request.task_id)
        return pb.RedriveTaskResponse(outcome=_UPDATE_OUTCOMES[changed.result], task=_changed_task(changed))

    async def list_attempts(self, request: pb.ListAttemptsRequest, context: Context) -> pb.ListAttemptsResponse:
        """A page of the execution log."""
        namespace = request.namespace or DEFAULT_NAMESPACE
        page = await self._tasks.attempts(namespace, request.task_id, request.page_size, request.page_token)
        attempts = map(attempt_message, page.attempts)
        return pb.ListAttemptsResponse(attempts=attempts, next_page_token=page.next_page_token)

    async def count_tasks(self, request: pb.CountTasksRequest, context: Context) -> pb.CountTasksResponse:
        """How many there are, or at least are."""
        counted = await self._queries.count(task_query(request))
        return pb.CountTasksResponse(count=counted.count, exact=counted.exact)


def new_task(request: pb.CreateTaskRequest) -> NewTask:
    """The task that is asked for. Raises InvalidArgument where it can't be told."""
    due_ms, delay_ms = _when(request)
    return NewTask(
        request.type,
        request.namespace or DEFAULT_NAMESPACE,
        request.queue or DEFAULT_QUEUE,
        request.payload,
        dict(request.metadata),
        due_ms,
        delay_ms,
        _priority(request.priority),
        request.task_id,
        request.content_type,
        request.idempotency_key,
        retry_of(request.retry, "retry") if request.HasField("retry") else None,
        _instant_ms(request, "start_by"),
        _length_ms(request, "expire_after"),
        notices_of(request.notices) if request.notices else (),
    )


def task_update(request: pb.UpdateTaskRequest) -> TaskUpdate:
    """The update that is asked for. Raises InvalidArgument where it can't be told."""
    mask = set(request.update_mask.paths)
    if unknown := sorted(mask - UPDATABLE):
        raise InvalidArgument("update_mask", f"must name only {', '.join(sorted(UPDATABLE))}; {unknown[0]!r} is none")
    due_ms, delay_ms = _when(request)
    start_by_ms = _instant_ms(request, "start_by")
    for field, value in (("due_time", due_ms), ("delay", delay_ms), ("start_by", start_by_ms)):
        if (field in mask) != (value is not None):
            raise InvalidArgument("update_mask", f"must name {field} if, and only if, {field} is set")
    return TaskUpdate(
        payload=request.payload if "payload" in mask else None,
        content_type=request.content_type if "content_type" in mask else None,
        metadata=dict(request.metadata) if "metadata" in mask else None,
        priority=_priority(request.priority) if "priority" in mask else None,
        due_ms=due_ms,
        delay_ms=delay_ms,
        expected_generation=request.expected_generation if request.HasField("expected_generation") else None,
        start_by_ms=start_by_ms,
    )


def task_query(request: pb.ListTasksRequest | pb.CountTasksRequest) -> TaskQuery:
    """The query that is asked for. Raises InvalidArgument where it can't be told."""
    if request.state not in _ASKED_STATES:
        raise InvalidArgument("state", f"is the unknown number {request.state}")
    order = request.order if isinstance(request, pb.ListTasksRequest) else pb.TASK_ORDER_UNSPECIFIED
    if order not in _ORDERS:
        raise InvalidArgument("order", f"must be NEXT or NEWEST, is the unknown number {order}")
    return TaskQuery(
        request.namespace or DEFAULT_NAMESPACE,
        request.queue,
        request.type,
        _ASKED_STATES[request.state],
        _instant_ms(request, "due_from"),
        _instant_ms(request, "due_until"),
        dict(request.metadata),
        _ORDERS[order],
    )


def _when(request: pb.CreateTaskRequest | pb.UpdateTaskRequest) -> tuple[int | None, int | None]:
    """Due time and delay in ms, as far as they are given."""
    return _instant_ms(request, "due_time"), _length_ms(request, "delay")


def _instant_ms(request: Message, field: str) -> int | None:
    if not request.HasField(field):
        return None
    instant = getattr(request, field)
    return timestamp_ms(instant.seconds, instant.nanos, field)


def _length_ms(request: Message, field: str) -> int | None:
    if not request.HasField(field):
        return None
    length = getattr(request, field)
    return duration_ms(length.seconds, length.nanos, field)


def _priority(number: pb.Priority.ValueType) -> Priority:
    priority = _PRIORITIES.get(number)
    if priority is None:
        raise InvalidArgument("priority", f"must be HIGH, NORMAL or LOW, is the unknown number {number}")
    return priority


def task_message(shown: ShownTask) -> pb.Task:
    """A task with its state."""
    row, body, facts = shown.stored.row, shown.stored.row.body, shown.stored.facts
    return pb.Task(
        task_id=ids.text(row.task_id),
        namespace=body.namespace,
        queue=body.queue,
        type=body.type,
        payload=body.payload,
        metadata=body.metadata,
        due_time=timestamp(body.nominal_due_ms),
        priority=_PRIORITY_NUMBERS[body.priority],
        content_type=body.content_type,
        state=_STATES[shown.state],
        generation=row.generation,
        attempt=row.attempt,
        create_time=timestamp(body.created_ms),
        dispatch_time=timestamp_or_none(facts.dispatched_ms),
        cancel_time=timestamp_or_none(facts.cancelled_ms),
        fail_time=timestamp_or_none(facts.failed_ms),
        fail_reason=facts.failed_reason,
        idempotency_key=body.idempotency_key,
        success_time=timestamp_or_none(facts.succeeded_ms),
        expire_time=timestamp_or_none(facts.expired_ms),
        start_by=timestamp(body.expires_ms) if body.expires_ms else None,
        retry=retry_message(body.retry),
        notices=notice_messages(body.notices),
        last_attempts=map(attempt_message, shown.attempts),
        last_error=shown.last_error,
    )


def _changed_task(changed: Changed) -> pb.Task | None:
    """The task as it is now; None: it was too late."""
    if changed.result is not ChangeResult.CHANGED or changed.row is None:
        return None
    return task_message(shown_by_facts(StoredTask(changed.row)))


def _new_task_or_error(request: pb.CreateTaskRequest) -> NewTask | RequestError:
    try:
        return new_task(request)
    except RequestError as error:
        return error


def _created(created: Created) -> pb.CreateTaskResponse:
    return pb.CreateTaskResponse(
        task_id=ids.text(created.task_id), due_time=timestamp(created.due_ms), state=pb.TASK_STATE_PENDING
    )


def _item_result(result: CreateResult) -> pb.CreateTaskResult:
    if isinstance(result, Created):
        return pb.CreateTaskResult(created=_created(result))
    field = result.field if isinstance(result, RequestError) else ""
    wait = retry_delay(result) if isinstance(result, Unavailable) else None
    error = pb.ItemError(code=code_of(result), message=message_of(result), field=field, retry_delay=wait)
    return pb.CreateTaskResult(error=error)


def _timeout_s(context: Context) -> float | None:
    """How long the work may take: a little less than the client waits; None: it did not say."""
    remaining_s: float | None = context.time_remaining()
    if remaining_s is None:
        return None
    return max(remaining_s - ANSWER_MARGIN_S, remaining_s * 0.75)
