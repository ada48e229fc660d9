"""Whether a server can be reached from here: told from when it was asked, and when it answered.

A process that can't reach a server learns nothing of the others' luck. So it says soon that it is in doubt, which costs
nothing, and draws conclusions only later: by then the others have said likewise if the server is away for them, too.
And having had no contact for long, it is in doubt for a while after the first answer: where the server was away for
all, the first one to reach it again must not take the others for worse off than itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContactLimits:
    """All in seconds, of silence but for the last."""

    doubt_s: float = 1.0
    """From then on it is in doubt."""
    cut_off_s: float = 3.0
    """From then on it counts as cut off."""
    steady_s: float = 15.0
    """After it was cut off it is in doubt until the server has answered for so long; longer than a commit may take."""


class Contact:
    """With one server. `now`: monotonic seconds."""

    def __init__(self, limits: ContactLimits) -> None:
        self._limits = limits
        self._asked: float | None = None
        self._steady_at = float("inf")
        """inf: it has never answered."""

    def ask(self, now: float) -> None:
        """A question is sent. What was asked before and not answered stays asked."""
        if self._asked is None:
            self._asked = now

    def answer(self, now: float) -> None:
        """There is an answer."""
        silent_s, self._asked = self.silent_s(now), None
        if self._steady_at == float("inf"):
            self._steady_at = now
        elif silent_s >= self._limits.cut_off_s or (silent_s >= self._limits.doubt_s and now < self._steady_at):
            self._steady_at = now + self._limits.steady_s

    def silent_s(self, now: float) -> float:
        """How long it has left a question unanswered; 0 where none is open."""
        return 0.0 if self._asked is None else now - self._asked

    def doubtful(self, now: float) -> bool:
        """It should not be given more to do."""
        return now < self._steady_at or self.silent_s(now) >= self._limits.doubt_s

    def reached(self, now: float) -> bool:
        """It answers at present, steadily or not."""
        return self._steady_at != float("inf") and self.silent_s(now) < self._limits.doubt_s

    def cut_off(self, now: float) -> bool:
        """What it has should be done by others, if they have no doubts. Never true before the first answer."""
        return self._steady_at != float("inf") and self.silent_s(now) >= self._limits.cut_off_s
