"""The clock of the machine, disciplined: the only place where the wall time of the server is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

import structlog

from ..core.clock_discipline import NS_PER_MS, NS_PER_S, ClockLimits, Discipline, Look, Note, Testimony
from . import kernel_time

log = structlog.get_logger(__name__)
LOOK_NS = NS_PER_S
"""How often the kernel's wall clock is looked at: reading the time needs the time since boot only."""


class SystemClock:
    """Port Clock: time since boot plus the offset of core.clock_discipline. `look` and `boot_ns` are the kernel's."""

    def __init__(
        self,
        error_ms: float = 0,
        limits: ClockLimits | None = None,
        look: Callable[[], Look] = kernel_time.look,
        boot_ns: Callable[[], int] = kernel_time.boot_ns,
    ) -> None:
        """Without `limits`: no witnesses, and an error of at most `error_ms` at any time."""
        assert error_ms >= 0, error_ms
        self._look, self.boot_ns = look, boot_ns
        first = look()
        self.discipline = Discipline(limits or ClockLimits(round(error_ms * NS_PER_MS)), first)
        self._read_out(first.boot_ns)

    def now_ms(self) -> int:
        """Best estimate, rounded down."""
        return (self._elapsed() + self._offset_ns) // NS_PER_MS

    def earliest_ms(self) -> int:
        """It is certainly this late already."""
        return (self._elapsed() + self._low_ns) // NS_PER_MS

    def latest_ms(self) -> int:
        """It is certainly not later than this."""
        return -(-(self._elapsed() + self._high_ns) // NS_PER_MS)

    def monotonic(self) -> float:
        """Seconds since some instant; never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """May return a little early (uvloop does) or late."""
        await asyncio.sleep(seconds)

    def hear(self, testimonies: Iterable[Testimony]) -> None:
        """Takes in what witnesses have said."""
        self._tell(self.discipline.hear(testimonies))
        self._read_out(self._next_look_ns - LOOK_NS)

    def objection(self) -> str:
        """Why nothing should be owned by this clock's time; "": nothing speaks against it."""
        self._elapsed()
        return self.discipline.objection

    def _elapsed(self) -> int:
        now_ns = self.boot_ns()
        if now_ns >= self._next_look_ns:
            look = self._look()
            self._tell(self.discipline.look(look))
            self._read_out(look.boot_ns)
            now_ns = self.boot_ns()
        return now_ns

    def _read_out(self, looked_ns: int) -> None:
        found = self.discipline
        self._offset_ns, self._low_ns, self._high_ns = found.offset_ns, found.low_ns, found.high_ns
        self._next_look_ns = looked_ns + LOOK_NS

    def _tell(self, notes: Iterable[Note]) -> None:
        for note in notes:
            marks = {"recurring": True} if note.recurring else {}
            getattr(log, note.level)(note.text, **note.fields, **marks)
