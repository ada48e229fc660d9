"""The execution log of tasks: what became of each attempt, and who may say so."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum, StrEnum

WORKER_CHARACTERS_MAX = 200
ERROR_TYPE_CHARACTERS_MAX = 200
ERROR_MESSAGE_CHARACTERS_MAX = 1_000
ERROR_TRACE_CHARACTERS_MAX = 8_000
"""Of a longer one the end is kept: there is what went wrong."""
RESULT_BYTES_MAX = 16 * 1024


class AttemptEnd(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    """Nobody said how it ended while its lease stood."""
    EXPIRED = "EXPIRED"
    """It was not begun by the time until which the task was of use."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of the log. Times in ms since the Unix epoch; 0: did not happen, or nobody said."""

    namespace_id: bytes
    task_id: bytes
    generation: int
    attempt: int
    started_ms: int = 0
    ended_ms: int = 0
    end: AttemptEnd | None = None
    """None: nobody has said yet how it ended."""
    worker: str = ""
    error_type: str = ""
    error_message: str = ""
    error_trace: str = ""
    result: bytes = b""
    retry_ms: int = 0
    """When the next attempt is due, if this one has failed and another one follows."""

    def clipped(self) -> Attempt:
        """With texts of bounded lengths."""
        return replace(
            self,
            worker=self.worker[:WORKER_CHARACTERS_MAX],
            error_type=self.error_type[:ERROR_TYPE_CHARACTERS_MAX],
            error_message=self.error_message[:ERROR_MESSAGE_CHARACTERS_MAX],
            error_trace=self.error_trace[-ERROR_TRACE_CHARACTERS_MAX:],
        )

    def with_all_of(self, other: Attempt) -> Attempt:
        """The same entry with what is set in another one of the same attempt."""
        said = {f.name: value for f in fields(self) if (value := getattr(other, f.name))}
        return replace(self, **said)

    @property
    def latest_ms(self) -> int:
        """The last time that it names."""
        return max(self.started_ms, self.ended_ms, self.retry_ms)

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""
        said = ": ".join(part for part in (self.error_type, self.error_message) if part)
        return said or (self.end.value.lower().replace("_", " ") if self.end else "")


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """What a process that delivers says of an attempt that has ended."""

    attempt: Attempt
    row_due_ms: int
    """Where the attempt's row is."""
    final: bool = False
    """There is to be no other attempt, whatever the policy."""
    pause_ms_least: int = 0
    """Before another attempt, as the other side has asked for it."""
    queue: str = ""
    """Of the task."""
    notices: bool = True
    """The task itself has something told of it, or may have."""


class EndResult(Enum):
    """What became of a report."""

    TAKEN = "taken"
    """It is what happened to the attempt, from now on and for good."""
    ALREADY_ENDED = "already ended"
    """Another report came before it: this one changes nothing."""
    NOT_FOUND = "not found"
    """There is no such task, or no such attempt at it was dispatched."""
