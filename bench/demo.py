"""The embedded scheduler at work: `python -m bench.demo`, about 20 s, no servers needed.

2,000 tasks due over 10 s at random milliseconds go in through the client; a worker in a process of its own receives
them over gRPC. The last line of stdout is a JSON object. Exit code 0: none lost, none twice, none early.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import report
from .embedded import QUEUE, embedded
from .processes import Children, run
from .trial import Plan, Trial, attempt

TASKS = 2_000
SECONDS = 10.0


async def demo() -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="bucketsched-demo-") as name:
        folder = Path(name)
        async with Children(folder) as children, embedded(children, folder / "data") as (client, recording):
            trial = await attempt(client, QUEUE, recording, Plan.soon(TASKS, SECONDS))
    _show(trial)
    return 0 if trial.passed else 1


def _show(trial: Trial) -> None:
    report.table("embedded mode, measured at the worker", report.rows(trial), sys.stdout)
    report.json_line(report.outcome("embedded", trial), sys.stdout)


if __name__ == "__main__":
    sys.exit(run(demo()))
