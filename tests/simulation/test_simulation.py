"""The simulation itself: it replays, and nothing is violated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def simulate(*arguments: str, hash_seed: str = "0", timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process of its own, whose sets are ordered by `hash_seed`."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_seed_replays_exactly() -> None:
    one, other = (simulate("--seeds", "10", "--workers", "1", "--hashes", hash_seed=seed) for seed in ("1", "2"))
    assert one.returncode == 0, one.stdout + one.stderr
    hashes = [line.split()[:2] for line in one.stdout.splitlines() if line[:1].isdigit()]
    assert len({value for _, value in hashes}) == 10
    assert hashes == [line.split()[:2] for line in other.stdout.splitlines() if line[:1].isdigit()]
