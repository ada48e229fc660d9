"""WorkerService over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest
from delivery_world import DeliveryWorld, KeptOutcomes, Names, until
from google.protobuf.duration_pb2 import Duration

from bucketsched.adapters.system_clock import SystemClock
from bucketsched.api.server import GrpcServer
from bucketsched.api.worker import WorkerServicer
from bucketsched.client import status
from bucketsched.core.errors import FailedPrecondition, InvalidArgument, NotFound, RequestError, Unavailable
from bucketsched.delivery.hub import WorkerHub
from bucketsched.stubs.v1 import worker_pb2 as pb
from bucketsched.stubs.v1 import worker_pb2_grpc


class Served:
    """A hub behind a server."""

    def __init__(self) -> None:
        self.world = DeliveryWorld()
        self.outcomes = KeptOutcomes()
        self.hub = WorkerHub(self.world.deliveries, self.outcomes, SystemClock())
        self.address = ""
        self.stub: Any = None

    def attach(self, **hello: Any) -> Any:
        """A stream whose hello is sent with the first read."""
        call = self.stub.Attach()
        call.greeting = pb.AttachRequest(hello=pb.WorkerHello(**({"queue": "jobs", "max_in_flight": 10} | hello)))
        return call


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    servicer = WorkerServicer(served.hub, Names(), lambda: ["a:1", "b:2"])
    server = GrpcServer("127.0.0.1:0", [servicer.service()])
    served.address = await server.start()
    async with grpc.aio.insecure_channel(served.address) as channel:
        served.stub = worker_pb2_grpc.WorkerServiceStub(channel)
        yield served
    await served.hub.drain(0)
    await server.stop(0)


async def greet(call: Any) -> None:
    await call.write(call.greeting)


async def refusal(call: Any) -> Exception:
    """The error that ends a stream."""

    async def read_to_the_end() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_to_the_end()
    return status.from_call(caught.value)


async def test_a_worker_gets_tasks_and_acknowledges_them(served: Served) -> None:
    call = served.attach()
    await greet(call)
    await call.initial_metadata()
    (task,) = served.world.dispatch(payload=b"\x00\xff", due_ms=1_750_000_000_123)
    (offer,) = (await call.read()).offers
    assert (offer.task_id, offer.queue, offer.namespace, offer.type) == (task, "jobs", "default", "greet")
    assert (offer.payload, dict(offer.metadata), offer.epoch, offer.attempt) == (b"\x00\xff", {"k": "v"}, 7, 1)
    assert (offer.due_time.ToMilliseconds(), offer.dispatch_time.ToMilliseconds()) == (
        1_750_000_000_123,
        1_750_000_000_126,
    )
    assert offer.offer_count == 1
    await call.write(pb.AttachRequest(ack=pb.Ack(lease_ids=[offer.lease_id])))
    await until(lambda: served.world.undelivered == 0)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_acks_that_come_before_the_end_of_the_stream_count(served: Served) -> None:
    call = served.attach()
    await greet(call)
    served.world.dispatch(5)
    leases: list[int] = []
    while len(leases) < 5:
        leases += [offer.lease_id for offer in (await call.read()).offers]
    await call.write(pb.AttachRequest(ack=pb.Ack(lease_ids=leases)))
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    await until(lambda: served.world.undelivered == 0)


async def test_a_nack_brings_it_back(served: Served) -> None:
    call = served.attach()
    await greet(call)
    served.world.dispatch()
    (first,) = (await call.read()).offers
    delay = Duration(nanos=20_000_000)
    await call.write(pb.AttachRequest(nack=pb.Nack(lease_ids=[first.lease_id], delay=delay)))
    (second,) = (await call.read()).offers
    assert (second.task_id, second.offer_count) == (first.task_id, 2)
    call.cancel()


async def test_a_broken_stream_gives_its_tasks_to_another(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    first = served.attach(max_in_flight=1)
    await greet(first)
    (task,) = served.world.dispatch()
    await first.read()
    second = served.attach()
    await greet(second)
    first.cancel()
    (offer,) = (await second.read()).offers
    assert (offer.task_id, offer.offer_count) == (task, 2)
    second.cancel()
    await served.hub.drain(0)
    assert not caplog.records  # it is nothing unusual


class Vanished:
    """The context of a worker that goes away in the middle of a message to it."""

    def __init__(self) -> None:
        self.messages = [pb.AttachRequest(hello=pb.WorkerHello(queue="jobs", max_in_flight=10))]

    async def read(self) -> pb.AttachRequest:
        if not self.messages:
            await asyncio.Event().wait()
        return self.messages.pop()

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    async def write(self, message: pb.AttachResponse) -> None:
        raise grpc.aio.InternalError("the batch failed")


async def test_a_worker_that_vanishes_is_no_fault_of_the_server(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.world.dispatch(1)
    servicer = WorkerServicer(served.hub, Names(), list)
    context: Any = Vanished()
    await servicer.attach(context, context)
    assert not caplog.records
    again = served.attach()
    await again.write(again.greeting)
    offers = (await again.read()).offers
    assert len(offers) == 1
    again.cancel()


async def test_a_later_hello_changes_how_much_is_offered(served: Served) -> None:
    call = served.attach(max_in_flight=1)
    await greet(call)
    served.world.dispatch(5)
    assert len((await call.read()).offers) == 1
    await call.write(pb.AttachRequest(hello=pb.WorkerHello(max_in_flight=4)))
    assert len((await call.read()).offers) == 3
    await call.write(pb.AttachRequest(hello=pb.WorkerHello(max_in_flight=-1)))
    error = await refusal(call)
    assert isinstance(error, InvalidArgument)
    assert error.field == "hello.max_in_flight"


async def test_large_offers_come_in_messages_of_bounded_size(served: Served) -> None:
    served.world.dispatch(100, payload=b"x" * 60_000)
    call = served.attach(max_in_flight=100)
    await greet(call)
    sizes = []
    count = 0
    while count < 100:
        response = await call.read()
        count += len(response.offers)
        sizes.append(response.ByteSize())
    assert max(sizes) <= 1024 * 1024
    call.cancel()


@pytest.mark.parametrize(
    ("hello", "kind", "field"),
    [
        ({"queue": "nowhere"}, NotFound, "queue"),
        ({"queue": "events"}, FailedPrecondition, "queue"),
        ({"queue": "a b"}, InvalidArgument, "queue"),
        ({"namespace": "\n"}, InvalidArgument, "namespace"),
        ({"max_in_flight": 0}, InvalidArgument, "hello.max_in_flight"),
        ({"max_in_flight": 10_001}, InvalidArgument, "hello.max_in_flight"),
        ({"lease": Duration(nanos=999_999_999 - 1_000_000)}, InvalidArgument, "hello.lease"),
        ({"lease": Duration(seconds=43_201)}, InvalidArgument, "hello.lease"),
        ({"lease": Duration(seconds=5, nanos=-1)}, InvalidArgument, "hello.lease"),
        ({"worker_id": "w" * 201}, InvalidArgument, "hello.worker_id"),
    ],
)
async def test_a_bad_hello_is_refused_by_its_field(
    served: Served, hello: dict[str, Any], kind: type[RequestError], field: str
) -> None:
    call = served.attach(**hello)
    await greet(call)
    error = await refusal(call)
    assert isinstance(error, kind)
    assert error.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.AttachRequest(), "message"),
        (pb.AttachRequest(nack=pb.Nack(delay=Duration(seconds=-1))), "nack.delay"),
        (pb.AttachRequest(nack=pb.Nack(delay=Duration(seconds=43_201))), "nack.delay"),
    ],
)
async def test_a_bad_message_ends_the_stream(served: Served, message: pb.AttachRequest, field: str) -> None:
    call = served.attach()
    await greet(call)
    await call.write(message)
    error = await refusal(call)
    assert isinstance(error, InvalidArgument)
    assert error.field == field


async def test_the_hello_must_come_first(served: Served) -> None:
    call = served.stub.Attach()
    await call.write(pb.AttachRequest(ack=pb.Ack(lease_ids=[1])))
    error = await refusal(call)
    assert isinstance(error, InvalidArgument)
    assert error.field == "hello"


async def test_a_stream_without_a_hello_is_refused(served: Served) -> None:
    call = served.stub.Attach()
    await call.done_writing()
    assert isinstance(await refusal(call), InvalidArgument)


async def test_bytes_that_are_no_message_are_refused(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        call: Any = channel.stream_stream("/bucketsched.v1.WorkerService/Attach")()
        await call.write(b"\xff\xff\xff")
        assert isinstance(await refusal(call), InvalidArgument)


async def test_draining_sends_workers_elsewhere(served: Served) -> None:
    call = served.attach()
    await greet(call)
    await call.initial_metadata()
    await served.hub.drain(1)
    assert isinstance(await refusal(call), Unavailable)
    late = served.attach()
    await greet(late)
    assert isinstance(await refusal(late), Unavailable)


async def test_endpoints_are_listed_for_worker_queues(served: Served) -> None:
    response = await served.stub.ListEndpoints(pb.ListEndpointsRequest(queue="jobs"))
    assert list(response.addresses) == ["a:1", "b:2"]
    for queue, kind in (("events", FailedPrecondition), ("nowhere", NotFound)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.stub.ListEndpoints(pb.ListEndpointsRequest(queue=queue))
        assert isinstance(status.from_call(caught.value), kind)


async def test_a_process_without_the_role_only_tells_where_to_attach() -> None:
    server = GrpcServer("127.0.0.1:0", [WorkerServicer(None, Names(), lambda: ["a:1"]).service()])
    async with grpc.aio.insecure_channel(await server.start()) as channel:
        stub: Any = worker_pb2_grpc.WorkerServiceStub(channel)
        assert (await stub.ListEndpoints(pb.ListEndpointsRequest(queue="jobs"))).addresses == ["a:1"]
        call = stub.Attach()
        await call.write(pb.AttachRequest(hello=pb.WorkerHello(queue="jobs", max_in_flight=1)))
        assert isinstance(await refusal(call), FailedPrecondition)
    await server.stop(0)
