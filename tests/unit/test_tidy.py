"""Style as a test: what the linters don't know of the house's rules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 70
STUBS = ROOT / "src" / "bucketsched" / "stubs"
FORBIDDEN_NAMES = {f"{word}{s}" for word in ("util", "helper", "manager", "common", "misc") for s in ("", "s")}
UNFINISHED = re.compile(r"\b(TO" + "DO|FIX" + r"ME|X{3})\b")
NOT_OURS = re.compile(r"\.\./sha" + r"red\b|/work/" + r"(main|shared)\b")

WALL_CLOCKS = {
    "time.time", "time.time_ns", "time.clock_gettime", "time.clock_gettime_ns", "time.localtime", "time.gmtime",
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
}  # fmt: skip
MAY_READ_TIME = {
    "adapters/kernel_time.py": WALL_CLOCKS,  # what the clock is made of
    "client/": {"time.time", "time.time_ns"},  # mints ids, and turns a delay into a due time, where no node is asked
}


def ours(*folders: str) -> list[Path]:
    """Our own Python files below the folders."""
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in found if STUBS not in path.parents and "__pycache__" not in path.parts)


PYTHON = ours("src", "spec", "tests", "bench", "tools", "examples", "deploy")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def texts() -> Iterator[Path]:
    """Everything written by hand."""
    yield from PYTHON
    for pattern in ("*.md", "*.toml", "Makefile", "*.yml", "docs/**/*.md", "proto/**/*.proto", "cql/*", "deploy/*"):
        yield from (path for path in ROOT.glob(pattern) if path.is_file())


def test_there_is_something_to_check() -> None:
    assert len(PYTHON) > 20


def test_functions_are_short() -> None:
    long = [
        f"{place(path, node)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in PYTHON
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LINES_MAX
    ]
    assert not long


def test_modules_are_named_after_what_they_hold() -> None:
    names = [path for path in PYTHON if FORBIDDEN_NAMES & {path.stem, path.parent.name}]
    assert not names


def test_test_modules_have_names_of_their_own() -> None:
    """pytest imports them by their names alone."""
    names = [path.name for path in ours("tests") if path.name.startswith("test_")]
    assert sorted(set(names)) == sorted(names)


def test_nothing_is_left_unfinished() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not found


def test_the_project_stands_alone() -> None:
    assert not [str(path.relative_to(ROOT)) for path in texts() if NOT_OURS.search(path.read_text())]


def test_no_test_is_skipped() -> None:
    """A test that can't run here fails; one that is wrong is mended or removed."""
    found = [
        place(path, node)
        for path in ours("tests")
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail", "importorskip"}
    ]
    assert not found


def clock_reads(module: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Every use of a wall clock in a module, called or passed on, under whatever name it was imported."""
    names = {"time": "time", "datetime": "datetime", "date": "date"}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names if alias.name in names}
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name if node.module == "datetime" else f"time.{alias.name}"
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            read = f"{names.get(owner, owner)}.{node.attr}"
        elif isinstance(node, ast.Name):
            read = names.get(node.id, "")
        else:
            continue
        if read in WALL_CLOCKS:
            yield node, read


def allowed(path: Path) -> set[str]:
    name = path.relative_to(ROOT / "src" / "bucketsched").as_posix()
    return {read for prefix, reads in MAY_READ_TIME.items() if name.startswith(prefix) for read in reads}


def test_only_the_clock_reads_the_time() -> None:
    found = [
        f"{place(path, node)} {read}"
        for path in ours("src")
        for node, read in clock_reads(tree(path))
        if read not in allowed(path)
    ]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.time_ns()",
        "from time import time\ntime()",
        "from time import time_ns as ns\nclock = ns",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import datetime as dt, UTC\ndt.now(UTC)",
        "from datetime import date\ndate.today()",
        "from dataclasses import field\nimport time\nx = field(default_factory=time.time)",
    ],
)
def test_clock_reads_are_recognised(source: str) -> None:
    assert list(clock_reads(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["import time\ntime.monotonic()", "clock.now()", "from time import monotonic\nmonotonic()"]
)
def test_other_clocks_are_not(source: str) -> None:
    assert not list(clock_reads(ast.parse(source)))
