"""The servers' jars, from Maven Central into one folder per server, once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .errors import StackError

POMS = Path(__file__).resolve().parent / "pom"
JAVA_MIN = 17
DOWNLOAD_S_MAX = 1_200
HOW_TO_GET = "apt-get install openjdk-17-jdk-headless maven (Debian, Ubuntu), brew install openjdk@17 maven (macOS)"


@dataclass(frozen=True)
class Java:
    """A Java that can run the servers."""

    command: str
    version: int


def find_java() -> Java:
    """The Java of JAVA_HOME, or of the path. Raises StackError if there is none, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(str(Path(home, "bin", "java"))) if home else shutil.which("java")
    if not command:
        raise StackError(f"no Java found; the servers need Java {JAVA_MIN} or later: {HOW_TO_GET}")
    shown = subprocess.run([command, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', shown)
    version = int(found[1]) if found else 0
    if version < JAVA_MIN:
        raise StackError(
            f"{command} is Java {version or 'of an unknown version'}, the servers need {JAVA_MIN} or later"
        )
    return Java(command, version)


@dataclass(frozen=True)
class Jars:
    """The folder that holds all servers' jars; several stacks may share it."""

    folder: Path
    say: Callable[[str], None]

    def of(self, server: str) -> Path:
        """The folder of one server's jars, fetched if they are not there yet. Raises StackError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pom, target = POMS / server / "pom.xml", self.folder / server
        stamp, wanted = target / "stamp", hashlib.sha256(pom.read_bytes()).hexdigest()
        with (self.folder / f"{server}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (stamp.exists() and stamp.read_text() == wanted):
                self._fetch(server, pom, target)
                stamp.write_text(wanted)
        return target

    def _fetch(self, server: str, pom: Path, target: Path) -> None:
        maven = shutil.which("mvn")
        if not maven:
            raise StackError(f"no Maven found; it fetches the servers' jars, once: {HOW_TO_GET}")
        self.say(f"{server}: fetching its jars from Maven Central (once)")
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            shutil.copy(pom, work)
            done = subprocess.run(
                [maven, "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={target}"],
                cwd=work, capture_output=True, text=True, check=False, timeout=DOWNLOAD_S_MAX,
            )  # fmt: skip
        if done.returncode:
            shutil.rmtree(target, ignore_errors=True)
            raise StackError(f"{server}: Maven could not fetch the jars:\n{(done.stdout + done.stderr)[-2000:]}")
        size = sum(jar.stat().st_size for jar in target.glob("*.jar"))
        self.say(f"{server}: {len(list(target.glob('*.jar')))} jars, {size / 1e6:.0f} MB")
