"""Bounds per host, and hosts that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from delivery_world import quiet

from bucketsched.adapters.memory.clock import ManualClock
from bucketsched.core.circuit import CircuitLimits
from bucketsched.core.webhook_answer import Answer, Trouble
from bucketsched.delivery.hosts import HostLimits, Hosts

SILENCE, FINE = Answer(trouble=Trouble.TIMEOUT), Answer(204)
LIMITS = HostLimits(2, 3, CircuitLimits(failures_max=2, pause_s_min=1.0, pause_s_max=4.0))


class Traffic:
    """Requests that a test ends."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.hosts = Hosts(self.clock, LIMITS)
        self.open: list[tuple[str, asyncio.Future[Answer]]] = []
        self.tasks: list[asyncio.Task[Answer]] = []
        self.begun: list[asyncio.Task[Any] | None] = []

    def begin(self, host: str, times: int = 1) -> None:
        async def request() -> Answer:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self.open.append((host, answer))
            self.begun.append(asyncio.current_task())
            return await answer

        self.tasks += [asyncio.create_task(self.hosts.run(host, request)) for _ in range(times)]

    @property
    def under_way(self) -> list[str]:
        return [host for host, answer in self.open if not answer.done()]

    async def end(self, host: str, answer: Answer, times: int = 1) -> None:
        for _ in range(times):
            next(future for name, future in self.open if name == host and not future.done()).set_result(answer)
        await quiet(10)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
async def traffic() -> AsyncIterator[Traffic]:
    traffic = Traffic()
    yield traffic
    await traffic.close()


async def test_a_host_takes_no_more_than_its_places(traffic: Traffic) -> None:
    traffic.begin("a", 5)
    traffic.begin("b")
    await quiet()
    assert sorted(traffic.under_way) == ["a", "a", "b"]
    await traffic.end("a", FINE)
    assert sorted(traffic.under_way) == ["a", "a", "b"]


async def test_all_together_take_no_more_than_the_process_has(traffic: Traffic) -> None:
    for host in "abcde":
        traffic.begin(host)
    await quiet()
    assert len(traffic.under_way) == 3
    await traffic.end("a", FINE)
    assert len(traffic.under_way) == 3


async def test_a_dead_host_takes_no_place_from_others(traffic: Traffic) -> None:
    traffic.begin("dead", 10)
    await quiet()
    await traffic.end("dead", SILENCE, 2)
    assert (traffic.under_way, traffic.hosts.open_circuits) == ([], 1)
    traffic.begin("a", 2)
    traffic.begin("b")
    await quiet()
    assert sorted(traffic.under_way) == ["a", "a", "b"]


async def test_it_is_tried_by_one_at_a_time_until_it_answers(traffic: Traffic) -> None:
    traffic.begin("dead", 10)
    await quiet()
    await traffic.end("dead", SILENCE, 2)
    for pause_ms in (1_000, 2_000):
        traffic.clock.advance_ms(pause_ms - 1)
        await quiet()
        assert traffic.under_way == []
        traffic.clock.advance_ms(1)
        await quiet()
        assert traffic.under_way == ["dead"]
        await traffic.end("dead", SILENCE)
    traffic.clock.advance_ms(4_000)
    await quiet()
    await traffic.end("dead", FINE)
    assert traffic.under_way == ["dead", "dead"]
    assert traffic.hosts.open_circuits == 0


async def test_who_is_given_up_leaves_its_place(traffic: Traffic) -> None:
    traffic.begin("a", 3)
    await quiet()
    traffic.tasks[0].cancel()
    await quiet()
    assert len([task for task in traffic.tasks if not task.done()]) == 2
    assert len(traffic.open) == 3


async def test_a_trier_that_is_given_up_leaves_the_host_to_the_next(traffic: Traffic) -> None:
    traffic.begin("dead", 10)
    await quiet()
    await traffic.end("dead", SILENCE, 2)
    traffic.clock.advance_ms(1_000)
    await quiet()
    [trier] = [task for task in traffic.tasks if task in traffic.begun and not task.done()]
    trier.cancel()
    await quiet()
    assert len(traffic.begun) == 4
    assert traffic.under_way == ["dead"]


async def test_hosts_without_trouble_are_forgotten(traffic: Traffic) -> None:
    for number in range(50):
        traffic.begin(f"host-{number}")
        await quiet(5)
        await traffic.end(f"host-{number}", FINE)
    assert traffic.hosts.remembered == 0
    traffic.begin("flaky")
    await quiet()
    await traffic.end("flaky", SILENCE)
    assert traffic.hosts.remembered == 1
