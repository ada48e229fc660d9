"""`bucketsched admin range` and `bucketsched admin fsck`: what is done when something went wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

from .connection import Connection, output_options
from .output import show_all
from .parameters import INSTANT
from .settings import settings_options

COLUMNS = ("range", "problem", "lane", "records_left", "rows_settled_by_them", "unreadable", "due_without_a_fact")
WARNING = """\
Accepting means: the facts that the journal still proves are stored, and the range goes on behind them. Every row that is
due and has no fact then is dispatched. If it was dispatched before, and both its record and its mark were lost, that is
the second time; its key (task id, generation, attempt) is the same. Marks are written within a second or so of a
dispatch, so this concerns what was dispatched in the last second before the journal was lost."""


@click.group("range")
def range_() -> None:
    """Let a range go on that stands still."""


@range_.command("accept-loss")
@click.argument("ranges", type=click.IntRange(0), nargs=-1, required=True, metavar="RANGE...")
@click.option("--yes", is_flag=True, help="Accept it. Without, only what there is to see is shown.")
@click.option(
    "--since",
    type=INSTANT,
    help="What was due before counts as done. Only where a checkpoint can't be read, and needed there.",
)
@settings_options
@output_options
def accept_loss(
    connection: Connection, load: Callable[..., Any], ranges: tuple[int, ...], yes: bool, since: datetime | None
) -> None:
    """Show what was lost of the journal of ranges that stand still (bucketsched_ranges, phase alarmed), and let them go
    on. Some tasks of theirs may be dispatched a second time.
    """
    from .. import app

    since_ms = None if since is None else int(since.timestamp() * 1000)
    findings = app.review_losses(load(), ranges, since_ms, yes, lambda line: click.echo(line, err=True))
    rows = [
        dict(zip(COLUMNS, (f.range_id, f.problem, f.lane, f.records, f.facts, f.unreadable, f.overdue), strict=True))
        for f in findings
    ]
    show_all(connection, "ranges", COLUMNS, [row | {"accepted": yes} for row in rows])
    if not yes:
        click.echo(f"\n{WARNING}\n\nNothing was changed. To accept: give --yes.", err=True)
