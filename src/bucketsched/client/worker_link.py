"""One worker's stream to one deliver process, kept up across disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

import grpc
from google.protobuf.duration_pb2 import Duration

from ..core.errors import RequestError
from ..stubs.v1 import worker_pb2, worker_pb2_grpc
from . import status
from .channel import open_channel
from .retry import pauses

log = logging.getLogger(__name__)

ACKS_PER_MESSAGE_MAX = 5_000
REASON_LENGTH_MAX = 500

Stream = grpc.aio.StreamStreamCall[worker_pb2.AttachRequest, worker_pb2.AttachResponse]


class WorkerLink:
    """Attaches to `address` again and again until it is told to leave.

    `on_offers(link, offers)` and `on_lost()` are called in the event loop. Acks survive a disconnect: the server counts
    them as long as it has not offered the attempt to somebody else.
    """

    def __init__(
        self,
        address: str,
        hello: worker_pb2.WorkerHello,
        on_offers: Callable[[WorkerLink, Sequence[worker_pb2.Offer]], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.address = address
        self.attached = asyncio.Event()
        self._hello = hello
        self._on_offers = on_offers
        self._on_lost = on_lost
        self._open: set[int] = set()
        self._acks: list[int] = []
        self._said: list[worker_pb2.AttachRequest] = []
        self._hello_changed = False
        self._pausing = False
        self._leaving = asyncio.Event()
        self._wake = asyncio.Event()

    # ------------------------------------------------------------ what the worker says

    def ack(self, lease_id: int) -> None:
        """Done. Sent at once, together with what else is waiting."""
        self._open.discard(lease_id)
        self._acks.append(lease_id)
        self._wake.set()

    def complete(self, lease_id: int, result: bytes) -> None:
        """Done, with a result."""
        self._open.discard(lease_id)
        self._say(worker_pb2.AttachRequest(complete=worker_pb2.Complete(lease_id=lease_id, result=result)))

    def fail(self, failure: worker_pb2.Fail) -> None:
        """The attempt has failed."""
        self._open.discard(failure.lease_id)
        self._say(worker_pb2.AttachRequest(fail=failure))

    def nack(self, lease_id: int, reason: str, delay_s: float) -> None:
        """Not begun; to be offered again after the delay."""
        self._open.discard(lease_id)
        delay = Duration()
        delay.FromMilliseconds(int(delay_s * 1000))
        nack = worker_pb2.Nack(lease_ids=[lease_id], reason=_clean(reason), delay=delay)
        self._say(worker_pb2.AttachRequest(nack=nack))

    def extend(self, lease_ids: Sequence[int], lease: Duration) -> None:
        """These are at work. Lost with the stream, as the leases are."""
        if self.attached.is_set():
            self._say(worker_pb2.AttachRequest(extend=worker_pb2.Extend(lease_ids=lease_ids, lease=lease)))

    def _say(self, request: worker_pb2.AttachRequest) -> None:
        self._said.append(request)
        self._wake.set()

    def forget(self, lease_id: int) -> None:
        """Nothing will be said about this lease, which has ended."""
        self._open.discard(lease_id)
        self._wake.set()

    def resize(self, max_in_flight: int) -> None:
        """Changes how many offers may be open here."""
        if self._hello.max_in_flight != max_in_flight and not self._pausing:
            self._hello.max_in_flight = max_in_flight
            self._hello_changed = True
            self._wake.set()

    def pause(self) -> None:
        """No more offers from now on; acks still go out."""
        if not self._pausing:
            self._pausing = self._hello_changed = True
            self._wake.set()

    def leave(self) -> None:
        """Ends the stream in order, once everything that came over it is acknowledged or given back."""
        self.pause()
        self._leaving.set()
        self._wake.set()

    # ------------------------------------------------------------ the stream

    async def run(self) -> None:
        """Keeps the stream up. Raises RequestError where the server refuses this worker for good."""
        channel = await open_channel(self.address)
        try:
            waits = pauses()
            while not self._leaving.is_set():
                if await self._attach_once(channel):
                    waits = pauses()
                if not self._leaving.is_set():
                    self._on_lost()
                    await self._wait(next(waits))
        finally:
            await channel.close()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._leaving.wait(), seconds)

    async def _attach_once(self, channel: grpc.aio.Channel) -> bool:
        """One stream; whether it came to be."""
        call: Stream = worker_pb2_grpc.WorkerServiceStub(channel).Attach()
        sender = asyncio.create_task(self._send(call))
        sender.add_done_callback(lambda task: _end_if_failed(task, call))
        attached = False
        try:
            await call.initial_metadata()
            attached = not call.done()
            if attached:
                self.attached.set()
            while isinstance(response := await call.read(), worker_pb2.AttachResponse):
                for refusal in response.refusals:
                    log.warning("worker: what was said of a lease changes nothing: %s", refusal.reason)
                self._open.update(offer.lease_id for offer in response.offers)
                self._on_offers(self, response.offers)
        except grpc.aio.AioRpcError as error:
            translated = status.from_call(error)
            if isinstance(translated, RequestError):
                raise translated from error
            log.info("worker: lost %s: %s", self.address, translated)
        finally:
            self.attached.clear()
            call.cancel()
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        return attached

    async def _send(self, call: Stream) -> None:
        """Writes the hello, then what the worker says, batched by what comes in while a write is under way."""
        self._hello_changed = self._pausing
        await call.write(worker_pb2.AttachRequest(hello=self._hello))
        while True:
            self._wake.clear()
            await self._send_hello(call)
            await self._send_said(call)
            await self._send_acks(call)
            if self._leaving.is_set() and not (self._open or self._acks or self._said):
                await call.done_writing()
                return
            if not (self._acks or self._said or self._hello_changed):
                await self._wake.wait()

    async def _send_hello(self, call: Stream) -> None:
        if not self._hello_changed:
            return
        self._hello_changed = False
        hello = worker_pb2.WorkerHello()
        hello.CopyFrom(self._hello)
        if self._pausing:
            hello.max_in_flight = 0
        await call.write(worker_pb2.AttachRequest(hello=hello))

    async def _send_said(self, call: Stream) -> None:
        while self._said:
            await call.write(self._said[0])
            del self._said[0]

    async def _send_acks(self, call: Stream) -> None:
        while self._acks:
            batch = self._acks[:ACKS_PER_MESSAGE_MAX]
            await call.write(worker_pb2.AttachRequest(ack=worker_pb2.Ack(lease_ids=batch)))
            del self._acks[: len(batch)]


def _clean(reason: str) -> str:
    """Text that protobuf takes, of bounded length."""
    return reason.encode("utf-8", "replace").decode()[:REASON_LENGTH_MAX]


def _end_if_failed(sender: asyncio.Task[None], call: Stream) -> None:
    """A stream that can't be written to any more is of no use, though it may still be read."""
    if not sender.cancelled() and sender.exception() is not None:
        call.cancel()
