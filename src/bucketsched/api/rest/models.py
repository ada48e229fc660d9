"""What bodies look like: checked for their shape when they come in, and described in /openapi.json.

Lengths, patterns and limits are decided by `core.validation`; the document repeats those that never change.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...core.catalog import QueueKind
from ...core.errors import InvalidArgument
from ...core.execution import AttemptEnd
from ...core.notice_rule import RULES_MAX, NoticeEvent
from ...core.retry_check import ATTEMPTS_MAX, FINAL_ERRORS_MAX, MULTIPLIER_MAX
from ...core.task import Priority, TaskState
from ...core.validation import CONTENT_TYPE_LENGTH_MAX, KEY_LENGTH_MAX, PARTITIONS_MAX, REPLICATION_MAX, TYPE_LENGTH_MAX
from .json_text import Members

Model = TypeVar("Model", bound=BaseModel)
PriorityName = Literal["HIGH", "NORMAL", "LOW"]


def described(text: str, **schema: Any) -> Any:
    """A field with a description, and schema keywords that are only told, not checked here."""
    return Field(description=text, json_schema_extra=schema or None)


NAME: dict[str, Any] = {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"}
INSTANT: dict[str, Any] = {"format": "date-time"}
TaskId = Annotated[str, described("Names the task, and where it lives.", format="uuid")]
Instant = Annotated[str, described("RFC 3339, UTC, with milliseconds.", **INSTANT)]


Length = str | int | float


class Asked(BaseModel):
    """A request's body: fields that there are none of are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Retry(Asked):
    """How often, and how far apart, an attempt that has failed is followed by another one."""

    max_attempts: Annotated[
        int | None, described("The first one among them; without: 10.", minimum=1, maximum=ATTEMPTS_MAX)
    ] = None
    initial_delay: Annotated[Length | None, described("The longest pause behind the first one; without: 1 s.")] = None
    multiplier: Annotated[
        int | float | None,
        described("What it grows by with each; without: 2.", minimum=1, maximum=int(MULTIPLIER_MAX)),
    ] = None
    max_delay: Annotated[Length | None, described("What it grows to; without: 5 min, or `initial_delay`.")] = None
    max_elapsed: Annotated[
        Length | None, described("No attempt is due later than this after the task; without: there is no such limit.")
    ] = None
    non_retryable_errors: Annotated[
        list[str] | None, described("Types of errors after which there is no other.", maxItems=FINAL_ERRORS_MAX)
    ] = None


EventName = Literal["SUCCEEDED", "ATTEMPT_FAILED", "DEAD_LETTERED", "EXPIRED", "LATE"]


class Notice(Asked):
    """Which events of a task are told, and where."""

    events: Annotated[
        list[EventName],
        described("ATTEMPT_FAILED: another one follows. KAFKA: DEAD_LETTERED, EXPIRED and LATE alone.", minItems=1),
    ]
    queue: Annotated[str, described("Gets the notices; of the same namespace.", **NAME)]
    late_after: Annotated[Length | None, described("What is LATE, after the due time; without: 1 s.")] = None


class Content(Asked):
    """What can be said of a task when it is created, and later. At most one of `run_at` and `delay`, and at most one
    of `payload` and `payload_base64`."""

    payload: Annotated[Any, described("Any JSON value; kept as the bytes that it was sent as.")] = None
    payload_base64: Annotated[str | None, described("Any bytes.", contentEncoding="base64")] = None
    content_type: Annotated[
        str | None,
        described("Of the payload; without: application/json, or none.", maxLength=CONTENT_TYPE_LENGTH_MAX),
    ] = None
    run_at: Annotated[str | None, described("When it is due; past: at once. RFC 3339.", **INSTANT)] = None
    delay: Annotated[
        str | int | float | None, described("When it is due, from now: 24h, 1h30m, 250ms, PT24H, or seconds.")
    ] = None
    metadata: Annotated[dict[str, str] | None, described("Travels beside the payload.")] = None
    priority: Annotated[PriorityName | None, described("Without: NORMAL.")] = None


class NewTask(Content):
    """A task. Without `run_at` and `delay` it is due at once."""

    type: Annotated[str, described("What a worker chooses its handler by.", minLength=1, maxLength=TYPE_LENGTH_MAX)]
    queue: Annotated[str | None, described("Where it goes; without: `default`.", **NAME)] = None
    namespace: Annotated[str | None, described("Whose it is; without: `default`.", **NAME)] = None
    task_id: Annotated[
        str | None, described("That of an earlier try, which makes this the same task.", format="uuid")
    ] = None
    idempotency_key: Annotated[
        str | None,
        described("Your own name for this create: with it again, it is the same task.", maxLength=KEY_LENGTH_MAX),
    ] = None
    retry: Annotated[Retry | None, described("Without: that of the queue.")] = None
    start_by: Annotated[
        str | None, described("If no attempt could be started by then, it has EXPIRED. RFC 3339.", **INSTANT)
    ] = None
    expire_after: Annotated[Length | None, described("The same, after it is due; at most one of the two.")] = None
    notices: Annotated[
        list[Notice] | None, described("What is told of it, besides what its queue tells.", maxItems=RULES_MAX)
    ] = None


class TaskUpdate(Content):
    """What is to be different; the rest stays. `metadata` and payload are replaced as a whole."""

    start_by: Annotated[
        str | None, described("If no attempt could be started by then, it has EXPIRED. RFC 3339.", **INSTANT)
    ] = None

    expected_generation: Annotated[
        int | None, described("Change it only if it is still of this `generation`.", minimum=0)
    ] = None


class NewTasks(Asked):
    """Many tasks."""

    tasks: Annotated[list[NewTask], described("Each is answered for itself.")]


class NewQueue(Asked):
    """A queue. Cluster mode only: KAFKA, `topic`, `partitions`, `replication`."""

    name: Annotated[str, described("Unique within its namespace.", **NAME)]
    kind: Annotated[Literal["WORKER", "KAFKA"] | None, described("Who takes its tasks; without: WORKER.")] = None
    namespace: Annotated[str | None, described("Without: `default`.", **NAME)] = None
    topic: Annotated[str | None, described("Of KAFKA queues; without: namespace.name.")] = None
    partitions: Annotated[
        int | None, described("Without, or 0: the server's default.", minimum=0, maximum=PARTITIONS_MAX)
    ] = None
    replication: Annotated[
        int | None, described("Without, or 0: the server's default.", minimum=0, maximum=REPLICATION_MAX)
    ] = None
    priority_topics: Annotated[bool | None, described("A topic of its own for HIGH and for LOW.")] = None
    retry: Annotated[Retry | None, described("Of tasks without one of their own; not for KAFKA.")] = None
    notices: Annotated[
        list[Notice] | None, described("What is told of its tasks, to other queues.", maxItems=RULES_MAX)
    ] = None


class QueueUpdate(Asked):
    """What is to be different from now on, for tasks that are there already, too."""

    retry: Annotated[Retry | None, described("Of tasks without one of their own; null: as by default.")] = None
    notices: Annotated[
        list[Notice] | None, described("All of what is told of its tasks; null: nothing.", maxItems=RULES_MAX)
    ] = None


class CreatedTask(BaseModel):
    """It will be dispatched, whatever happens."""

    task_id: TaskId
    status: TaskState
    run_at: Instant


class RetryPolicy(BaseModel):
    """All of it. Lengths in seconds."""

    max_attempts: int
    initial_delay: float
    multiplier: float
    max_delay: float
    max_elapsed: float
    non_retryable_errors: list[str]


class NoticeRule(BaseModel):
    """Which events are told, and where."""

    events: list[NoticeEvent]
    queue: str
    late_after: Annotated[float, described("Seconds.")]


class Attempt(BaseModel):
    """An entry of the execution log."""

    generation: int
    attempt: int
    started_at: Instant | None
    ended_at: Instant | None
    outcome: Annotated[AttemptEnd | None, described("null: nobody has said yet how it ended.")]
    worker: str | None
    error_type: str | None
    error_message: str | None
    error_trace: str | None
    retry_at: Annotated[Instant | None, described("When the next attempt is due, where another one follows.")]
    result: Annotated[Any, described("Where it is JSON.")] = None
    result_base64: Annotated[str | None, described("Where it is not.", contentEncoding="base64")] = None


class Attempts(BaseModel):
    """A page, oldest first."""

    attempts: list[Attempt]
    next_page_token: Annotated[str, described("Empty: there are no more.")]


class Task(BaseModel):
    """A task as it stands."""

    task_id: TaskId
    namespace: str
    queue: str
    type: str
    status: TaskState
    run_at: Annotated[Instant, described("The due time asked for.")]
    priority: PriorityName
    content_type: Annotated[str, described("Of the payload; may be empty.")]
    metadata: dict[str, str]
    generation: Annotated[int, described("+1 at each move to another due time.")]
    attempts: Annotated[int, described("How often it was dispatched, in this generation.")]
    created_at: Instant
    dispatched_at: Instant | None
    cancelled_at: Instant | None
    failed_at: Instant | None
    succeeded_at: Instant | None
    expired_at: Instant | None
    start_by: Annotated[Instant | None, described("No attempt starts later.")]
    retry: Annotated[RetryPolicy | None, described("Its own; null: that of the queue holds.")]
    notices: Annotated[list[NoticeRule], described("Its own, besides those of the queue.")]
    error: Annotated[str | None, described("Why it FAILED.")]
    last_error: Annotated[str | None, described("Why the last attempt that has failed did; of one task only.")]
    idempotency_key: str | None
    payload: Annotated[Any, described("Where it is JSON.")] = None
    payload_base64: Annotated[str | None, described("Where it is not.", contentEncoding="base64")] = None


class ShownTask(Task):
    """And what became of the attempts at it."""

    last_attempts: Annotated[list[Attempt], described("At most 20, the newest one last.")]


class Tasks(BaseModel):
    """A page, in the order asked for."""

    tasks: list[Task]
    next_page_token: Annotated[str, described("Empty: there are no more. Else there may be some.")]


class Counted(BaseModel):
    """How many tasks there are."""

    count: int
    exact: Annotated[bool, described("false: there are at least so many.")]


class Cancelled(BaseModel):
    """It will not be dispatched, for good."""

    task_id: TaskId
    status: TaskState
    outcome: Literal["CANCELLED", "ALREADY_CANCELLED"]


class Queue(BaseModel):
    """A queue as it is stored."""

    namespace: str
    name: str
    kind: QueueKind
    topic: str
    partitions: int
    replication: int
    priority_topics: bool
    created_at: Instant
    retry: Annotated[RetryPolicy | None, described("null: that by default, or of its webhook.")]
    notices: Annotated[list[NoticeRule], described("What is told of all its tasks.")]


class Queues(BaseModel):
    """A page."""

    queues: list[Queue]
    next_page_token: Annotated[str, described("Empty: there is no more.")]


class Health(BaseModel):
    """How the process stands."""

    status: Literal["SERVING", "NOT_SERVING"]
    mode: str
    version: str


class Alive(BaseModel):
    """A word for whoever restarts processes, or sends requests to them."""

    status: str


class Detail(BaseModel):
    """What is at fault, or what to do."""

    field: str | None = None
    retry_after_ms: int | None = None
    task_id: Annotated[str | None, described("Send the same again with it: it is the same task.")] = None
    outcome: str | None = None
    reason: str | None = None


class Error(BaseModel):
    """As google.rpc.Status; `code` is HTTP's, `status` is the name of google.rpc's code."""

    code: int
    status: str
    message: str
    details: list[Detail]


class ErrorBody(BaseModel):
    """Every answer that is not a success."""

    error: Error


class TaskResult(BaseModel):
    """Either a task or an error."""

    code: Annotated[int, described("As the answer's would be, had it been created alone.")]
    task_id: str | None = None
    status: str | None = None
    run_at: str | None = None
    error: Error | None = None


class TaskResults(BaseModel):
    """One a task, in their order."""

    results: list[TaskResult]


COMPONENTS: tuple[type[BaseModel], ...] = (NewTask, NewTasks, TaskUpdate, NewQueue, QueueUpdate)
"""What the document has to describe beside the answers."""
PRIORITIES = {priority.name: priority for priority in Priority}


def shaped(model: type[Model], found: Members) -> Model:
    """The members as `model` has them. Raises InvalidArgument with the field whose shape is wrong."""
    try:
        return model.model_validate({name: written.value for name, written in found.items()})
    except ValidationError as error:
        raise _argument(model, error) from None


def _argument(model: type[BaseModel], error: ValidationError) -> InvalidArgument:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = _field(first["loc"])
    if first["type"] == "extra_forbidden":
        return InvalidArgument(field, f"there is no such field; there are {', '.join(model.model_fields)}")
    if first["type"] == "missing":
        return InvalidArgument(field, "must be given")
    return InvalidArgument(field, first["msg"].replace("Input should be", "must be"))


def _field(place: tuple[int | str, ...]) -> str:
    """As the validator of all ways in names it: metadata.key, retry.max_delay, notices[0].events."""
    if place[0] == "notices" and len(place) > 1:
        return f"notices[{place[1]}]" + (f".{place[2]}" if len(place) > 2 else "")
    return ".".join(str(part) for part in place[: 2 if place[0] in ("metadata", "retry") else 1])
