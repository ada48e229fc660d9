"""Bounds what goes to one host at once, and leaves a host alone that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ..core.circuit import Circuit, CircuitLimits
from ..core.waiting import first_of
from ..ports import Clock

DEFAULT_CIRCUIT = CircuitLimits()


class Heard(Protocol):
    """What came of a request."""

    @property
    def host_failed(self) -> bool:
        """True if nothing was heard of the host, so that others would not hear anything either."""
        ...


Answer = TypeVar("Answer", bound=Heard)


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Requests at once from this process."""

    requests_per_host_max: int = 32
    requests_max: int = 512
    """To all hosts together: each takes an open file."""
    circuit: CircuitLimits = DEFAULT_CIRCUIT


class _Host:
    """What is known of one, while somebody uses it or it does not answer."""

    def __init__(self, limits: HostLimits) -> None:
        self.circuit = Circuit(limits.circuit)
        self.places = asyncio.Semaphore(limits.requests_per_host_max)
        self.changed = asyncio.Event()
        self.users = 0


class Hosts:
    """All hosts of a process. Who waits for one of them takes no place that others could use."""

    def __init__(self, clock: Clock, limits: HostLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or HostLimits()
        self._places = asyncio.Semaphore(self._limits.requests_max)
        self._hosts: dict[Hashable, _Host] = {}

    @property
    def open_circuits(self) -> int:
        """Hosts that are left alone at present."""
        return sum(host.circuit.open for host in self._hosts.values())

    @property
    def remembered(self) -> int:
        """Hosts that are in use, or have failed last."""
        return len(self._hosts)

    async def run(self, name: Hashable, request: Callable[[], Awaitable[Answer]]) -> Answer:
        """Makes the request once the host has a place for it, and notes whether the host answered."""
        host = self._hosts.setdefault(name, _Host(self._limits))
        host.users += 1
        try:
            async with host.places:
                return await self._run(host, request)
        finally:
            host.users -= 1
            if not host.users and host.circuit.untroubled:
                self._hosts.pop(name, None)

    async def _run(self, host: _Host, request: Callable[[], Awaitable[Answer]]) -> Answer:
        while True:
            await self._until_it_may_begin(host)
            async with self._places:
                if host.circuit.wait_s(self._clock.monotonic()) == 0:  # it may have opened while we waited for a place
                    return await self._watched(host, request)

    async def _until_it_may_begin(self, host: _Host) -> None:
        while (wait_s := host.circuit.wait_s(self._clock.monotonic())) != 0:
            host.changed.clear()
            if wait_s is None:
                await host.changed.wait()
            else:
                await first_of(host.changed, self._clock, wait_s)

    async def _watched(self, host: _Host, request: Callable[[], Awaitable[Answer]]) -> Answer:
        host.circuit.begin()
        answer: Answer | None = None
        try:
            answer = await request()
            return answer
        finally:
            if answer is None:
                host.circuit.abandoned()
            elif answer.host_failed:
                host.circuit.failed(self._clock.monotonic())
            else:
                host.circuit.succeeded()
            host.changed.set()
