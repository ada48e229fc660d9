"""A server that delivers to workers, for tests of the SDK."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from delivery_world import DeliveryWorld, KeptOutcomes, Names

from bucketsched.adapters.system_clock import SystemClock
from bucketsched.api.server import GrpcServer
from bucketsched.api.worker import WorkerServicer
from bucketsched.delivery.hub import WorkerHub


class WorkerServer:
    """One deliver process. `others`: addresses that it tells workers besides its own."""

    def __init__(self, world: DeliveryWorld, address: str = "127.0.0.1:0") -> None:
        self.world = world
        self.outcomes = KeptOutcomes()
        self.hub = WorkerHub(world.deliveries, self.outcomes, SystemClock())
        self.address = address
        self.addresses: list[str] = []
        servicer = WorkerServicer(self.hub, Names(), lambda: self.addresses)
        self._server = GrpcServer(address, [servicer.service()])

    async def __aenter__(self) -> Self:
        self.address = await self._server.start()
        self.addresses = self.addresses or [self.address]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self, grace_s: float = 0) -> None:
        """As a process does on SIGTERM."""
        await self.hub.drain(grace_s)
        await self._server.stop(0.1)
