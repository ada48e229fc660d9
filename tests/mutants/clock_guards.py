"""The guards of the clock: what keeps a wrong one from hastening a task, and a right one from letting go."""

from __future__ import annotations

from .guards import Guard

DISCIPLINE, VOTES = "core/clock_discipline.py", "core/clock_votes.py"
STEPS, VOTING, WATCH = (
    "tests/unit/test_clock_discipline.py",
    "tests/unit/test_clock_votes.py",
    "tests/unit/test_clock_watch.py",
)
POLLER = "app/poller_role.py"

CLOCK_GUARDS = [
    Guard(
        "steps-are-held",
        "a step of the kernel's clock alone does not say which time is right",
        DISCIPLINE,
        "        if abs(apart_ns) <= FOLLOW_NS_MAX:\n            most",
        "        if True:\n            self.offset_ns = self._kernel_ns\n            most",
        (STEPS,),
    ),
    Guard(
        "contradicted-kernels-are-not-followed",
        "also a small step is a wrong one if witnesses say so",
        DISCIPLINE,
        "        if not self._kernel_allowed():\n            return []\n",
        "",
        (STEPS,),
    ),
    Guard(
        "bounds-around-both",
        "while a small step is followed either time may be the right one",
        DISCIPLINE,
        "both = (self.offset_ns, self._kernel_ns) if following else (self.offset_ns,)",
        "both = (self.offset_ns,)",
        (STEPS,),
    ),
    Guard(
        "held-bounds-grow",
        "a clock that runs free drifts",
        DISCIPLINE,
        "error_ns = self._error_ns() + _drift(self._boot_ns - self._apart_since)",
        "error_ns = self._error_ns()",
        (STEPS,),
    ),
    Guard(
        "alone-a-step-has-to-stand",
        "without witnesses only time tells a correction from a slip",
        DISCIPLINE,
        "elif self._limits.alone and self._boot_ns - self._stepped_at >= CONFIRM_NS:",
        "elif self._limits.alone:",
        (STEPS,),
    ),
    Guard(
        "no-range-before-one-check",
        "a clock that nobody has confirmed may be hours ahead",
        DISCIPLINE,
        "        if not self.confirmed:\n",
        "        if False:\n",
        (STEPS,),
    ),
    Guard(
        "old-testimonies-do-not-count",
        "a witness that was wrong may have been set right",
        DISCIPLINE,
        "if self._boot_ns - s.received_ns <= RECENT_NS}",
        "}",
        (STEPS,),
    ),
    Guard(
        "the-own-clock-has-a-vote",
        "of two witnesses that differ, the one that agrees with the node is believed",
        VOTES,
        " + [(own, OWN_VOTES)]",
        "",
        (VOTING,),
    ),
    Guard(
        "a-witness-outweighs-the-own-clock",
        "of two nodes that disagree with one witness between them, only the wrong one lets go",
        VOTES,
        "WITNESS_VOTES, OWN_VOTES = 2, 1",
        "WITNESS_VOTES, OWN_VOTES = 1, 1",
        (VOTING,),
    ),
    Guard(
        "the-alone-do-not-step-aside",
        "a lane without heirs goes on by the witnesses' time: a standstill would help nobody",
        POLLER,
        "                if self._has_heirs():\n",
        "                if True:\n",
        (WATCH,),
    ),
    Guard(
        "who-leaves-is-no-heir",
        "where all would step aside, one stays",
        POLLER,
        "m.lane != self._slot and not m.leaving and",
        "m.lane != self._slot and",
        (WATCH,),
    ),
]
