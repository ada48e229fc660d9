"""The server's own bounds."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from bucketsched.api.errors import Context
from bucketsched.api.rpc import unary, unary_service
from bucketsched.api.server import GrpcServer
from bucketsched.stubs.v1 import task_pb2, task_pb2_grpc

CALLS = 4_000
"""More than grpc lets wait on its own account (3,000), fewer than are allowed here."""


async def _answer(request: task_pb2.GetTaskRequest, context: Context) -> task_pb2.GetTaskResponse:
    return task_pb2.GetTaskResponse()


@pytest.mark.integration
async def test_thousands_of_calls_at_once_are_all_answered() -> None:
    service = unary_service("bucketsched.v1.TaskService", {"GetTask": unary(_answer, task_pb2.GetTaskRequest)})
    server = GrpcServer("127.0.0.1:0", [service])
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        stub = task_pb2_grpc.TaskServiceStub(channel)
        calls = [stub.GetTask(task_pb2.GetTaskRequest(), timeout=60) for _ in range(CALLS)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(0)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not failed, (len(failed), failed[0])
