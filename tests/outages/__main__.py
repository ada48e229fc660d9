"""The command."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.nodes import Cluster
from tests.workload import workload
from tools.stack import Stack, own_stack

from .outage import Outage, Report, Trial, full_lengths

HORIZON_MS = 120_000
GRACE_MS = 600_000
CREATE_TIMEOUT_MS = 3_000


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def run(stack: Stack, cluster: Cluster, outages: list[Outage]) -> list[Report]:
    for name in ("one", "two"):
        cluster.start(name, log__level="info", limits__create_timeout_ms=CREATE_TIMEOUT_MS)
    one, two = cluster.processes
    await one.ready()
    await two.ready()
    reports = []
    async with workload(cluster, f"{one.address},{two.address}") as work:
        trial = Trial(stack, cluster, work)
        for outage in outages:
            say(f"{outage.name}: away for {outage.away_s:g} s")
            reports.append(await trial.run(outage))
            print(json.dumps(reports[-1].as_json()), flush=True)
    return reports


def main() -> int:
    """0 if every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.outages", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="may be given many times; part of a name")
    parser.add_argument("--scale", type=float, default=1.0, help="of the lengths (1)")
    arguments = parser.parse_args()
    outages = [o for o in full_lengths(arguments.scale) if any(name in o.name for name in arguments.only or [""])]
    with own_stack(say) as stack, tempfile.TemporaryDirectory(prefix="bucketsched-outages-") as folder:
        cluster = Cluster(stack.addresses, Path(folder), shards=64, ranges=16, horizon_ms=HORIZON_MS, grace_ms=GRACE_MS)
        try:
            reports = asyncio.run(run(stack, cluster, outages))
        finally:
            for process in cluster.processes:
                log = Path(tempfile.gettempdir()) / f"outages-{process.name}.log"
                log.write_text(process.err())
                say(f"{process.name}: {log}")
                process.end()
    return 1 if any(report.broken for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
