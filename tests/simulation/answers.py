"""What clients are told must be true, by the journal: I1, I4, I8, I9 and I11 at the moment of an answer."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bucketsched.core.errors import AlreadyExists, FailedPrecondition, NotFound, RequestError
from bucketsched.core.task import FactKind, StoredTask, TaskBody, TaskRow
from bucketsched.core.task_change import ChangeResult
from bucketsched.ports import CancelResult, Changed
from bucketsched.service.tasks import Created

from .clock import WorldTime
from .invariants import Invariants
from .requests import Request, Told, Wish

_CANCELS = {
    CancelResult.CANCELLED: FactKind.CANCELLED,
    CancelResult.ALREADY_CANCELLED: FactKind.CANCELLED,
    CancelResult.ALREADY_DISPATCHED: FactKind.DISPATCHED,
    CancelResult.ALREADY_FAILED: FactKind.FAILED,
    CancelResult.ALREADY_SUCCEEDED: FactKind.SUCCEEDED,
    CancelResult.ALREADY_EXPIRED: FactKind.EXPIRED,
}
_CHANGES = {
    ChangeResult.ALREADY_CANCELLED: FactKind.CANCELLED,
    ChangeResult.ALREADY_DISPATCHED: FactKind.DISPATCHED,
    ChangeResult.ALREADY_FAILED: FactKind.FAILED,
    ChangeResult.ALREADY_SUCCEEDED: FactKind.SUCCEEDED,
    ChangeResult.ALREADY_EXPIRED: FactKind.EXPIRED,
}


class Began(NamedTuple):
    """What somebody had been told of a task when a question about it was asked: an answer must know at least that.

    Of what is journaled and told to nobody its owner may not know yet, as its transaction is in doubt: then the answer
    is that of a moment before.
    """

    generation: int
    cancelled: bool
    acknowledged: bool


class Answers:
    """Checks them."""

    def __init__(self, invariants: Invariants, time: WorldTime) -> None:
        self._invariants, self._time = invariants, time
        self._expect, self._versions = invariants.expect, invariants.versions
        self._tasks: dict[tuple[bytes, bytes], Request] = {}
        """Who was told of which id."""
        self._told: dict[tuple[bytes, bytes], int] = {}
        """The newest generation that somebody was told of."""

    # ---- creates

    def created(self, request: Request, result: Created) -> None:
        """A create is acknowledged. The same key is the same task, and nobody else's."""
        name, invariant = result.task_id[-4:].hex(), "I9" if request.key else "I8"
        known = request.task_id in (b"", result.task_id)
        self._expect(known, invariant, f"{request.name} is acknowledged under another id", request.name, name)
        request.task_id, request.told_ms = result.task_id, self._time.ms()
        first = self._tasks.setdefault(request.names, request)
        self._expect(first is request, "I9", f"{request.name} is told of {first.name}'s id", request.name, first.name)
        refused = request.told is Told.REJECTED
        self._expect(not refused, invariant, f"{request.name} was refused, and is acknowledged", request.name)
        self._invariants.learn_due(request, result.due_ms, created=True)
        same = result.due_ms == request.due_ms
        self._expect(same, invariant, f"{request.name} is acknowledged for another due time", request.name, name)
        request.told = Told.ACKNOWLEDGED

    def refused(self, request: Request, error: RequestError) -> None:
        """A create is refused: what the key stands for is another request."""
        acknowledged = request.told is Told.ACKNOWLEDGED
        self._expect(not acknowledged, "I9", f"{request.name} was acknowledged, and is refused: {error}", request.name)
        taken = isinstance(error, AlreadyExists)
        self._expect(not taken or request.contended, "I9", f"{request.name} is refused: {error}", request.name)
        request.told = Told.REJECTED

    # ---- cancels

    def cancelled(self, request: Request, result: CancelResult) -> None:
        """A client was told so."""
        request.cancels.append(result)
        wanted, kinds = _CANCELS.get(result), self._invariants.kinds(request)
        right = wanted is None or wanted in kinds
        what = f"{request.name} is told {result.value}, the journal has {kinds}"
        self._expect(right, "I4", what, request.task_id[-4:].hex(), request.name)

    # ---- changes, and looks

    def begin(self, request: Request) -> Began:
        """A question is asked."""
        generation, cancelled = self._told.get(request.names, 0), CancelResult.CANCELLED in request.cancels
        return Began(generation, cancelled, request.told is Told.ACKNOWLEDGED)

    def changed(self, request: Request, wish: Wish, began: Began, changed: Changed) -> None:
        """A change is answered."""
        if changed.result is not ChangeResult.CHANGED:
            wanted, kinds = _CHANGES[changed.result], self._invariants.kinds(request)
            what = f"{request.name} is told {changed.result.value}, the journal has {kinds}"
            self._expect(wanted in kinds, "I4", what, request.task_id[-4:].hex(), request.name)
            return
        row = changed.row
        assert row is not None
        self._shown(request, began, row)
        generation = row.generation
        self._expect(not began.cancelled, "I4", f"{request.name} was cancelled, and is changed", request.name)
        only = wish.generation in (None, generation, generation - 1)
        self._expect(only, "I4", f"{request.name} is changed, and is of another generation", request.name)
        fulfilled = wish.fulfilled(row.body, self._time.ms(), self._invariants.clock_error_ms)
        self._expect(fulfilled, "I4", f"{request.name} is told {row.body}, which is not {wish}", request.name)
        self._told[request.names] = max(generation, self._told.get(request.names, 0))

    def not_changed(self, request: Request, wish: Wish, began: Began, error: RequestError) -> None:
        """A change is refused: the task is of another generation, or not there."""
        name = request.task_id[-4:].hex()
        if isinstance(error, FailedPrecondition):
            of_it = began.generation == wish.generation == self._versions.generation(request.names)
            self._expect(not of_it, "I4", f"{request.name} is of the generation asked for: {error}", request.name, name)
        elif isinstance(error, NotFound):
            self.not_found(request, began)
        else:
            self._invariants.fail("I8", f"{request.name} can't be changed: {error}", request.name, name)

    def not_found(self, request: Request, began: Began) -> None:
        """A client was told that there is no such task."""
        name = request.task_id[-4:].hex()
        self._expect(not began.acknowledged, "I1", f"{request.name} was acknowledged, and is not found", name)

    def shown(self, request: Request, began: Began, task: StoredTask) -> None:
        """A task was read. What is journaled may be shown a while later."""
        self._shown(request, began._replace(generation=0), task.row)

    def _shown(self, request: Request, began: Began, row: TaskRow) -> None:
        """The row is one that there is, and not older than what is known."""
        name, generation = f"{row.task_id[-4:].hex()}/{row.generation}", row.generation
        made = (generation, row.attempt) == (0, 1) or self._versions.made(row.ref)
        self._expect(made, "I4", f"{request.name} is told of {name}, which no record has made", request.name, name)
        body = self._versions.body(request.names, generation, request.body())
        right = _timeless(row.body) == _timeless(body)
        self._expect(right, "I11", f"{request.name} is told {row.body}, and is {body}", request.name, name)
        new = generation >= began.generation
        self._expect(new, "I4", f"{request.name} is told of {name}, and was changed since", request.name, name)


def _timeless(body: TaskBody) -> TaskBody:
    """Clients are not told when their create was served."""
    return replace(body, created_ms=0)
