"""A run of the rig with a fixed seed: load and faults for 90 s on servers of its own, and nothing may be found."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.faults.checker import CHECKS
from tools.stack import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.alone, pytest.mark.timeout(900)]

SECONDS = 90
SEED = 54
RUN_S_MAX = 840
OPS_MIN = 1_000


def test_nothing_is_lost_doubled_or_early_under_faults() -> None:
    command = [sys.executable, "-m", "tests.faults", f"--seconds={SECONDS}", f"--seed={SEED}", "--rate=60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    print(done.stderr[-5000:])
    assert done.returncode == 0, done.stdout
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["ops"] > OPS_MIN
    assert line["faults"] > 5
    assert line["messages"] > OPS_MIN / 4
    assert not any(line[find.__name__] for find in CHECKS)
