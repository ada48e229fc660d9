"""Requests for listings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ..core.errors import InvalidArgument
from ..core.task import TaskState
from ..core.task_query import TaskOrder
from ..stubs.v1 import task_pb2 as pb
from .fields import check_text, instant_message

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
_ORDERS = {TaskOrder.NEXT: pb.TASK_ORDER_NEXT, TaskOrder.NEWEST: pb.TASK_ORDER_NEWEST}


def build_list(
    namespace: str,
    queue: str,
    type: str,
    state: TaskState | str | None,
    due_from: datetime | None,
    due_until: datetime | None,
    metadata: Mapping[str, str] | None,
    order: TaskOrder | str,
    page_size: int,
) -> pb.ListTasksRequest:
    """The request for the first page. Raises InvalidArgument."""
    for field, text in (
        ("queue", queue),
        ("type", type),
        *(("metadata", t) for p in (metadata or {}).items() for t in p),
    ):
        check_text(field, text)
    if state is not None and state not in _STATES:
        raise InvalidArgument("state", f"must be one of {', '.join(_STATES)}, is {state!r}")
    if order not in _ORDERS:
        raise InvalidArgument("order", f"must be next or newest, is {order!r}")
    if not isinstance(page_size, int) or not 0 <= page_size < 2**31:
        raise InvalidArgument("page_size", f"must be a number from 0 on, is {page_size!r}")
    return pb.ListTasksRequest(
        namespace=namespace,
        queue=queue,
        type=type,
        state=pb.TASK_STATE_UNSPECIFIED if state is None else _STATES[TaskState(state)],
        due_from=instant_message("due_from", due_from),
        due_until=instant_message("due_until", due_until),
        metadata=metadata or {},
        order=_ORDERS[TaskOrder(order)],
        page_size=page_size,
    )


def build_count(
    namespace: str,
    queue: str,
    type: str,
    state: TaskState | str | None,
    due_from: datetime | None,
    due_until: datetime | None,
    metadata: Mapping[str, str] | None,
) -> pb.CountTasksRequest:
    """The request for a count. Raises InvalidArgument."""
    listed = build_list(namespace, queue, type, state, due_from, due_until, metadata, TaskOrder.NEXT, 0)
    return pb.CountTasksRequest(
        namespace=namespace,
        queue=queue,
        type=type,
        state=listed.state,
        due_from=listed.due_from if listed.HasField("due_from") else None,
        due_until=listed.due_until if listed.HasField("due_until") else None,
        metadata=listed.metadata,
    )
