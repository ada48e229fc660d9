"""Messages between processes and servers: slow, lost, late, or cut off.

A call is a request, an effect where it arrives, and an answer. Each leg takes its time. A request that was sent takes
effect although its sender has died, or has given up waiting, meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .loop import CURRENT, Process, VirtualLoop

HOP_S_MIN, HOP_S_MAX = 0.00002, 0.0015
REFUSED_S = 0.001


class NotSent(Exception):
    """There was no connection: certainly without effect."""


class Unanswered(Exception):
    """The effect may be, or may come."""


@dataclass(slots=True)
class Weather:
    """How messages fare. Probabilities of one leg of a call."""

    lost: float = 0.0
    slow: float = 0.02
    slow_s_max: float = 0.08
    late: float = 0.0
    late_s_max: float = 6.0


@dataclass(slots=True)
class Link:
    """Between two parties. `refuses`: who calls over a cut link is told so at once, instead of waiting in vain."""

    cut: bool = False
    refuses: bool = False


class Network:
    """All links of a world."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.weather = Weather()
        self._links: dict[tuple[str, str], Link] = {}

    def link(self, one: str, other: str) -> Link:
        """The link between two parties, whichever way round."""
        key = (one, other) if one < other else (other, one)
        if key not in self._links:
            self._links[key] = Link()
        return self._links[key]

    def heal(self) -> None:
        """All links are fine again."""
        self.weather = Weather()
        for link in self._links.values():
            link.cut = False

    def hop_s(self) -> float | None:
        """How long one message takes; None: it is lost."""
        rng, weather = self.rng, self.weather
        fate = rng.random()
        if fate < weather.lost:
            return None
        fate -= weather.lost
        if fate < weather.late:
            return rng.uniform(0.1, weather.late_s_max)
        fate -= weather.late
        if fate < weather.slow:
            return rng.uniform(HOP_S_MAX, weather.slow_s_max)
        return HOP_S_MIN + HOP_S_MAX * rng.random() ** 2

    async def call(self, here: str, there: str, effect: Callable[[], Any], timeout_s: float) -> Any:
        """Has `effect` happen at the other side. If it gives a future, the answer is its outcome.

        Raises NotSent, Unanswered, and what `effect` raises.
        """
        process = CURRENT.get()
        if process is not None:
            process.check()
        link = self.link(here, there)
        if link.cut and link.refuses:
            await asyncio.sleep(REFUSED_S)
            raise NotSent(f"{there} can't be reached")
        answer: asyncio.Future[Any] = self.loop.create_future()
        call = _Call(self, link, effect, answer)
        hop_s = self.hop_s()
        if hop_s is not None and not link.cut:
            self.loop.after(hop_s, call.arrive)
        timer = self.loop.call_later(timeout_s, _expire, answer, there)
        try:
            return await answer
        finally:
            timer.cancel()


def _expire(answer: asyncio.Future[Any], there: str) -> None:
    if not answer.done():
        answer.set_exception(Unanswered(f"no answer from {there}"))


class _Call:
    """A request under way."""

    __slots__ = ("_answer", "_effect", "_link", "_network")

    def __init__(self, network: Network, link: Link, effect: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        self._network, self._link, self._effect, self._answer = network, link, effect, answer

    def arrive(self) -> None:
        if self._link.cut:
            return
        try:
            result = self._effect()
        except Exception as error:
            self._reply(None, error)
            return
        if isinstance(result, asyncio.Future):
            result.add_done_callback(self._done, context=self._network.loop.world_context())
        else:
            self._reply(result, None)

    def _done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._reply(future.result(), None)
        elif isinstance(error, Exception):
            self._reply(None, error)

    def _reply(self, result: Any, error: Exception | None) -> None:
        hop_s = self._network.hop_s()
        if hop_s is not None and not self._link.cut:
            self._network.loop.after(hop_s, self._return, result, error)

    def _return(self, result: Any, error: Exception | None) -> None:
        if self._answer.done() or self._link.cut:
            return
        if error is None:
            self._answer.set_result(result)
        else:
            self._answer.set_exception(error)


def owner_of(process: Process) -> str:
    """The node that a process is a life of: its name without the number."""
    return process.name.partition(".")[0]
