"""The model of ownership: what processes do, what befalls them, and what must hold."""

from __future__ import annotations

from collections.abc import Iterator

from ..checker import Step
from ..rules import Rules
from .lane import LaneSteps
from .ranges import RangeSteps
from .services import change, commit, expire, init_producer, journaled, keep, land, name, stop, told, trimmed
from .state import (
    NEW,
    NO_LANES,
    NOBODY,
    NOTHING,
    OWNER,
    READY,
    Checkpoint,
    Hold,
    Lane,
    Process,
    Range,
    Setup,
    State,
    put,
)


class Ownership:
    """See the package. A `Model` for the checker."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self._setup, self._rules = setup, rules
        self._session = setup.session or tuple(range(setup.processes))
        self._lanes = LaneSteps(setup, rules)
        self._ranges = RangeSteps(setup, rules, self._lanes)

    def initial(self) -> State:
        """Lane 0 of A owns every range that `owners` gives to nobody else; whoever has no slot is down."""
        setup = self._setup
        ranges = setup.ranges
        rows = frozenset(range(len(setup.tasks))) - setup.created
        processes = []
        for number in range(setup.processes):
            if number >= setup.slots:
                processes.append(Process(False, NOBODY, NOBODY, NEW, None, False, (None,) * ranges))
                continue
            holds = tuple(
                Hold(OWNER, 1, heap=frozenset(t for t in rows if setup.tasks[t] == r)) if owner == number else None
                for r, owner in enumerate(setup.owners)
            )
            processes.append(Process(True, self._session[number], number, READY, None, False, holds))
        lanes = tuple(Lane(number, None, False, (), 0, (0,) * ranges) for number in range(setup.slots))
        return State(
            ranges=self._leases(NOBODY),
            slots=tuple(range(setup.slots)),
            lanes=lanes,
            rows=rows,
            marks=NOTHING,
            checkpoints=tuple(Checkpoint(1, 0, owner, 0) for owner in setup.owners),
            flying=frozenset(),
            processes=tuple(processes),
            confirmed=NOTHING,
            trimmer=None,
            budget=setup.budget,
            epochs=(0,) * ranges,
            wrong="",
        )._replace(ranges=self._leases())

    def _leases(self, holder: int | None = None) -> tuple[Range, ...]:
        """As they are at the beginning, or in an old copy of it."""
        owners = self._setup.owners
        return tuple(Range(1, owner, owner if holder is None else holder, False, NO_LANES) for owner in owners)

    def violation(self, state: State) -> str:
        """An invariant that is violated."""
        return state.wrong

    def goal(self) -> str:
        """See checker.Model."""
        return "I1: the dispatch of every task that was accepted and not cancelled"

    def reached(self, state: State) -> bool:
        """See checker.Model."""
        return not state.wrong and state.rows <= journaled(state, "DMC") | state.confirmed

    # ---- what can happen

    def steps(self, state: State) -> Iterator[Step[State]]:
        """See checker.Model."""
        for write in state.flying:
            kind, subject, new = write
            told_of = f"the mark of t{subject}" if new is None else f"the {kind} {new.epoch}.{new.number} of r{subject}"
            yield Step(f"{told_of} lands", land(state, write, self._rules))
        for number, lane in enumerate(state.lanes):
            if lane.late and lane.open is not None:
                action = f"the delayed EndTxn of lane {number} arrives and commits {told(lane.open)}"
                yield Step(action, commit(state, number))
        if state.budget.trims:
            yield from self._trim(state)
        if state.budget.creates:
            yield from self._create(state)
        for process, mine in enumerate(state.processes):
            if not mine.up:
                yield from self._start(state, process)
                continue
            yield from self._lanes.steps(state, process)
            for range_id in range(len(state.ranges)):
                yield from self._ranges.steps(state, process, range_id)
        if state.budget.faults:
            spent = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
            yield from self._faults(spent)

    def _start(self, state: State, process: int) -> Iterator[Step[State]]:
        slot = next((number for number, holder in enumerate(state.slots) if holder == NOBODY), NOBODY)
        if slot == NOBODY:
            return
        holds: tuple[Hold | None, ...] = (None,) * len(state.ranges)
        fresh = Process(True, self._session[process], slot, NEW, None, False, holds)
        started = state._replace(slots=put(state.slots, slot, process))
        yield Step(f"{name(process)} starts in slot {slot}", change(started, process, fresh))

    def _faults(self, spent: State) -> Iterator[Step[State]]:
        kinds = self._setup.faults
        for process, mine in enumerate(spent.processes):
            if "expire" in kinds and mine.session == self._session[process] == process:
                yield Step(f"{name(process)}'s session expires; it lives on", expire(spent, process), True)
            if "crash" in kinds and mine.up and self._session[process] == process:
                yield Step(f"{name(process)} crashes", self._crash(spent, process), True)
            if "fence" in kinds and mine.batch and spent.lanes[mine.slot].producer == process:
                action = f"the broker fences {name(process)} for no reason"
                yield Step(action, init_producer(spent, mine.slot, NOBODY), True)
        if "restore" in kinds:
            restored = spent
            for process in range(len(spent.processes)):
                restored = expire(restored, process)
            restored = restored._replace(ranges=self._leases(NOBODY))
            yield Step("ZooKeeper is restored from an old copy", restored, True)

    def _crash(self, state: State, process: int) -> State:
        state = expire(state, process)
        for lane, session in enumerate(self._session):
            if session == process:
                state = stop(state, lane)
        return state

    def _create(self, state: State) -> Iterator[Step[State]]:
        """A row is stored, and whoever owns its range is told; or the hint is lost."""
        for task in sorted(self._setup.created - state.rows):
            range_id = self._setup.tasks[task]
            budget = state.budget._replace(creates=state.budget.creates - 1)
            stored = state._replace(rows=state.rows | {task}, budget=budget)
            yield Step(f"t{task} is stored, its hint is lost", stored, True)
            for process, mine in enumerate(state.processes):
                hold = mine.holds[range_id]
                if hold is not None and hold.phase == OWNER:
                    taken = keep(stored, process, range_id, hold._replace(heap=hold.heap | {task}))
                    yield Step(f"t{task} is stored, {name(process)} takes its hint", taken, True)

    # ---- trimming

    def _trim(self, state: State) -> Iterator[Step[State]]:
        """The trimmer takes the end of a lane, then looks which checkpoints point there, then deletes."""
        spent = state._replace(budget=state.budget._replace(trims=state.budget.trims - 1))
        end_first = self._rules.keeps("trimmer-takes-end-first")
        if state.trimmer is None:
            for number, lane in enumerate(state.lanes):
                limit = len(lane.log) if end_first else self._lowest(state, number)
                if limit > lane.start or not end_first:
                    what = "the end of" if end_first else "the checkpoints that point to"
                    yield Step(f"the trimmer takes {what} lane {number}", state._replace(trimmer=(number, limit)), True)
            return
        number, limit = state.trimmer
        if self._rules.keeps("trim-only-what-is-old") and any(
            new is not None and new.lane == number and new.offset < limit for _, _, new in state.flying
        ):
            return  # what is under way now has landed, or is lost, before anything is old enough
        limit = min(limit, self._lowest(state, number) if end_first else len(state.lanes[number].log))
        if not self._rules.keeps("trim-behind-checkpoints"):
            limit = state.trimmer[1]
        lane = state.lanes[number]._replace(start=max(limit, state.lanes[number].start))
        after = spent._replace(trimmer=None, lanes=put(state.lanes, number, lane))
        for checkpoint in state.checkpoints:
            after = after._replace(wrong=after.wrong or trimmed(after, checkpoint))
        yield Step(f"lane {number} is trimmed up to {lane.start}", after, True)

    def _lowest(self, state: State, lane: int) -> int:
        return min((c.offset for c in state.checkpoints if c.lane == lane), default=1_000)
