"""The command."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .clock_guards import CLOCK_GUARDS
from .delivery_guards import DELIVERY_GUARDS
from .execution_guards import EXECUTION_GUARDS
from .guards import GUARDS, Guard
from .move_guards import MOVE_GUARDS
from .notice_guards import NOTICE_GUARDS
from .outcome_guards import OUTCOME_GUARDS
from .ownership_guards import OWNERSHIP_GUARDS
from .push_guards import PUSH_GUARDS
from .recovery_guards import RECOVERY_GUARDS
from .rest_guards import REST_GUARDS
from .webhook_guards import WEBHOOK_GUARDS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "proto", "cql", "tools", "bench", "pyproject.toml", "README.md")
SECONDS_MAX = 240
WORKERS = 2


def run_tests(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Runs tests against the copied sources."""
    options = ["-x", "-q", "--tb=native", "-p", "no:cacheprovider", "-o", "timeout=60"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def copied(into: str) -> Path:
    """A copy of the project to mutate."""
    copy = Path(into)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


def verdict(guard: Guard) -> str:
    """ "" if the tests notice that the guard is gone, else what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(folder)
        path = copy / "src" / "bucketsched" / guard.file
        text = path.read_text()
        if text.count(guard.code) != 1:
            return f"its code stands {text.count(guard.code)} times in {guard.file}, must be once"
        path.write_text(text.replace(guard.code, guard.without))
        try:
            result = run_tests(copy, guard.tests)
        except subprocess.TimeoutExpired:
            return ""  # tests that hang notice, too
    if result.returncode == 1:
        return ""
    if result.returncode == 0:
        return "SURVIVED: its tests pass without it"
    return f"its tests did not run (exit {result.returncode}):\n{result.stdout[-1500:]}{result.stderr[-500:]}"


def main() -> int:
    """0 if every guard is noticed to be gone."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    guards = [*GUARDS, *DELIVERY_GUARDS, *OWNERSHIP_GUARDS, *MOVE_GUARDS, *RECOVERY_GUARDS, *CLOCK_GUARDS, *REST_GUARDS]
    guards += [*WEBHOOK_GUARDS, *OUTCOME_GUARDS, *NOTICE_GUARDS, *EXECUTION_GUARDS, *PUSH_GUARDS]
    chosen = [g for g in guards if not arguments.names or g.name in arguments.names]
    if arguments.list:
        print("\n".join(f"{g.name:44} {g.why}" for g in chosen))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        healthy = run_tests(copied(folder), tuple(sorted({test for g in chosen for test in g.tests})))
    if healthy.returncode != 0:
        print(f"the tests fail with every guard in place:\n{healthy.stdout[-3000:]}")
        return 1
    bad = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for guard, wrong in zip(chosen, pool.map(verdict, chosen), strict=True):
            bad += bool(wrong)
            print(f"{'red  ' if not wrong else 'WRONG'} {guard.name}: {wrong or guard.why}", flush=True)
    print(f"{len(chosen) - bad} passed, {bad} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
