"""What ZooKeeper, Kafka and Cassandra do, and what is checked when they do it."""

from __future__ import annotations

from ..rules import Rules
from .state import NEW, NOBODY, Batch, Checkpoint, Hold, Process, State, Tasks, Write, put

LETTERS = "ABCDEFGH"


def name(process: int) -> str:
    """What a process is called in a trace."""
    return LETTERS[process]


def told(batch: Batch) -> str:
    """A batch as it is said in a trace."""
    kinds = {"D": "dispatch", "C": "cancel", "M": "message", "J": "record"}
    return ", ".join(f"{kinds[kind]} of t{task} (r{r} epoch {epoch})" for kind, r, epoch, task in batch)


def journaled(state: State, kinds: str = "DCJ") -> Tasks:
    """The tasks of which a committed record of these kinds tells."""
    return frozenset(t for lane in state.lanes for batch in lane.log for kind, _, _, t in batch if kind in kinds)


# ---- Kafka


def init_producer(state: State, lane: int, producer: int) -> State:
    """Whoever does this is the lane's producer from now on; what was open is aborted."""
    taken = state.lanes[lane]._replace(producer=producer, open=None, late=False)
    return state._replace(lanes=put(state.lanes, lane, taken))


def fence(state: State, lane: int, range_id: int, epoch: int) -> State:
    """A taker of this epoch keeps the lane from committing anything more of its former owner's."""
    fenced = put(state.lanes[lane].fenced, range_id, epoch)
    return state._replace(lanes=put(state.lanes, lane, state.lanes[lane]._replace(fenced=fenced)))


def commit(state: State, lane: int) -> State:
    """The open transaction of a lane is committed."""
    taken = state.lanes[lane]
    batch = taken.open
    assert batch is not None
    wrong, epochs = state.wrong or objection(state, lane, batch), state.epochs
    for _, range_id, epoch, _ in batch:
        epochs = put(epochs, range_id, max(epoch, epochs[range_id]))
    taken = taken._replace(open=None, late=False, log=(*taken.log, batch))
    return state._replace(lanes=put(state.lanes, lane, taken), epochs=epochs, wrong=wrong)


def objection(state: State, lane: int, batch: Batch) -> str:
    """Which invariant a commit violates, or ""."""
    sent, cancelled = journaled(state, "DM"), journaled(state, "C") | state.confirmed
    for kind, range_id, epoch, task in batch:
        if kind in "DM" and task in sent:
            return f"I3: t{task} is dispatched twice"
        if kind in "DM" and task in cancelled:
            return f"I4: t{task} is dispatched although its cancel was committed or confirmed"
        if kind == "C" and task in sent:
            return f"I4: the cancel of t{task} is committed after its dispatch"
        if epoch < state.epochs[range_id]:
            return f"I6: r{range_id} commits in epoch {epoch} after epoch {state.epochs[range_id]}"
        if epoch < state.lanes[lane].fenced[range_id]:
            return f"I6: r{range_id} commits in epoch {epoch} in lane {lane}, which was fenced for it"
        if kind in "DM":
            sent |= {task}
        if kind == "C":
            cancelled |= {task}
    return ""


# ---- Cassandra


def send(state: State, *writes: Write) -> State:
    """Writes are under way."""
    return state._replace(flying=state.flying | frozenset(writes))


def mark(state: State, task: int) -> State:
    """It is noted beside its row that a task is settled."""
    wrong = state.wrong
    if task not in journaled(state) and task not in state.confirmed:
        wrong = f"I1: t{task} is marked as settled, but no record says so: it is lost"
    return state._replace(marks=state.marks | {task}, wrong=wrong)


def land(state: State, write: Write, rules: Rules) -> State:
    """A write arrives."""
    state = state._replace(flying=state.flying - {write})
    _, subject, new = write
    if new is None:
        return mark(state, subject)
    old = state.checkpoints[subject]
    if rules.keeps("checkpoint-order") and new[:2] <= old[:2]:
        return state
    return state._replace(checkpoints=put(state.checkpoints, subject, new), wrong=state.wrong or trimmed(state, new))


def trimmed(state: State, checkpoint: Checkpoint) -> str:
    """What is wrong if the current checkpoint of a range points there."""
    start = state.lanes[checkpoint.lane].start
    if checkpoint.offset >= start:
        return ""
    return f"alarm: lane {checkpoint.lane} is trimmed up to {start}, and a checkpoint needs it from {checkpoint.offset}"


# ---- ZooKeeper


def stands(state: State, process: int, range_id: int, rules: Rules) -> bool:
    """What a versioned write proves: the lease is this process's, and of this epoch."""
    mine, taken = state.processes[process], state.ranges[range_id]
    hold = mine.holds[range_id]
    if hold is None or mine.session == NOBODY or taken.holder == NOBODY:
        return False
    if not rules.keeps("validate-epoch"):
        return state.processes[taken.holder].session == mine.session
    return taken.holder == process and taken.epoch == hold.epoch


def expire(state: State, process: int) -> State:
    """The session of a process ends: the leases and slots of all its lanes are free."""
    session = state.processes[process].session
    gone = {number for number, p in enumerate(state.processes) if p.session == session} if session >= 0 else set()
    ranges = tuple(r._replace(holder=NOBODY) if r.holder in gone else r for r in state.ranges)
    slots = tuple(NOBODY if holder in gone else holder for holder in state.slots)
    processes = tuple(p._replace(session=NOBODY) if number in gone else p for number, p in enumerate(state.processes))
    return state._replace(ranges=ranges, slots=slots, processes=processes)


# ---- a process's own memory


def change(state: State, process: int, new: Process) -> State:
    """The process is so from now on."""
    return state._replace(processes=put(state.processes, process, new))


def keep(state: State, process: int, range_id: int, hold: Hold | None) -> State:
    """What the process knows of the range from now on; None: it is none of its business."""
    mine = state.processes[process]
    return change(state, process, mine._replace(holds=put(mine.holds, range_id, hold)))


def stop(state: State, process: int) -> State:
    """The process is gone, with all that it knew."""
    holds: tuple[Hold | None, ...] = (None,) * len(state.ranges)
    return change(state, process, Process(False, NOBODY, NOBODY, NEW, None, False, holds))


def let_go(state: State, process: int, range_id: int) -> State:
    """A versioned write failed: the range is somebody else's. Without its session the process ends."""
    return keep(state, process, range_id, None) if state.processes[process].session >= 0 else stop(state, process)
