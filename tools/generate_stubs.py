"""Regenerates src/bucketsched/stubs from proto/. With --check: exits 1 if the committed stubs are not current.

protoc writes absolute imports of `bucketsched.v1`; ours live below `bucketsched.stubs`, so the imports are rewritten.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STUBS = ROOT / "src" / "bucketsched" / "stubs"
HEADER = '"""Generated from proto/ by tools/generate_stubs.py; don\'t edit."""\n'


def generate(target: Path) -> None:
    """Writes the stubs into `target`."""
    protos = sorted(str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto").rglob("*.proto"))
    with tempfile.TemporaryDirectory() as raw:
        plugins = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={raw}",
             f"--grpc_python_out={raw}", f"--mypy_out=quiet:{raw}", f"--mypy_grpc_out=quiet:{raw}", *protos],
            check=True, env={**os.environ, "PATH": plugins},
        )  # fmt: skip
        for source in sorted(Path(raw, "bucketsched").rglob("*.py*")):
            place = target / source.relative_to(Path(raw, "bucketsched"))
            place.parent.mkdir(parents=True, exist_ok=True)
            text = re.sub(r"(?m)^from bucketsched\.", "from bucketsched.stubs.", source.read_text())
            place.write_text(text)
    for folder in [target, *(p for p in target.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text(HEADER)


def differences(left: Path, right: Path) -> list[str]:
    """Paths that differ between two folders."""
    found = []
    names = {p.relative_to(d) for d in (left, right) for p in d.rglob("*.py*") if "__pycache__" not in p.parts}
    for name in sorted(names):
        a, b = left / name, right / name
        if not (a.exists() and b.exists() and filecmp.cmp(a, b, shallow=False)):
            found.append(str(name))
    return found


def main() -> int:
    """Generates, or checks."""
    if "--check" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as raw:
            fresh = Path(raw, "stubs")
            fresh.mkdir()
            generate(fresh)
            stale = differences(STUBS, fresh)
        if stale:
            print("stubs are not current (run `make stubs`): " + ", ".join(stale))
        return 1 if stale else 0
    shutil.rmtree(STUBS, ignore_errors=True)
    STUBS.mkdir(parents=True)
    generate(STUBS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
