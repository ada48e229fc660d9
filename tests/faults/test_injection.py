"""What a fault does to a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.faults.injection import stop_growth

APPENDING = """
import signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Java does
file = open(sys.argv[1], "ab", buffering=0)
for _ in range(2):
    sys.stdin.readline()
    try:
        file.write(b"x")
        print("written", flush=True)
    except OSError as error:
        print("refused", flush=True)
"""


def test_files_of_a_process_on_a_full_disk_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", APPENDING, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        assert child.stdout.readline() == "written\n"
        stop_growth(child.pid)
        child.stdin.write("\n")
        assert child.stdout.readline() == "refused\n"
    assert path.read_bytes() == b"x"
