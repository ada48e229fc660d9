"""What a process does with one range: takes it, serves it, hands it over."""

from __future__ import annotations

from collections.abc import Iterator

from ..checker import Step
from ..rules import Rules
from .lane import LaneSteps
from .services import fence, init_producer, keep, let_go, mark, name, send, stands
from .state import (
    CLEARING,
    FENCING,
    IN_DOUBT,
    LEASED,
    NO_LANES,
    NOBODY,
    NOTHING,
    OWNER,
    PRELOADED,
    PRELOADING,
    REPLAYING,
    SAVING,
    STOPPING,
    Checkpoint,
    Hold,
    Range,
    Setup,
    State,
    Tasks,
    put,
)


class RangeSteps:
    """One for a model."""

    def __init__(self, setup: Setup, rules: Rules, lanes: LaneSteps) -> None:
        self._setup, self._rules, self._lanes = setup, rules, lanes

    def steps(self, state: State, process: int, range_id: int) -> Iterator[Step[State]]:
        """What can happen next between this process and this range."""
        hold = state.processes[process].holds[range_id]
        if hold is None or hold.phase in (PRELOADING, PRELOADED):
            yield from self._before(state, process, range_id, hold)
            return
        if state.ranges[range_id].epoch != hold.epoch and state.processes[process].session >= 0:
            yield Step(f"{name(process)} notices that r{range_id} is gone", keep(state, process, range_id, None))
        yield from {
            LEASED: self._leased,
            FENCING: self._fencing,
            REPLAYING: self._replaying,
            SAVING: self._saving,
            CLEARING: self._clearing,
            OWNER: self._serving,
            STOPPING: self._stopping,
            IN_DOUBT: self._doubting,
        }[hold.phase](state, process, range_id, hold)

    def _rows(self, state: State, range_id: int) -> Tasks:
        """What a read of the range brings now."""
        return frozenset(t for t in state.rows if self._setup.tasks[t] == range_id) - state.marks

    # ---- before the lease

    def _before(self, state: State, process: int, range_id: int, hold: Hold | None) -> Iterator[Step[State]]:
        mine, who = state.processes[process], name(process)
        taken = state.ranges[range_id]
        if hold is not None and hold.phase == PRELOADING:
            yield self._preload_rest(state, process, range_id, hold)
        elif hold is None and state.budget.preloads and taken.holder not in (NOBODY, process):
            yield self._preload(state, process, range_id)
        if mine.session < 0 or mine.stage != "ready":
            return
        if taken.holder in (NOBODY, process):
            yield Step(f"{who} leases r{range_id}, epoch {taken.epoch + 1}", self._lease(state, process, range_id))
        elif state.budget.faults and "suspect" in self._setup.faults:
            spent = state._replace(budget=state.budget._replace(faults=state.budget.faults - 1))
            action = f"{who} leases r{range_id} from its living holder {name(taken.holder)}, epoch {taken.epoch + 1}"
            yield Step(action, self._lease(spent, process, range_id), True)

    def _preload(self, state: State, process: int, range_id: int) -> Step[State]:
        """One of the two reads of a preload; they must come in the right order."""
        spent = state._replace(budget=state.budget._replace(preloads=state.budget.preloads - 1))
        if self._rules.keeps("preload-checkpoint-first"):
            base = state.checkpoints[range_id]
            hold = Hold(PRELOADING, 0, base)
            action = f"{name(process)} begins to preload r{range_id} at {_told(base)}"
        else:
            hold = Hold(PRELOADING, 0, None, self._rows(state, range_id))
            action = f"{name(process)} begins to preload r{range_id} with its rows"
        return Step(action, keep(spent, process, range_id, hold), True)

    def _preload_rest(self, state: State, process: int, range_id: int, hold: Hold) -> Step[State]:
        if hold.base is None:
            base = state.checkpoints[range_id]
            hold = hold._replace(phase=PRELOADED, base=base)
            return Step(f"{name(process)} preloads {_told(base)}", keep(state, process, range_id, hold))
        rows = self._rows(state, range_id)
        hold = hold._replace(phase=PRELOADED, heap=rows)
        return Step(f"{name(process)} preloads {_tasks(rows)}", keep(state, process, range_id, hold))

    def _lease(self, state: State, process: int, range_id: int) -> State:
        taken, hold = state.ranges[range_id], state.processes[process].holds[range_id]
        former = NO_LANES if taken.released else frozenset((taken.lane,))
        unfenced = former | taken.unfenced if self._rules.keeps("all-predecessors") else former
        epoch, slot = taken.epoch + 1, state.processes[process].slot
        state = state._replace(ranges=put(state.ranges, range_id, Range(epoch, slot, process, False, unfenced)))
        preloaded = hold if hold is not None and hold.phase == PRELOADED else Hold(LEASED, epoch)
        new = preloaded._replace(phase=LEASED, epoch=epoch, unfenced=unfenced, warm=preloaded.base is not None)
        return keep(state, process, range_id, new)

    # ---- taking over

    def _leased(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        found, who = state.checkpoints[range_id], name(process)
        if found.epoch >= hold.epoch and self._rules.keeps("epochs-above-checkpoints"):
            action = f"{who} finds a checkpoint of epoch {found.epoch}, fences lane {found.lane} and begins again"
            fenced = self._fence(state, process, range_id, found.lane, hold.epoch)
            yield Step(action, keep(fenced, process, range_id, None))
            return
        base = hold.base or found
        if base.epoch != found.epoch and self._rules.keeps("superseded-preload-is-void"):
            hold, base = Hold(LEASED, hold.epoch, unfenced=hold.unfenced), found
        if not self._rules.keeps("replay-from-the-preloads-checkpoint"):
            base = found
        if not self._rules.keeps("clear-after-fence") and stands(state, process, range_id, self._rules):
            state = self._cleared(state, range_id)
        fences = hold.unfenced and self._rules.keeps("fence-before-replay")
        hold = hold._replace(phase=FENCING if fences else REPLAYING, base=base)
        yield Step(f"{who} reads {_told(found)} of r{range_id}", keep(state, process, range_id, hold))

    def _fencing(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        mine, lane = state.processes[process], min(hold.unfenced)
        if lane == mine.slot and mine.batch is not None and self._rules.keeps("fence-own-lane"):
            return  # one transaction at a time: its outcome comes first
        left = hold.unfenced - {lane}
        after = REPLAYING if self._rules.keeps("fence-before-replay") else SAVING
        state = keep(state, process, range_id, hold._replace(unfenced=left, phase=FENCING if left else after))
        fenced = self._fence(state, process, range_id, lane, hold.epoch)
        yield Step(f"{name(process)} fences lane {lane} for r{range_id}", fenced)

    def _fence(self, state: State, process: int, range_id: int, lane: int, epoch: int) -> State:
        if lane != state.processes[process].slot:
            state = init_producer(state, lane, NOBODY)
        elif self._rules.keeps("fence-own-lane"):
            state = self._lanes.init(state, process)
        return fence(state, lane, range_id, epoch)

    def _replaying(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        base = hold.base
        assert base is not None
        who, lane = name(process), state.lanes[base.lane]
        if base.offset < lane.start and self._rules.keeps("trimmed-replay-begins-again"):
            again = Hold(LEASED, hold.epoch, unfenced=hold.unfenced)
            yield Step(f"{who} finds its place in lane {base.lane} trimmed", keep(state, process, range_id, again))
            return
        known: Tasks = NOTHING
        if self._rules.keeps("replay-the-checkpoints-lane") or base.lane in state.ranges[range_id].unfenced:
            entries = lane.log[max(base.offset, lane.start) :]
            known = frozenset(t for batch in entries for kind, r, _, t in batch if r == range_id and kind != "M")
        if self._rules.keeps("marks-before-checkpoint"):
            for task in known - state.marks:
                state = mark(state._replace(flying=state.flying - {("mark", task, None)}), task)
        else:
            state = send(state, *(("mark", task, None) for task in known - state.marks))
        hold = hold._replace(phase=FENCING if hold.unfenced else SAVING, known=known, heap=hold.heap - known)
        told = f"{who} replays lane {base.lane} from {base.offset} for r{range_id}: {_tasks(known)}"
        yield Step(told, keep(state, process, range_id, hold))

    def _saving(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        if not self._rules.keeps("clear-after-checkpoint") and stands(state, process, range_id, self._rules):
            state = self._cleared(state, range_id)
        if self._rules.keeps("checkpoint-before-dispatch"):
            end = len(state.lanes[state.processes[process].slot].log)
            state, told = self._save(state, process, range_id, end)
            hold = state.processes[process].holds[range_id] or hold
        else:
            told = "no checkpoint"
        state = keep(state, process, range_id, hold._replace(phase=CLEARING))
        yield Step(f"{name(process)} sends {told} of r{range_id}", state)

    def _save(self, state: State, process: int, range_id: int, offset: int) -> tuple[State, str]:
        mine = state.processes[process]
        hold = mine.holds[range_id]
        assert hold is not None
        new = Checkpoint(hold.epoch, hold.number + 1, mine.slot, offset)
        state = keep(state, process, range_id, hold._replace(number=new.number))
        return send(state, ("checkpoint", range_id, new)), _told(new)

    def _under_way(self, state: State, process: int, range_id: int, epoch: int) -> bool:
        """A checkpoint of this process's own has not landed yet."""
        own = (epoch, state.processes[process].slot)
        return any(new is not None and r == range_id and (new.epoch, new.lane) == own for _, r, new in state.flying)

    def _clearing(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        if self._under_way(state, process, range_id, hold.epoch):
            return
        who = name(process)
        if stands(state, process, range_id, self._rules):
            state = self._cleared(state, range_id)
        elif self._rules.keeps("clear-versioned"):
            yield Step(f"{who} finds that r{range_id} is gone", let_go(state, process, range_id))
            return
        heap = hold.heap if hold.warm else self._rows(state, range_id) - hold.known
        hold = hold._replace(phase=OWNER, heap=heap, base=None, unfenced=NO_LANES)
        yield Step(f"{who} clears the predecessors of r{range_id} and begins", keep(state, process, range_id, hold))

    def _cleared(self, state: State, range_id: int) -> State:
        return state._replace(ranges=put(state.ranges, range_id, state.ranges[range_id]._replace(unfenced=NO_LANES)))

    # ---- serving

    def _serving(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        yield from self._remember(state, process, range_id, hold)
        yield from self._progress(state, process, range_id)
        who = name(process)
        if state.budget.cancels and not self._rules.keeps("cancel-through-journal"):
            busy = {record[3] for record in state.processes[process].batch or ()}
            spent = state._replace(budget=state.budget._replace(cancels=state.budget.cancels - 1))
            for task in sorted(hold.heap - busy):
                new = hold._replace(heap=hold.heap - {task}, known=hold.known | {task})
                told = keep(spent, process, range_id, new)._replace(confirmed=state.confirmed | {task})
                yield Step(f"{who} confirms the cancel of t{task} from memory", told)
        if state.budget.releases:
            spent = state._replace(budget=state.budget._replace(releases=state.budget.releases - 1))
            stopped = keep(spent, process, range_id, hold._replace(phase=STOPPING))
            yield Step(f"{who} stops r{range_id}, to hand it over", stopped, True)

    def _remember(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        """Reads again what it may have missed, and forgets what it need not remember."""
        who = name(process)
        if hold.reading is not None:
            heap = hold.heap | (hold.reading - hold.known)
            ended = keep(state, process, range_id, hold._replace(heap=heap, reading=None))
            yield Step(f"{who} has read {_tasks(hold.reading)} of r{range_id} again", ended)
        else:
            yield from self._read_again(state, process, range_id, hold)
        if state.budget.rescans or hold.reading is not None:
            for task in sorted(hold.known):
                marked = task in state.marks or not self._rules.keeps("forget-only-when-marked")
                read = task in (hold.reading or NOTHING) and self._rules.keeps("forget-not-under-read")
                if marked and not read:
                    left = hold._replace(known=hold.known - {task})
                    yield Step(f"{who} forgets t{task}", keep(state, process, range_id, left), True)

    def _read_again(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        rows = self._rows(state, range_id)
        begun = keep(state, process, range_id, hold._replace(reading=rows))
        action = f"{name(process)} begins to read r{range_id} again"
        missed = rows - hold.heap - hold.known
        behind = self._rules.keeps("rescan-behind-preload") or not hold.warm
        if missed and behind and self._rules.keeps("rescan"):
            yield Step(action, begun)
        elif state.budget.rescans:
            spent = begun._replace(budget=state.budget._replace(rescans=state.budget.rescans - 1))
            yield Step(action, spent, True)

    def _passed(self, state: State, process: int, range_id: int) -> int:
        """The offset up to which the own log tells nothing of this range that is not marked; -1: nothing gained."""
        mine, last = state.processes[process], state.checkpoints[range_id]
        hold = mine.holds[range_id]
        assert hold is not None
        if (last.epoch, last.lane) != (hold.epoch, mine.slot):
            return -1
        gained, offset = False, last.offset
        for batch in state.lanes[mine.slot].log[offset:]:
            told = {task for kind, r, _, task in batch if r == range_id and kind != "M"}
            if not told <= state.marks and self._rules.keeps("marks-before-checkpoint"):
                break
            gained, offset = gained or bool(told), offset + 1
        return offset if gained else -1

    def _progress(self, state: State, process: int, range_id: int) -> Iterator[Step[State]]:
        hold = state.processes[process].holds[range_id]
        offset = self._passed(state, process, range_id)
        if hold is not None and offset >= 0 and not self._under_way(state, process, range_id, hold.epoch):
            saved, told = self._save(state, process, range_id, offset)
            yield Step(f"{name(process)} sends {told} of r{range_id}", saved)

    # ---- handing over

    def _stopping(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        who = name(process)
        busy = any(r == range_id for _, r, _, _ in state.processes[process].batch or ())
        if busy and self._rules.keeps("release-at-transactions-end"):
            return
        yield from self._progress(state, process, range_id)
        if hold.reading is not None:
            yield Step(f"{who} drops what it reads", keep(state, process, range_id, hold._replace(reading=None)))
            return
        open_ends = not hold.known <= state.marks or self._passed(state, process, range_id) >= 0
        open_ends = open_ends or self._under_way(state, process, range_id, hold.epoch)
        if open_ends and self._rules.keeps("release-after-marks"):
            return
        mine = state.processes[process]
        proved = stands(state, process, range_id, self._rules)
        if not proved and (self._rules.keeps("release-versioned") or mine.session < 0):
            yield Step(f"{who} can't release r{range_id}", let_go(state, process, range_id))
            return
        released = self._released(state, range_id)
        yield Step(f"{who} releases r{range_id}", keep(released, process, range_id, None))
        if "doubt" in self._setup.faults and state.budget.faults:
            spent = state.budget._replace(faults=state.budget.faults - 1)
            doubt = hold._replace(phase=IN_DOUBT if self._rules.keeps("release-in-doubt") else OWNER)
            for after, action in ((released, "releases r%d, and never learns it"), (state, "may have released r%d")):
                told = f"{who} {action % range_id}"
                yield Step(told, keep(after._replace(budget=spent), process, range_id, doubt), True)

    def _released(self, state: State, range_id: int) -> State:
        taken = state.ranges[range_id]._replace(holder=NOBODY, released=True)
        return state._replace(ranges=put(state.ranges, range_id, taken))

    def _doubting(self, state: State, process: int, range_id: int, hold: Hold) -> Iterator[Step[State]]:
        """A release may have been written: only a versioned proof that it was not lets the range go on."""
        if stands(state, process, range_id, self._rules):
            back = keep(state, process, range_id, hold._replace(phase=OWNER))
            yield Step(f"{name(process)} proves that r{range_id} is still its own, and goes on", back)
        else:
            yield Step(f"{name(process)} learns that r{range_id} is gone", let_go(state, process, range_id))


def _told(checkpoint: Checkpoint) -> str:
    epoch, number, lane, offset = checkpoint
    return f"checkpoint {epoch}.{number} (lane {lane}, offset {offset})"


def _tasks(tasks: Tasks) -> str:
    return ", ".join(f"t{task}" for task in sorted(tasks)) or "nothing"
