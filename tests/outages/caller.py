"""A client that tries once and looks at what it is told: the SDK would try again."""

from __future__ import annotations

import time
from typing import Self

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from bucketsched import CreatedTask
from bucketsched.stubs.v1 import task_pb2 as pb
from bucketsched.stubs.v1 import task_pb2_grpc

DEADLINE_S = 60.0
"""Servers answer long before, by `limits.create_timeout_ms`."""
DETAILS_KEY = "grpc-status-details-bin"


class Caller:
    """`accepted`, and the ids of what may or may not exist: `unknown`."""

    def __init__(self, address: str, queue: str) -> None:
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = task_pb2_grpc.TaskServiceStub(self._channel)
        self._queue = queue
        self.accepted: list[CreatedTask] = []
        self.unknown: set[str] = set()
        self.refused = self.with_retry_info = 0
        self.seconds_max = 0.0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def create(self, delay_s: float) -> bool:
        """One try. True if it was accepted."""
        delay = Duration()
        delay.FromMilliseconds(int(delay_s * 1000))
        request = pb.CreateTaskRequest(queue=self._queue, type="t", delay=delay)
        began = time.monotonic()
        try:
            created = await self._stub.CreateTask(request, timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            self._note(error)
            return False
        finally:
            self.seconds_max = max(self.seconds_max, time.monotonic() - began)
        due = created.due_time
        self.accepted.append(CreatedTask(created.task_id, due.seconds * 1000 + due.nanos // 1_000_000))
        return True

    def _note(self, error: grpc.aio.AioRpcError) -> None:
        self.refused += 1
        told = details(error)
        self.with_retry_info += error.code() is grpc.StatusCode.UNAVAILABLE and told.retry_s > 0
        if told.task_id:
            self.unknown.add(told.task_id)

    async def cancel_is_refused(self, task_id: str) -> bool:
        """One try to cancel; True if it was answered UNAVAILABLE."""
        try:
            await self._stub.CancelTask(pb.CancelTaskRequest(task_id=task_id), timeout=DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
        return False


class Told:
    """What a refusal says besides its code."""

    def __init__(self, retry_s: float = 0.0, reason: str = "", task_id: str = "") -> None:
        self.retry_s, self.reason, self.task_id = retry_s, reason, task_id


def details(error: grpc.aio.AioRpcError) -> Told:
    """The google.rpc details of a status."""
    told = Told()
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        for detail in status_pb2.Status.FromString(value).details:
            retry, info = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo()
            if detail.Unpack(retry):
                told.retry_s = retry.retry_delay.ToNanoseconds() / 1e9
            elif detail.Unpack(info):
                told.reason, told.task_id = info.reason, info.metadata.get("task_id", "")
    return told
