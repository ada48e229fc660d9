"""Results: a table for people, and one JSON object a line for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from .lateness import Percentiles
from .trial import Trial

WIDTH = 100


def table(title: str, rows: Iterable[tuple[str, Any]], file: TextIO) -> None:
    """Two columns."""
    drawn = Table(show_header=False)
    drawn.add_column(style="bold")
    drawn.add_column()
    for name, value in rows:
        drawn.add_row(name, f"{value:,.2f}" if isinstance(value, float) else str(value))
    console = Console(file=file, width=WIDTH, highlight=False)
    console.print(title)
    console.print(drawn)


def rows(trial: Trial) -> list[tuple[str, Any]]:
    """What a trial showed."""
    verdict, creation = trial.verdict, trial.creation
    shown: list[tuple[str, Any]] = [
        ("tasks", f"{verdict.tasks:,}"),
        ("lost", verdict.lost),
        ("duplicate", verdict.duplicate),
        ("early", verdict.early),
        *lateness("late", verdict.lateness),
    ]
    if creation.acknowledged_late:
        shown.append(("acknowledged after they were due", creation.acknowledged_late))
    if creation.errors:
        shown.append(("not acknowledged", f"{len(creation.errors)}, such as: {creation.errors[0]}"))
    if verdict.stray:
        shown.append(("came without being acknowledged", verdict.stray))
    return shown


def lateness(what: str, found: Percentiles) -> list[tuple[str, Any]]:
    """In the order in which people read it."""
    return [(f"{what}, {name} (ms)", float(getattr(found, name))) for name in ("p50", "p95", "p99", "max")]


def outcome(mode: str, trial: Trial) -> dict[str, Any]:
    """A demo's last line."""
    verdict = trial.verdict
    return {
        "mode": mode,
        "tasks": verdict.tasks,
        "lost": verdict.lost,
        "duplicate": verdict.duplicate,
        "early": verdict.early,
        "p50_ms": verdict.lateness.p50,
        "p99_ms": verdict.lateness.p99,
        "max_ms": verdict.lateness.max,
    }


def json_line(values: Mapping[str, Any], file: TextIO) -> None:
    """At once, and compact."""
    print(json.dumps(values, separators=(",", ":")), file=file, flush=True)
