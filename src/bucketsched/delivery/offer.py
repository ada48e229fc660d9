"""What is offered to workers, and what a process remembers about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..core.message import TaskEvent

if TYPE_CHECKING:
    from .attachment import Attachment

_COUNT_BITS = 16
_COUNT_MAX = (1 << _COUNT_BITS) - 1
_OVERHEAD_BYTES = 2_000
NUMBER_MAX = (1 << (63 - _COUNT_BITS)) - 1
"""Highest number of a held message; lease ids then are positive and below 2^63."""


class AttemptKey(NamedTuple):
    """Names one attempt within a queue."""

    task_id: str
    generation: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Offer:
    """One attempt, leased to one worker until `expires_ms`."""

    lease_id: int
    expires_ms: int
    offer_count: int
    event: TaskEvent


@dataclass(slots=True, eq=False)
class Held:
    """A fetched message that is not acknowledged: leased (`worker` set), ready, waiting out a delay, or `ending`.

    `number` orders by age and is unique in the process. `tokens`: what to acknowledge to the subscription; usually one,
    none once the subscription is gone. `stamp` changes with every change of state, so that timers set for an earlier
    one are recognised.
    """

    number: int
    tokens: list[int]
    event: TaskEvent
    offer_count: int = 0
    lost: int = 0
    """How often its worker was lost."""
    stamp: int = 0
    worker: Attachment | None = None
    started_ms: int = 0
    """When it was last offered."""
    ending: bool = False
    """How the attempt has ended is being told to the owner of its task: it is not offered any more."""
    key: AttemptKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = AttemptKey(self.event.task_id, self.event.generation, self.event.attempt)

    @property
    def size(self) -> int:
        """Bytes that it holds in memory, about."""
        return len(self.event.payload) + _OVERHEAD_BYTES

    @property
    def lease_id(self) -> int:
        """The id of the latest lease: the message's number, and the how-manieth offer of it this is."""
        return (self.number << _COUNT_BITS) | min(self.offer_count, _COUNT_MAX)

    def had_lease(self, lease_id: int) -> bool:
        """True for the id of a lease that was given on this message, standing or ended."""
        return (self.number << _COUNT_BITS) < lease_id <= self.lease_id


def number_of(lease_id: int) -> int:
    """The number of the held message that a lease id speaks of."""
    return lease_id >> _COUNT_BITS


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt has failed. `final`: there is to be no other one. `pause_s_least`: before another one."""

    error_type: str
    message: str = ""
    trace: str = ""
    final: bool = False
    pause_s_least: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """What was said of a lease changes nothing, and why."""

    lease_id: int
    reason: str
