"""What stands for what in the model of ownership.

ZooKeeper   per range epoch, lane, holder, released, unfenced predecessors; per slot its holder. Operations are atomic.
            A session may expire while its process lives on; that learns it at its next operation.
Kafka       per lane its producer, the open transaction, the committed log, whether an EndTxn is still under way. One
            record of the log is (kind, range, epoch, task), message and journal record in one. InitProducerId aborts
            what is open, makes the former producer stale and a delayed EndTxn void.
Cassandra   rows, marks, and a checkpoint (epoch, number, lane, offset) a range. Marks and checkpoints go through
            `flying`: they land at any later time or never, also when their writer is gone.
Processes   one lane each, a letter: A has slot 0. They may stall between any two steps for ever. Lanes of one process
            share its session. What a process knows of a range is its `Hold`.

All tasks are due. Not here: time, buckets, moves (see `admission`, `changes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")

Tasks = frozenset[int]
Record = tuple[str, int, int, int]
"""Kind, range, epoch, task. Kinds: D message and record, C cancel, M message without record, J record alone."""
Batch = tuple[Record, ...]
NOBODY = -1
NOTHING: Tasks = frozenset()
NO_LANES: frozenset[int] = frozenset()

PRELOADING, PRELOADED, LEASED, FENCING, REPLAYING, SAVING, CLEARING, OWNER, STOPPING, IN_DOUBT = (
    "preloading", "preloaded", "leased", "fencing", "replaying", "saving", "clearing", "owner", "stopping", "in doubt",
)  # fmt: skip
NEW, INITIALISED, READY = "new", "initialised", "ready"


class Range(NamedTuple):
    """What ZooKeeper holds of a range."""

    epoch: int
    lane: int
    holder: int
    released: bool
    unfenced: frozenset[int]


class Lane(NamedTuple):
    """What Kafka holds of a lane. `fenced`: per range the epoch for which it was fenced last."""

    producer: int
    open: Batch | None
    late: bool
    log: tuple[Batch, ...]
    start: int
    fenced: tuple[int, ...]


class Checkpoint(NamedTuple):
    """Ordered by epoch and number; `offset` is the first record of the lane that it does not cover."""

    epoch: int
    number: int
    lane: int
    offset: int


Write = tuple[str, int, Checkpoint | None]
"""("mark", task, None) or ("checkpoint", range, what is written)."""


class Hold(NamedTuple):
    """What a process knows of a range.

    `known`: settled rows that it remembers; `reading`: what a read in flight will bring; `warm`: rows were preloaded.
    """

    phase: str
    epoch: int
    base: Checkpoint | None = None
    heap: Tasks = NOTHING
    known: Tasks = NOTHING
    unfenced: frozenset[int] = NO_LANES
    reading: Tasks | None = None
    warm: bool = False
    number: int = 0


class Process(NamedTuple):
    """One lane of a process. `session`: the number of its process's first lane, or NOBODY where it has ended; `batch`:
    its transaction; `committed`: so it is, but the process may not have learnt it.
    """

    up: bool
    session: int
    slot: int
    stage: str
    batch: Batch | None
    committed: bool
    holds: tuple[Hold | None, ...]


class Budget(NamedTuple):
    """How much of what need not happen may happen in one run."""

    faults: int = 0
    releases: int = 0
    preloads: int = 0
    rescans: int = 0
    cancels: int = 0
    creates: int = 0
    trims: int = 0


class State(NamedTuple):
    """Everything. `confirmed`: cancels whose client has been told."""

    ranges: tuple[Range, ...]
    slots: tuple[int, ...]
    lanes: tuple[Lane, ...]
    rows: Tasks
    marks: Tasks
    checkpoints: tuple[Checkpoint, ...]
    flying: frozenset[Write]
    processes: tuple[Process, ...]
    confirmed: Tasks
    trimmer: tuple[int, int] | None
    budget: Budget
    epochs: tuple[int, ...]
    wrong: str


@dataclass(frozen=True, slots=True)
class Setup:
    """The size of a world.

    `tasks`: the range of each; `owners`: the process of each range at the beginning; `session`: the first lane of each
    one's process. `faults`: a choice of expire, crash, suspect (a range is taken from a living holder), unknown (result
    of a transaction), fence (for no reason), restore (ZooKeeper, from an old copy), doubt (outcome of a release).
    """

    processes: int
    slots: int
    tasks: tuple[int, ...]
    faults: frozenset[str]
    budget: Budget
    owners: tuple[int, ...] = (0,)
    session: tuple[int, ...] = ()
    created: Tasks = NOTHING

    @property
    def ranges(self) -> int:
        """How many there are."""
        return len(self.owners)


def put(items: tuple[Item, ...], index: int, value: Item) -> tuple[Item, ...]:
    """The tuple with one item replaced."""
    return (*items[:index], value, *items[index + 1 :])
