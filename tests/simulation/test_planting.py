"""What is planted can be planted, and is told of. Quick: whoever changes code that is taken out there knows at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .faults import Faults
from .mix import KINDS, Mix, mix_of
from .planted import PLANTED, PROVEN, Planted
from .planting import NotPlanted, changed, path_of
from .recording import with_seed

TOLD = (Path(__file__).resolve().parents[2] / "docs" / "simulation.md").read_text()
NAMED = {
    "the-journal-before-the-fence", "a-send-is-not-awaited", "a-cancel-without-the-journal", "due-is-floored",
    "the-rescan-is-left-out", "closed-too-early", "a-lease-is-proof", "a-preload-replays-from-a-later-checkpoint",
    "far-ids-are-forgotten-under-a-read", "a-late-create-relocates-by-itself",
}  # fmt: skip
"""Those that 2,000 seeds must find, whatever else changes."""


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_code_that_is_taken_out_is_there(bug: Planted) -> None:
    for file, changes in bug.changes.items():
        before = path_of(file).read_text()
        assert changed(path_of(file), changes) != before


def test_code_that_is_not_there_once_is_refused() -> None:
    with pytest.raises(NotPlanted, match="0 times"):
        changed(Path(__file__), [("no such " + "code", "")])


def test_each_has_a_name_and_is_told_of() -> None:
    names = {bug.name for bug in PLANTED}
    assert len(names) == len(PLANTED)
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", TOLD))
    assert {bug.name for bug in PLANTED if bug.seed is None} <= told, "each that is not found is explained"
    assert {bug.name for bug in PROVEN} >= NAMED
    assert len(PROVEN) >= 16


def test_even_seeds_are_broad_and_odd_ones_have_a_mix_of_their_own() -> None:
    assert mix_of(0) == mix_of(1_998) == Mix()
    mixes = {mix_of(seed) for seed in range(1, 400, 2)}
    assert len(mixes) > 180
    assert mix_of(7) == mix_of(7)
    assert {kind for mix in mixes for kind in mix.kinds} == set(KINDS)


def test_each_kind_of_fault_is_there() -> None:
    assert all(callable(getattr(Faults, f"_{kind}")) for kind in KINDS)


def test_a_seed_is_recorded_where_it_belongs() -> None:
    source = (Path(__file__).parent / "planted.py").read_text()
    for bug in PROVEN:
        changed_source = with_seed(source, bug.name, 123_456)
        assert changed_source.count("123456") == 1
        assert with_seed(changed_source, bug.name, bug.seed or 0) == source
