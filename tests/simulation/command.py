"""`python -m tests.simulation`: runs seeds, prints what they violate. A violation ends it with 1."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

from .runner import Outcome, run_seeds

PROGRESS_SEEDS = 1_000
VIOLATIONS_MAX = 5
"""After so many there is enough to look at."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if nothing was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--workers", type=int, default=2, help="processes that run seeds at the same time")
    parser.add_argument("--trace", action="store_true", help="prints everything that happened")
    parser.add_argument("--hashes", action="store_true", help="prints the hash of each run")
    parser.add_argument("--first", action="store_true", help="ends with the first violation")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that dead processes have left
    began, runs, bad = time.monotonic(), 0, 0
    for outcome in run_seeds(given.start, given.seeds, given.workers, given.trace):
        runs += 1
        bad += bool(outcome.violation)
        _show(outcome, given.trace, given.hashes)
        if runs % PROGRESS_SEEDS == 0:
            print(f"  up to seed {outcome.seed}: {bad} with violations, {time.monotonic() - began:.0f} s", flush=True)
        if bad >= (1 if given.first else VIOLATIONS_MAX):
            break
    last = given.start + runs - 1
    print(f"seeds {given.start} to {last}: {bad} with violations, {time.monotonic() - began:.1f} s")
    return 1 if bad else 0


def _show(outcome: Outcome, trace: bool, hashes: bool) -> None:
    if outcome.violation or trace:
        print("\n".join(outcome.lines))
    if outcome.violation:
        print(f"seed {outcome.seed} violates {outcome.violation}")
        print(f"  all of it: make sim START={outcome.seed} SEEDS=1 TRACE=1    (trace {outcome.hash})\n", flush=True)
    if hashes:
        print(f"{outcome.seed} {outcome.hash} {outcome.events} events {outcome.callbacks} callbacks", flush=True)
