"""WorkerService: tasks to workers, acks and nacks back, over one stream a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from ..core.catalog import DEFAULT_NAMESPACE, DEFAULT_QUEUE, Queue, QueueKind
from ..core.durations import DAY_MS, duration_ms
from ..core.errors import FailedPrecondition, InvalidArgument, Unavailable
from ..core.execution import (
    ERROR_MESSAGE_CHARACTERS_MAX,
    ERROR_TRACE_CHARACTERS_MAX,
    ERROR_TYPE_CHARACTERS_MAX,
    RESULT_BYTES_MAX,
)
from ..core.task import Priority
from ..core.validation import check_name, check_range
from ..delivery.attachment import Attachment
from ..delivery.hub import WorkerHub
from ..delivery.offer import Failure, Offer
from ..stubs.v1 import task_pb2, worker_pb2
from .errors import Context, abort
from .instants import timestamp
from .rpc import Service, unary, unary_service

IN_FLIGHT_MAX = 10_000
LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 12 * 3_600_000
PAUSE_MS_MAX = 400 * DAY_MS
WORKER_ID_LENGTH_MAX = 200
HELLO_S_MAX = 10.0
RESPONSE_BYTES_MAX = 1024 * 1024
"""Offers that are ready together share a message up to this size."""
_OFFER_OVERHEAD_BYTES = 300

_PRIORITIES: dict[Priority, task_pb2.Priority.ValueType] = {
    Priority.HIGH: task_pb2.PRIORITY_HIGH,
    Priority.NORMAL: task_pb2.PRIORITY_NORMAL,
    Priority.LOW: task_pb2.PRIORITY_LOW,
}


class QueueNames(Protocol):
    """Finds queues by name."""

    async def queue(self, namespace: str, name: str) -> Queue:
        """Raises NotFound or Unavailable."""
        ...


class WorkerServicer:
    """Serves workers. `hub` is None in a process without the deliver role: it only tells where to attach.

    `endpoints()`: host:port of every deliver process. `lease_s_default`: where a worker names none.
    """

    def __init__(
        self,
        hub: WorkerHub | None,
        names: QueueNames,
        endpoints: Callable[[], Sequence[str]],
        lease_s_default: float = 60.0,
    ) -> None:
        self._hub = hub
        self._names = names
        self._endpoints = endpoints
        self._lease_s_default = lease_s_default

    def service(self) -> Service:
        """To be added to a server."""
        attach: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            self.attach,
            request_deserializer=_parse,
            response_serializer=lambda response: response.SerializeToString(),
        )
        list_endpoints = unary(self.list_endpoints, worker_pb2.ListEndpointsRequest)
        return unary_service("bucketsched.v1.WorkerService", {"ListEndpoints": list_endpoints, "Attach": attach})

    async def list_endpoints(
        self, request: worker_pb2.ListEndpointsRequest, context: Context
    ) -> worker_pb2.ListEndpointsResponse:
        """Where to attach."""
        await self._worker_queue(request.namespace, request.queue)
        return worker_pb2.ListEndpointsResponse(addresses=self._endpoints())

    async def attach(self, requests: AsyncIterator[worker_pb2.AttachRequest], context: Context) -> None:
        """One worker, until it leaves or this process shuts down."""
        try:
            attachment = await self._attach(context)
            try:
                await self._serve(context, attachment)
            finally:
                attachment.detach()
        except grpc.aio.InternalError:
            return  # the worker went away while something was sent to it
        except Exception as error:
            failure = error
        else:
            return
        await abort(context, failure)

    async def _serve(self, context: Context, attachment: Attachment) -> None:
        reader = asyncio.create_task(self._read(context, attachment))
        try:
            await context.send_initial_metadata(())  # tells the worker that it is attached
            await _write(context, attachment)
            if not reader.done():
                raise Unavailable("shutting down: attach elsewhere")
            reader.result()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _attach(self, context: Context) -> Attachment:
        hello = await self._hello(context)
        queue = await self._worker_queue(hello.namespace, hello.queue)
        check_range(hello.max_in_flight, 1, IN_FLIGHT_MAX, "hello.max_in_flight")
        lease_s = self._lease_s(hello)
        if len(hello.worker_id) > WORKER_ID_LENGTH_MAX:
            raise InvalidArgument("hello.worker_id", f"must be at most {WORKER_ID_LENGTH_MAX} characters")
        if self._hub is None:
            raise FailedPrecondition("", "this process has no deliver role: attach where ListEndpoints says")
        return self._hub.attach(queue, hello.worker_id, hello.max_in_flight, lease_s)

    async def _hello(self, context: Context) -> worker_pb2.WorkerHello:
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                first = await context.read()
        except TimeoutError as error:
            raise InvalidArgument("hello", f"must be sent within {HELLO_S_MAX:g} s") from error
        if isinstance(first, InvalidArgument):
            raise first
        if not isinstance(first, worker_pb2.AttachRequest) or first.WhichOneof("message") != "hello":
            raise InvalidArgument("hello", "must be the first message")
        return first.hello

    async def _worker_queue(self, namespace: str, name: str) -> Queue:
        namespace, name = namespace or DEFAULT_NAMESPACE, name or DEFAULT_QUEUE
        check_name(namespace, "namespace")
        check_name(name, "queue")
        queue = await self._names.queue(namespace, name)
        if queue.kind is not QueueKind.WORKER:
            raise FailedPrecondition("queue", f"{name!r} is of kind {queue.kind}: its tasks are not for workers")
        return queue

    def _lease_s(self, hello: worker_pb2.WorkerHello) -> float:
        if not hello.HasField("lease"):
            return self._lease_s_default
        lease_ms = _length_ms(hello.lease, "hello.lease")
        if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
            raise InvalidArgument("hello.lease", "must be 1 s to 12 h")
        return lease_ms / 1000

    async def _read(self, context: Context, attachment: Attachment) -> None:
        """Takes acks and nacks until the worker ends its side; then there is nothing more to offer it."""
        try:
            while True:
                request = await context.read()
                if isinstance(request, InvalidArgument):
                    raise request
                if not isinstance(request, worker_pb2.AttachRequest):
                    return
                self._apply(request, attachment)
        finally:
            attachment.end()

    def _apply(self, request: worker_pb2.AttachRequest, attachment: Attachment) -> None:
        kind = request.WhichOneof("message")
        if kind == "ack":
            attachment.ack(request.ack.lease_ids)
        elif kind == "complete":
            if len(request.complete.result) > RESULT_BYTES_MAX:
                raise InvalidArgument("complete.result", f"must be at most {RESULT_BYTES_MAX} bytes")
            attachment.ack([request.complete.lease_id], request.complete.result)
        elif kind == "fail":
            attachment.fail(request.fail.lease_id, _failure(request.fail))
        elif kind == "extend":
            lease_ms = _length_ms(request.extend.lease, "extend.lease")
            check_range(lease_ms, LEASE_MS_MIN, LEASE_MS_MAX, "extend.lease")
            attachment.extend(request.extend.lease_ids, lease_ms / 1000)
        elif kind == "nack":
            delay_ms = _length_ms(request.nack.delay, "nack.delay")
            if not 0 <= delay_ms <= LEASE_MS_MAX:
                raise InvalidArgument("nack.delay", "must be 0 to 12 h")
            attachment.nack(request.nack.lease_ids, delay_ms / 1000)
        elif kind == "hello":
            check_range(request.hello.max_in_flight, 0, IN_FLIGHT_MAX, "hello.max_in_flight")
            attachment.resize(request.hello.max_in_flight, self._lease_s(request.hello))
        else:
            raise InvalidArgument("message", "must be one of hello, ack, nack, complete, fail, extend")


def _failure(message: worker_pb2.Fail) -> Failure:
    pause_ms = _length_ms(message.retry_after, "fail.retry_after")
    check_range(pause_ms, 0, PAUSE_MS_MAX, "fail.retry_after")
    for name, length in (
        ("error_type", ERROR_TYPE_CHARACTERS_MAX),
        ("error_message", ERROR_MESSAGE_CHARACTERS_MAX),
        ("error_trace", ERROR_TRACE_CHARACTERS_MAX),
    ):
        if len(getattr(message, name)) > length:
            raise InvalidArgument(f"fail.{name}", f"must be at most {length} characters")
    texts = (message.error_type, message.error_message, message.error_trace)
    return Failure(*texts, message.final, pause_ms / 1000)


async def _write(context: Context, attachment: Attachment) -> None:
    """Hands offers and refusals on as they come."""
    while any(said := await attachment.next()):
        offers, refused = said
        refusals = [worker_pb2.Refusal(lease_id=one.lease_id, reason=one.reason) for one in refused]
        if refusals:
            await context.write(worker_pb2.AttachResponse(refusals=refusals))
        for part in _parts(offers):
            await context.write(worker_pb2.AttachResponse(offers=[_message(offer) for offer in part]))


def _parts(offers: Sequence[Offer]) -> Iterator[Sequence[Offer]]:
    """Offers in messages of a bounded size."""
    start, size = 0, 0
    for index, offer in enumerate(offers):
        size += _size(offer)
        if size > RESPONSE_BYTES_MAX and index > start:
            yield offers[start:index]
            start, size = index, _size(offer)
    if offers:
        yield offers[start:]


def _size(offer: Offer) -> int:
    return len(offer.event.payload) + _OFFER_OVERHEAD_BYTES + 3 * _characters(offer.event.metadata.items())


def _characters(entries: Iterable[tuple[str, str]]) -> int:
    return sum(len(key) + len(value) for key, value in entries)


def _message(offer: Offer) -> worker_pb2.Offer:
    event = offer.event
    return worker_pb2.Offer(
        lease_id=offer.lease_id,
        lease_expire_time=timestamp(offer.expires_ms),
        task_id=event.task_id,
        namespace=event.namespace,
        queue=event.queue,
        type=event.type,
        payload=event.payload,
        metadata=event.metadata,
        content_type=event.content_type,
        priority=_PRIORITIES[event.priority],
        generation=event.generation,
        attempt=event.attempt,
        epoch=event.epoch,
        due_time=timestamp(event.due_ms),
        dispatch_time=timestamp(event.dispatched_ms),
        offer_count=offer.offer_count,
    )


def _parse(raw: bytes) -> worker_pb2.AttachRequest | InvalidArgument:
    """What can't be decoded is the worker's fault, and is told to it as such."""
    try:
        return worker_pb2.AttachRequest.FromString(raw)
    except DecodeError:
        return InvalidArgument("", "the message is not a valid bucketsched.v1.AttachRequest")


def _length_ms(value: Duration, field: str) -> int:
    return duration_ms(value.seconds, value.nanos, field)
