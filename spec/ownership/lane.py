"""What the lane of a process does: init, validate, one transaction at a time."""

from __future__ import annotations

from collections.abc import Iterator

from ..checker import Step
from ..rules import Rules
from .services import change, commit, init_producer, keep, let_go, name, send, stands, stop, told
from .state import (
    IN_DOUBT,
    INITIALISED,
    LEASED,
    NEW,
    OWNER,
    PRELOADED,
    PRELOADING,
    READY,
    REPLAYING,
    STOPPING,
    Batch,
    Setup,
    State,
    put,
)


class LaneSteps:
    """One for a model."""

    def __init__(self, setup: Setup, rules: Rules) -> None:
        self._setup, self._rules = setup, rules
        self._validates_first = not rules.keeps("init-then-validate")
        self._reads_first = not rules.keeps("own-journal-after-init")
        self._separate = not rules.keeps("one-transaction")

    def steps(self, state: State, process: int) -> Iterator[Step[State]]:
        """What can happen next in this lane."""
        mine, who = state.processes[process], name(process)
        if mine.stage == NEW:
            if self._validates_first:
                yield Step(f"{who} validates its slot and ranges", self.validate(state, process, INITIALISED))
            else:
                yield Step(f"{who} inits lane {mine.slot}", self.init(state, process))
        elif mine.stage == INITIALISED:
            if self._validates_first:
                yield Step(f"{who} inits lane {mine.slot}", self.init(state, process))
            else:
                yield Step(f"{who} validates its slot and ranges", self.validate(state, process, READY))
        elif mine.batch is None:
            yield from self._begin(state, process)
        else:
            yield from self._end(state, process, mine.batch)

    # ---- taking the lane

    def init(self, state: State, process: int) -> State:
        """InitProducerId on the own lane, then what the own journal says of the transaction in doubt."""
        state = init_producer(state, state.processes[process].slot, process)
        if not self._reads_first:
            state = self._resolve(state, process)
        stage = READY if self._validates_first else INITIALISED
        return change(state, process, state.processes[process]._replace(stage=stage))

    def _resolve(self, state: State, process: int) -> State:
        mine = state.processes[process]
        batch = mine.batch
        state = change(state, process, mine._replace(batch=None, committed=False))
        if batch is None or not self._rules.keeps("read-own-journal") or batch not in state.lanes[mine.slot].log:
            return state
        return self.settle(state, process, batch)

    def validate(self, state: State, process: int, stage: str) -> State:
        """Proves slot and ranges; what is gone is dropped."""
        mine = state.processes[process]
        if self._rules.keeps("validate-slot") and (mine.session < 0 or state.slots[mine.slot] != process):
            return stop(state, process)
        state = change(state, process, mine._replace(stage=stage))
        for range_id, hold in enumerate(mine.holds if self._rules.keeps("validate-ranges") else ()):
            if hold is None or hold.phase in (PRELOADING, PRELOADED) or stands(state, process, range_id, self._rules):
                continue
            if self._rules.keeps("validate-slot"):
                state = keep(state, process, range_id, None)
            elif (state.ranges[range_id].lane, state.ranges[range_id].epoch) != (mine.slot, hold.epoch):
                state = keep(state, process, range_id, None)  # all that it looks at then
        return state

    # ---- transactions

    def _batches(self, state: State, process: int) -> Iterator[Batch]:
        """All that is ready; in place of one dispatch there may be its cancel."""
        ready: list[tuple[int, int, int]] = []
        asked: list[tuple[int, int, int]] = []
        for range_id, hold in enumerate(state.processes[process].holds):
            if hold is None:
                continue
            if hold.phase == OWNER:
                ready += [(range_id, hold.epoch, task) for task in sorted(hold.heap)]
            elif hold.phase in (LEASED, REPLAYING) and not self._rules.keeps("answers-after-replay"):
                rows = (t for t in sorted(state.rows - hold.known) if self._setup.tasks[t] == range_id)
                asked += [(range_id, hold.epoch, task) for task in rows]
        dispatch = "M" if self._separate else "D"
        if ready:
            yield tuple((dispatch, *item) for item in ready)
        if state.budget.cancels:
            for cancelled in ready:
                yield tuple(("C" if item == cancelled else dispatch, *item) for item in ready)
            if not self._rules.keeps("one-fate-per-transaction"):
                for cancelled in ready:
                    yield (("C", *cancelled), *((dispatch, *item) for item in ready))
            for item in asked:
                yield (("C", *item),)

    def _begin(self, state: State, process: int) -> Iterator[Step[State]]:
        mine, who = state.processes[process], name(process)
        for batch in self._batches(state, process):
            if state.lanes[mine.slot].producer != process:
                yield Step(f"{who} finds itself fenced", change(state, process, mine._replace(stage=NEW)))
                return
            yield Step(f"{who} produces {told(batch)}", self._produce(state, process, batch))

    def _produce(self, state: State, process: int, batch: Batch) -> State:
        mine = state.processes[process]
        lane = state.lanes[mine.slot]
        lane = lane._replace(open=(*(lane.open or ()), *batch))
        state = state._replace(lanes=put(state.lanes, mine.slot, lane))
        if any(record[0] == "C" for record in batch):
            state = state._replace(budget=state.budget._replace(cancels=state.budget.cancels - 1))
        return change(state, process, mine._replace(batch=batch))

    def _end(self, state: State, process: int, batch: Batch) -> Iterator[Step[State]]:
        mine, who = state.processes[process], name(process)
        lane = state.lanes[mine.slot]
        unknown = "unknown" in self._setup.faults and state.budget.faults > 0
        if mine.committed:
            yield Step(f"{who} learns of its commit", self._learn(state, process, batch))
            if unknown:
                yield Step(f"{who} never gets the answer to its EndTxn", self._doubt(state, process), True)
        elif lane.producer != process:
            yield Step(f"{who} finds its transaction fenced", change(state, process, mine._replace(stage=NEW)))
        elif lane.open is not None:
            done = commit(state, mine.slot)
            yield Step(f"{who} commits {told(lane.open)}", change(done, process, mine._replace(committed=True)))
            if unknown:
                late = state._replace(lanes=put(state.lanes, mine.slot, lane._replace(late=True)))
                yield Step(f"{who}'s EndTxn is delayed, and times out", self._doubt(late, process), True)

    def _doubt(self, state: State, process: int) -> State:
        """The outcome of the transaction is unknown."""
        state = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
        if not self._rules.keeps("init-on-unknown"):
            return self._resolve(state, process)
        if self._reads_first:
            state = self._resolve(state, process)
        return change(state, process, state.processes[process]._replace(stage=NEW))

    def _learn(self, state: State, process: int, batch: Batch) -> State:
        """The commit is known. Where message and record are committed one by one, the record comes next."""
        mine = state.processes[process]._replace(batch=None, committed=False)
        if any(record[0] == "M" for record in batch):
            records = tuple(("J" if kind == "M" else kind, r, epoch, task) for kind, r, epoch, task in batch)
            lane = state.lanes[mine.slot]
            if lane.producer == process:
                state = state._replace(lanes=put(state.lanes, mine.slot, lane._replace(open=records)))
                return change(state, process, mine._replace(batch=records))
            return change(state, process, mine._replace(stage=NEW))
        return self.settle(change(state, process, mine), process, batch)

    def settle(self, state: State, process: int, batch: Batch) -> State:
        """These records are committed: what they tell is remembered, and marks are sent."""
        for kind, range_id, epoch, task in batch:
            hold = state.processes[process].holds[range_id]
            if hold and hold.epoch == epoch and hold.phase in (OWNER, STOPPING, IN_DOUBT):
                hold = hold._replace(heap=hold.heap - {task}, known=hold.known | {task})
                state = send(keep(state, process, range_id, hold), ("mark", task, None))
            if kind == "C":
                state = state._replace(confirmed=state.confirmed | {task})
        return state

    def lost(self, state: State, process: int, range_id: int) -> State:
        """A versioned write failed."""
        return let_go(state, process, range_id)
