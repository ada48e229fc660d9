"""Changes: cancel, move and retry of one task, beside its dispatch, while its range may be taken over.

Every change goes to the owner and is committed in the order of one journal. Rows and facts are stored after their
record, or never, and a taker writes again what the journal says. A takeover is one step here: fence, replay, and the
successors written again. A zombie goes on until it commits, and finds itself fenced.

The task has generations: a move ends one and makes the next, whose whole row is in the record. It has attempts: the
outcome of the first (the worker's, or the time-out's, whichever is journaled first) decides whether there is a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Step
from .owners import NAMES, committed, replayed, takeovers, with_owner
from .rules import Rules

Ref = tuple[int, int]
"""Generation and attempt of a row."""
Fact = tuple[str, Ref]
"""dispatch, cancel, move, complete or expire of a row, as committed."""
FIRST: Ref = (0, 1)
ENDS = ("dispatch", "cancel", "move")
"""Facts that settle their row."""
MAKES = ("move", "expire")
"""Facts that ask for another row."""


class Owner(NamedTuple):
    """What one of the two knows. `heap`: rows that it will dispatch; `known`: what it knows to be settled."""

    active: bool = False
    heap: frozenset[Ref] = frozenset()
    known: frozenset[Ref] = frozenset()


class State(NamedTuple):
    """`told`: the answers that clients have got; `asked`: what is still to be asked; `unwritten`: what the owner has
    committed and not yet stored, which is lost with it.
    """

    journal: tuple[Fact, ...]
    rows: frozenset[Ref]
    marks: frozenset[Ref]
    owners: tuple[Owner, Owner]
    lease: int
    asked: frozenset[str]
    told: frozenset[tuple[str, Ref]]
    takeovers: int
    unwritten: frozenset[Fact]


class Changes:
    """A `Model` for the checker. `asked`: of cancel, move, complete, expire, those that happen."""

    def __init__(self, rules: Rules, asked: frozenset[str], takeovers: int) -> None:
        self._rules, self._asked, self._takeovers = rules, asked, takeovers

    def initial(self) -> State:
        """A owns the range and has loaded the first row."""
        owners = (Owner(True, frozenset({FIRST})), Owner())
        none: frozenset[Ref] = frozenset()
        return State((), frozenset({FIRST}), none, owners, 0, self._asked, frozenset(), self._takeovers, frozenset())

    def violation(self, state: State) -> str:
        """See checker.Model."""
        dispatched = [ref for kind, ref in state.journal if kind == "dispatch"]
        if len(dispatched) > len(set(dispatched)):
            return "I3: an attempt of a generation is dispatched twice"
        if len({generation for generation, _ in dispatched}) > 1:
            return "I3: two generations are dispatched"
        for kind, ref in state.told:
            if kind in ("cancelled", "moved") and ref in dispatched:
                return f"I4: generation {ref[0]} is dispatched, although it was {kind} as its client was told"
            if kind == "cancelled" and dispatched:
                return "I4: it is dispatched in a later generation, although it was cancelled"
            if kind == "too late" and ref not in dispatched:
                return "I4: a client was told that it came too late, and it did not"
        outcomes = {kind for kind, _ in state.told if kind in ("completed", "expired")}
        if len(outcomes) > 1 or {"complete", "expire"} <= {kind for kind, _ in state.journal}:
            return "I13: an attempt has two outcomes"
        if "completed" in outcomes and (0, 2) in dispatched:
            return "I13: an attempt that was completed is retried"
        if sum(ref[1] > 1 for ref in dispatched) > sum(kind == "expire" for kind, _ in state.journal):
            return "I3: there are more retries than outcomes ask for"
        return ""

    def goal(self) -> str:
        """See checker.Model."""
        return "I1: the end of every row that the journal asks for, and of the first"

    def reached(self, state: State) -> bool:
        """Every row that there must be is dispatched or cancelled, or moved to one that is."""
        wanted = {FIRST} | {_successor(fact) for fact in state.journal if fact[0] in MAKES}
        settled = {ref for kind, ref in state.journal if kind in ENDS}
        return wanted <= settled and not self.violation(state)

    # ---- what can happen

    def steps(self, state: State) -> Iterator[Step[State]]:
        """See checker.Model."""
        for number, owner in enumerate(state.owners):
            if owner.active:
                yield from self._dispatches(state, number, owner)
                for change in sorted(state.asked):
                    yield from self._changes(state, number, owner, change)
                yield from self._reads(state, number, owner)
        yield from self._stores(state)
        yield from takeovers(state, self._take)

    def _take(self, state: State, taker: int) -> State:
        """Replays the journal, stores what it says; then loads what is left."""
        state = replayed(state.journal, 0, self._store_again, state._replace(unwritten=frozenset()))
        settled = frozenset(ref for kind, ref in state.journal if kind in ENDS)
        return with_owner(state, taker, Owner(True, state.rows - state.marks, settled))

    def _store_again(self, state: State, fact: Fact) -> State:
        if fact[0] in MAKES and self._rules.keeps("replay-writes-successors"):
            state = state._replace(rows=state.rows | {self._again(fact)})
        return _marked(state, fact)

    def _again(self, fact: Fact) -> Ref:
        """The row that a replay makes of a record: the same one, or there would be two."""
        generation, attempt = _successor(fact)
        same = fact[0] == "move" or self._rules.keeps("retry-is-deterministic")
        return (generation, attempt) if same else (generation, attempt + 1)

    def _commit(self, state: State, number: int, fact: Fact) -> State:
        """The lease's holder commits; somebody else finds itself fenced and knows nothing any more."""
        return committed(state, number, lambda held: self._recorded(held, number, fact), Owner())

    def _recorded(self, state: State, number: int, fact: Fact) -> State:
        owner = state.owners[number]
        kind, ref = fact
        heap, known = owner.heap, owner.known
        if kind in ENDS:
            heap, known = heap - {ref}, known | {ref}
        if kind in MAKES:
            heap |= {_successor(fact)}
        state = state._replace(journal=(*state.journal, fact), unwritten=state.unwritten | {fact})
        return with_owner(state, number, Owner(True, heap, known))

    def _tell(self, state: State, number: int, change: str, answer: str, ref: Ref) -> State:
        """The client gets its answer from whoever holds the lease."""
        if not self._holds(state, number):
            return state
        return state._replace(asked=state.asked - {change}, told=state.told | {(answer, ref)})

    def _holds(self, state: State, number: int) -> bool:
        return state.owners[number].active

    def _dispatches(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        for ref in sorted(owner.heap):
            yield Step(
                f"{NAMES[number]} commits the dispatch of {_said(ref)}", self._commit(state, number, ("dispatch", ref))
            )

    def _changes(self, state: State, number: int, owner: Owner, change: str) -> Iterator[Step[State]]:
        if change in ("cancel", "move"):
            yield from self._ends(state, number, owner, change)
        else:
            yield from self._outcomes(state, number, change)

    def _ends(self, state: State, number: int, owner: Owner, change: str) -> Iterator[Step[State]]:
        """A cancel or a move of the generation that is alive, as this owner sees it."""
        who, done = NAMES[number], "cancelled" if change == "cancel" else "moved"
        for ref in sorted(owner.heap):
            if change == "move" and ref[0] > 0:
                continue
            if self._rules.keeps("change-through-journal"):
                after = self._tell(self._commit(state, number, (change, ref)), number, change, done, ref)
                yield Step(f"{who} commits the {change} of {_said(ref)}, and says so", after)
                lost = self._commit(state, number, (change, ref))
                yield Step(
                    f"{who} commits the {change} of {_said(ref)}, and its answer is lost",
                    lost._replace(asked=state.asked - {change}),
                    True,
                )
            else:
                heap = owner.heap - {ref} | ({_successor((change, ref))} if change == "move" else set())
                mine = with_owner(state, number, Owner(True, heap, owner.known | {ref}))
                yield Step(
                    f"{who} confirms the {change} of {_said(ref)} from memory",
                    self._tell(mine, number, change, done, ref),
                )
        late = [ref for kind, ref in state.journal if kind == "dispatch" and ref in owner.known]
        if late:
            yield Step(
                f"{who} says that the {change} came too late", self._tell(state, number, change, "too late", late[-1])
            )
        if not self._rules.keeps("facts-after-their-record") and owner.heap and change == "cancel":
            ref = min(owner.heap)
            yield Step(
                f"{who} stores the fact of the cancel ahead of its record", state._replace(marks=state.marks | {ref})
            )

    def _outcomes(self, state: State, number: int, change: str) -> Iterator[Step[State]]:
        """The first outcome that is journaled counts; a later one is told so."""
        who = NAMES[number]
        if ("dispatch", FIRST) not in state.journal:
            return
        told = {"complete": "completed", "expire": "expired"}[change]
        first = next((kind for kind, _ in state.journal if kind in ("complete", "expire")), None)
        if first is not None and self._rules.keeps("first-outcome-wins"):
            yield Step(f"{who} says that the {first} came first", state._replace(asked=state.asked - {change}))
            return
        if not self._rules.keeps("outcome-through-journal"):
            answered = self._tell(state, number, change, told, FIRST)
            yield Step(f"{who} says from memory that it is {told}", answered)
        after = self._tell(self._commit(state, number, (change, FIRST)), number, change, told, FIRST)
        yield Step(f"{who} commits the {change} of {_said(FIRST)}", after)

    def _reads(self, state: State, number: int, owner: Owner) -> Iterator[Step[State]]:
        """A scan brings rows that nobody told of."""
        missed = state.rows - state.marks - owner.heap - owner.known
        if missed:
            loaded = with_owner(state, number, owner._replace(heap=owner.heap | missed))
            yield Step(f"{NAMES[number]} reads {', '.join(map(_said, sorted(missed)))}", loaded)

    def _stores(self, state: State) -> Iterator[Step[State]]:
        """What the journal says comes to the store: the successor first, then the fact that points to it."""
        for fact in sorted(state.unwritten):
            kind, ref = fact
            left = state._replace(unwritten=state.unwritten - {fact})
            if kind in MAKES:
                left = left._replace(rows=state.rows | {_successor(fact)})
            yield Step(f"what the {kind} of {_said(ref)} asks for is stored", _marked(left, fact))


def _marked(state: State, fact: Fact) -> State:
    kind, ref = fact
    return state._replace(marks=state.marks | {ref}) if kind in ENDS else state


def _successor(fact: Fact) -> Ref:
    kind, (generation, attempt) = fact
    return (generation + 1, attempt) if kind == "move" else (generation, attempt + 1)


def _said(ref: Ref) -> str:
    return f"generation {ref[0]} attempt {ref[1]}"
