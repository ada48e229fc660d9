"""The clock through steps of the kernel's: never early, never at a stand, and the wrong one is told so."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketsched.core.clock_bound import KernelBound
from bucketsched.core.clock_discipline import (
    CONFIRM_NS,
    DRIFT_PPM,
    FOLLOW_NS_MAX,
    NS_PER_MS,
    NS_PER_S,
    PEER_ERROR_NS,
    RECENT_NS,
    SETTLE_NS,
    SLEW_PPM,
    STEP_NS_MIN,
    ClockLimits,
    Discipline,
    Look,
    Note,
)
from bucketsched.core.clock_discipline import Testimony as Said
from bucketsched.core.clock_votes import Interval

TRUTH = 1_700_000_000 * NS_PER_S
"""The true time at boot: the true offset."""
ERROR_NS = 2 * NS_PER_MS
RTT_NS = 4 * NS_PER_MS
WITNESSED = ClockLimits(ERROR_NS, alone=False)
HOUR_NS = 3_600 * NS_PER_S
STEPS = [5 * NS_PER_S, -5 * NS_PER_S, HOUR_NS, -HOUR_NS]


class Machine:
    """A node: its kernel's clock is `off_ns` wrong, and witnesses answer as they are told to."""

    def __init__(self, limits: ClockLimits = WITNESSED, off_ns: int = 0, max_error_ns: int | None = None) -> None:
        self.boot_ns, self.off_ns, self.max_error_ns = 1_000 * NS_PER_S, off_ns, max_error_ns
        self.notes: list[Note] = []
        self.clock = Discipline(limits, self._look())

    def _look(self) -> Look:
        return Look(self.boot_ns, self.boot_ns + TRUTH + self.off_ns, self.max_error_ns)

    def runs(self, seconds: float, **witnesses_off_ns: int) -> Machine:
        """Looks once a second, and hears witnesses that are so much wrong."""
        for _ in range(max(1, round(seconds))):
            self.boot_ns += round(NS_PER_S * min(1.0, seconds))
            self.notes += self.clock.look(self._look())
            if witnesses_off_ns:
                self.notes += self.clock.hear(self.testimonies(witnesses_off_ns))
        return self

    def testimonies(self, off_ns: dict[str, int]) -> list[Said]:
        sent_ns = self.boot_ns
        self.boot_ns += RTT_NS
        at_ns = sent_ns + RTT_NS // 2 + TRUTH
        said = {name: (at_ns + off) // NS_PER_MS * NS_PER_MS for name, off in off_ns.items()}
        return [Said(n, sent_ns, self.boot_ns, Interval(ns, ns + NS_PER_MS)) for n, ns in said.items()]

    def told(self, text: str) -> list[Note]:
        return [note for note in self.notes if text in note.text]

    @property
    def wrong_ns(self) -> int:
        """By how much its time is ahead of the truth."""
        return self.clock.offset_ns - TRUTH

    def check(self) -> None:
        assert self.clock.low_ns <= self.clock.offset_ns <= self.clock.high_ns
        assert self.clock.low_ns <= TRUTH, "early"
        assert self.clock.high_ns >= TRUTH


# ---------------------------------------------------------------- steps, with witnesses


@pytest.mark.parametrize("step_ns", STEPS)
@pytest.mark.parametrize("witnesses", [{"zookeeper": 0}, {"zookeeper": 0, "kafka-0": 0, "kafka-1": HOUR_NS}])
def test_a_step_that_witnesses_contradict_changes_nothing(step_ns: int, witnesses: dict[str, int]) -> None:
    machine = Machine().runs(10, **witnesses)
    machine.off_ns = step_ns
    machine.runs(1)
    assert machine.clock.doubtful
    machine.check()
    for _ in range(600):
        machine.runs(1, **witnesses).check()
        assert machine.wrong_ns == 0
    assert not machine.clock.doubtful
    assert machine.clock.steps == 1
    assert machine.told("was stepped")[0].fields == {"by_ms": step_ns / NS_PER_MS}
    [says] = {tuple(note.fields["says"]) for note in machine.told("is off")}  # type: ignore[arg-type]
    assert "zookeeper" in says
    assert "kafka-1" not in says
    assert machine.clock.kernel_off_ns == pytest.approx(step_ns, abs=20 * NS_PER_MS)


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_step_that_witnesses_confirm_is_followed_at_once(step_ns: int) -> None:
    machine = Machine(off_ns=-step_ns).runs(1)
    machine.off_ns = 0
    machine.runs(1)
    assert machine.wrong_ns == -step_ns, "nobody knows yet which is right"
    machine.runs(1, zookeeper=0).check()
    assert machine.wrong_ns == 0


@pytest.mark.parametrize("step_ns", STEPS)
def test_a_step_is_held_for_as_long_as_no_witness_answers(step_ns: int) -> None:
    machine = Machine().runs(5, zookeeper=0)
    machine.off_ns = step_ns
    for _ in range(2_000):
        machine.runs(1).check()
    assert machine.wrong_ns == 0
    assert machine.clock.error_ns > 10 * ERROR_NS, "it may have drifted"
    assert machine.clock.confirmed
    assert machine.clock.objection == "", "a node that can't ask any more goes on"
    machine.off_ns = 0
    machine.runs(5, zookeeper=0).check()
    assert machine.wrong_ns == 0


def test_a_small_step_is_followed_slowly_with_both_times_within_the_bounds() -> None:
    machine = Machine(off_ns=5 * NS_PER_MS).runs(5, zookeeper=0)  # less than witnesses can tell
    machine.off_ns = 0
    machine.runs(1).check()
    assert 4 * NS_PER_MS < machine.wrong_ns < 5 * NS_PER_MS
    assert machine.clock.low_ns == TRUTH - ERROR_NS
    machine.runs(15, zookeeper=0).check()
    assert machine.wrong_ns == 0


@pytest.mark.parametrize("off_ms", [50, -50])
def test_a_small_step_that_witnesses_contradict_is_not_followed(off_ms: int) -> None:
    machine = Machine().runs(5, zookeeper=0)
    machine.off_ns = off_ms * NS_PER_MS
    machine.runs(3)
    machine.runs(60, zookeeper=0).check()
    assert machine.wrong_ns == 0
    assert machine.told("the kernel's clock is off")


@given(st.lists(st.tuples(st.integers(-2 * HOUR_NS, 2 * HOUR_NS), st.integers(1, 15)), max_size=5), st.data())
@settings(max_examples=30, deadline=None)
def test_with_most_witnesses_right_it_is_neither_early_nor_late(
    steps: list[tuple[int, int]], data: st.DataObject
) -> None:
    """By no more than witnesses can tell: their own error, a round trip and their millisecond."""
    tolerance_ns = 2 * (PEER_ERROR_NS + RTT_NS + NS_PER_MS) + 2 * ERROR_NS + RECENT_NS * DRIFT_PPM // 1_000_000
    liar = data.draw(st.integers(-HOUR_NS, HOUR_NS))
    machine = Machine(off_ns=data.draw(st.sampled_from([0, 300 * NS_PER_MS, -HOUR_NS, HOUR_NS])))
    for off_ns, seconds in [(machine.off_ns, 1), *steps]:
        machine.off_ns = off_ns
        if machine.clock.confirmed:
            machine.runs(1)  # before anybody was asked
            assert machine.clock.low_ns <= TRUTH + tolerance_ns
            assert abs(machine.wrong_ns) <= tolerance_ns
        for _ in range(seconds):
            machine.runs(1, a=3 * NS_PER_MS, b=-3 * NS_PER_MS, c=liar)
            assert machine.clock.low_ns <= TRUTH + tolerance_ns
            assert machine.clock.high_ns >= TRUTH - tolerance_ns
            assert abs(machine.wrong_ns) <= tolerance_ns


# ---------------------------------------------------------------- who owns ranges


def test_without_one_witness_nothing_is_owned() -> None:
    machine = Machine().runs(100)
    assert machine.clock.objection == "no witness has confirmed the clock yet"
    machine.runs(1, zookeeper=0)
    assert machine.clock.objection == ""


@pytest.mark.parametrize("off_ms", [300, -300])
def test_a_clock_300_ms_off_is_told_so_and_corrected(off_ms: int) -> None:
    machine = Machine(off_ns=off_ms * NS_PER_MS).runs(30, zookeeper=0, **{"kafka-0": 0})
    machine.check()
    assert machine.clock.objection == ""
    assert abs(machine.wrong_ns) < 30 * NS_PER_MS
    note = machine.told("the kernel's clock is off")[-1]
    assert note.fields["says"] == ["kafka-0", "zookeeper"]
    assert note.fields["off_ms"] == pytest.approx(off_ms, abs=20)
    assert note.recurring


@pytest.mark.parametrize("off_ms", [2_000, -2_000])
def test_a_clock_2_s_off_owns_nothing_from_the_start(off_ms: int) -> None:
    machine = Machine(off_ns=off_ms * NS_PER_MS).runs(1, zookeeper=0)
    assert "off by" in machine.clock.objection
    machine.off_ns = 0
    machine.runs(SETTLE_NS / NS_PER_S - 2, zookeeper=0)
    assert "off by" in machine.clock.objection, "once right is not right"
    machine.runs(3, zookeeper=0)
    assert machine.clock.objection == ""
    assert machine.wrong_ns == 0


def test_a_clock_that_gets_2_s_off_and_stays_so_owns_nothing_any_more() -> None:
    machine = Machine().runs(5, zookeeper=0)
    machine.off_ns = 2 * NS_PER_S
    machine.runs(5, zookeeper=0)
    assert machine.clock.objection == "", "it may be set right again at once"
    machine.off_ns = 0
    machine.runs(5, zookeeper=0)
    machine.off_ns = 2 * NS_PER_S
    machine.runs(9, zookeeper=0)
    assert machine.clock.objection == ""
    machine.runs(3, zookeeper=0).check()
    assert "off by" in machine.clock.objection


def test_of_two_nodes_that_disagree_only_the_wrong_one_lets_go() -> None:
    right, wrong = Machine(), Machine(off_ns=2 * NS_PER_S)
    for machine in (right, wrong):
        machine.runs(20, zookeeper=0)
    assert right.clock.objection == ""
    assert wrong.clock.objection != ""


def test_a_witness_that_is_wrong_does_not_outvote_two_that_agree() -> None:
    machine = Machine().runs(20, zookeeper=HOUR_NS, **{"kafka-0": 0})
    assert machine.clock.objection == ""
    assert machine.wrong_ns == 0
    machine.check()


def test_witnesses_that_all_disagree_are_told_of_and_change_nothing() -> None:
    machine = Machine().runs(5, zookeeper=0)
    machine.runs(60, a=HOUR_NS, b=-HOUR_NS)
    assert machine.told("the witnesses of the time disagree")[-1].recurring
    assert machine.wrong_ns == 0
    assert machine.clock.objection == ""


def test_what_a_witness_said_long_ago_does_not_count() -> None:
    machine = Machine().runs(1, zookeeper=HOUR_NS, **{"kafka-0": HOUR_NS})
    machine.runs(RECENT_NS / NS_PER_S + 1)
    machine.runs(1, zookeeper=0)
    assert machine.clock.kernel_off_ns == 0


# ---------------------------------------------------------------- alone


@pytest.mark.parametrize("step_ns", STEPS)
def test_alone_a_step_is_believed_when_it_has_stood(step_ns: int) -> None:
    machine = Machine(ClockLimits()).runs(5)
    machine.off_ns = step_ns
    machine.runs(CONFIRM_NS / NS_PER_S - 1)
    assert (machine.wrong_ns, machine.clock.low_ns) == (0, TRUTH)
    machine.runs(2)
    assert machine.wrong_ns == step_ns
    assert machine.told("it is believed")


@pytest.mark.parametrize("step_ns", STEPS)
def test_alone_a_step_that_is_taken_back_changes_nothing(step_ns: int) -> None:
    machine = Machine(ClockLimits()).runs(5)
    for off_ns in (step_ns, 2 * step_ns, step_ns, 0):
        machine.off_ns = off_ns
        machine.runs(CONFIRM_NS / NS_PER_S - 10)
        assert (machine.wrong_ns, machine.clock.low_ns, machine.clock.high_ns) == (0, TRUTH, TRUTH)
    assert machine.clock.objection == ""


@given(st.lists(st.tuples(st.integers(-HOUR_NS, HOUR_NS), st.integers(1, 700)), max_size=4))
@settings(max_examples=30, deadline=None)
def test_alone_it_moves_slowly_or_to_what_has_stood(steps: list[tuple[int, int]]) -> None:
    machine = Machine(ClockLimits())
    stood = 0
    for off_ns, seconds in steps:
        stood = 0 if abs(off_ns - machine.off_ns) >= STEP_NS_MIN else stood
        machine.off_ns = off_ns
        for _ in range(seconds):
            last = machine.clock.offset_ns
            machine.runs(1)
            moved = abs(machine.clock.offset_ns - last)
            assert moved <= NS_PER_S * SLEW_PPM // 1_000_000 or stood >= CONFIRM_NS - 2 * NS_PER_S
            stood += NS_PER_S
        if seconds * NS_PER_S >= CONFIRM_NS + 2 * NS_PER_S + FOLLOW_NS_MAX * 1_000_000 // SLEW_PPM:
            assert machine.clock.offset_ns == TRUTH + off_ns


def test_alone_the_kernel_is_taken_at_its_word() -> None:
    machine = Machine(ClockLimits(), max_error_ns=NS_PER_S).runs(30)
    assert (machine.clock.error_ns, machine.clock.objection, machine.notes) == (0, "", [])


# ---------------------------------------------------------------- the kernel's bound


def test_without_synchronisation_a_bound_is_assumed_and_warned_of_once() -> None:
    machine = Machine().runs(50, zookeeper=0)
    assert [note.fields for note in machine.told("not synchronised")] == [{"assumed_error_ms": 2.0}]
    assert machine.clock.error_ns == ERROR_NS
    assert not machine.clock.synchronised


def polled(machine: Machine, set_to_ns: int, polls: int, **witnesses: int) -> None:
    """A time daemon sets the bound anew every 64 s; the kernel lets it grow meanwhile."""
    for _ in range(polls):
        machine.max_error_ns = set_to_ns
        for _ in range(64):
            machine.runs(1, **witnesses)
            machine.max_error_ns += 500_000


def test_what_the_daemon_sets_is_the_bound_not_what_the_kernel_adds() -> None:
    machine = Machine(max_error_ns=NS_PER_S)
    polled(machine, 3 * NS_PER_MS, 3, zookeeper=0)
    assert 3 * NS_PER_MS <= machine.clock.error_ns < 4 * NS_PER_MS
    assert machine.clock.objection == ""
    assert machine.clock.synchronised


def test_a_kernel_clock_that_is_not_exact_enough_owns_nothing() -> None:
    machine = Machine(max_error_ns=NS_PER_S)
    polled(machine, 30 * NS_PER_MS, 1, zookeeper=0)
    polled(machine, 30 * NS_PER_MS, 1, zookeeper=0)
    assert machine.clock.objection.startswith("the kernel's clock is only right to 30")
    polled(machine, 3 * NS_PER_MS, 2, zookeeper=0)
    assert machine.clock.objection == ""


def test_a_bound_that_nobody_was_seen_to_set_is_not_known() -> None:
    bound = KernelBound()
    for second in range(100):
        bound.observe(NS_PER_S + second * 500_000, second * NS_PER_S)
        assert bound.error_ns(second * NS_PER_S) is None
    bound.observe(NS_PER_MS, 100 * NS_PER_S)
    assert bound.error_ns(600 * NS_PER_S) == NS_PER_MS + NS_PER_MS
    bound.observe(None, 601 * NS_PER_S)
    assert bound.error_ns(602 * NS_PER_S) is None


def test_notes_are_for_machines_and_people() -> None:
    machine = Machine(off_ns=HOUR_NS).runs(3, zookeeper=0)
    _all_plain(machine.notes)


def _all_plain(notes: Iterable[Note]) -> None:
    for note in notes:
        assert all(isinstance(value, float | list | dict) for value in note.fields.values()), note
