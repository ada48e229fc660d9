"""Three Cassandra nodes: one stands still, later another one is killed, and each time a poller dies meanwhile.

Creates, dispatch and takeover go on; the rig's checker looks at the whole history of it.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tools.stack import ROOT

pytestmark = [pytest.mark.stack, pytest.mark.alone, pytest.mark.timeout(900)]

RUN_S_MAX = 840
ACKNOWLEDGED_MIN = 0.9
"""The share of creates that has to be confirmed although a replica is away."""


def test_one_replica_of_three_is_not_missed() -> None:
    command = [sys.executable, "-m", "tests.faults", "--scenario=one-replica-down", "--seed=1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    print(done.stderr[-5000:])
    assert done.returncode == 0, done.stdout
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["fault_late_ms"] <= line["fault_late_ms_max"]
    outcomes = line["outcomes"]
    acknowledged, unknown = outcomes["create:ok"], outcomes.get("create:unknown", 0)
    assert acknowledged / (acknowledged + unknown) >= ACKNOWLEDGED_MIN
