"""`python -m tests.simulation.recording`: records seeds anew that find their planted bug no more.

A change of the product moves what a seed does. A proof that has to go through all seeds takes minutes; with its seed it
takes a second.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .planted import PROVEN, Planted

HERE = Path(__file__).resolve().parent
SEEDS = 2_000
_FOUND = re.compile(r"^seed (\d+) violates", re.MULTILINE)
_SEED = r'("{name}",\n(?:(?!    Planted\().*\n)*?        )\d+,\n'


def find(bug: Planted) -> int | None:
    """A seed that finds it: the recorded one, or the first."""
    for options in (("--start", str(bug.seed)), ("--seeds", str(SEEDS), "--first")):
        command = [sys.executable, "-m", "tests.simulation", f"--planted={bug.name}", *options]
        run = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
        if run.returncode not in (0, 1) or run.stderr:
            raise SystemExit(run.stderr)
        if found := _FOUND.search(run.stdout):
            return int(found.group(1))
    return None


def with_seed(source: str, name: str, seed: int) -> str:
    """The source of planted.py with another seed for this bug."""
    changed, count = re.subn(_SEED.format(name=re.escape(name)), rf"\g<1>{seed},\n", source)
    assert count == 1, (name, count)
    return changed


def main() -> int:
    """1 if one is not found any more."""
    path, lost = HERE / "planted.py", 0
    for bug in PROVEN:
        seed = find(bug)
        if seed is None:
            lost += 1
        elif seed != bug.seed:
            path.write_text(with_seed(path.read_text(), bug.name, seed))
        print(bug.name, "is not found" if seed is None else seed, flush=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
