"""The simulation: a seed replays, nothing is violated, and every guard that is taken out is missed."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .planted import PROVEN, Planted

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 2_000
REPLAYED = 12

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1_800)]


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, whose sets are ordered by `hash_seed`."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1_700, check=False
    )


def hashes(run: subprocess.CompletedProcess[str]) -> list[str]:
    """Seed, hash, events and callbacks of each run."""
    assert run.returncode == 0, run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if line[:1].isdigit()]


def test_a_seed_replays_exactly() -> None:
    options = ("--seeds", str(REPLAYED), "--hashes")
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(simulate, *options, "--workers", "1", hash_seed="1")
        other = pool.submit(simulate, *options, "--workers", "2", hash_seed="2")
    found = hashes(one.result())
    assert len({line.split()[1] for line in found}) == REPLAYED
    assert found == hashes(other.result())


def test_nothing_is_violated() -> None:
    run = simulate("--seeds", str(SEEDS))
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr[-5_000:]
    assert f"seeds 0 to {SEEDS - 1}: 0 with violations" in run.stdout


def found(bug: Planted) -> str:
    """What is violated without this guard; "": nothing. Its seed first, then all."""
    run = simulate(f"--planted={bug.name}", "--start", str(bug.seed))
    if run.returncode == 0:
        run = simulate(f"--planted={bug.name}", "--seeds", str(SEEDS), "--workers", "2", "--first")
    assert run.returncode in (0, 1), run.stdout[-2_000:] + run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    return "".join(line for line in run.stdout.splitlines() if " violates " in line)


@pytest.fixture(scope="module")
def violations() -> dict[str, str]:
    """What each planted bug violates."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip((bug.name for bug in PROVEN), pool.map(found, PROVEN), strict=True))


@pytest.mark.parametrize("bug", PROVEN, ids=lambda bug: bug.name)
def test_a_guard_that_is_taken_out_is_missed(bug: Planted, violations: dict[str, str]) -> None:
    assert violations[bug.name], f"{SEEDS} seeds run without the rule: {bug.rule}"
