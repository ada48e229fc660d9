"""`bucketsched admin range` and `bucketsched admin fsck`: what is done when something went wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from ..core import task_id as ids
from ..core.task import RowRef
from ..core.task_id import SHARDS_MAX
from .connection import Connection, output_options
from .output import instant, show_all
from .parameters import INSTANT
from .settings import settings_options

if TYPE_CHECKING:
    from ..app.recovery import Checked

    RangesType = click.ParamType[list[int]]
else:  # generic only since click 8.2
    RangesType = click.ParamType

COLUMNS = ("range", "problem", "lane", "records_left", "rows_settled_by_them", "unreadable", "due_without_a_fact")
WARNING = """\
Accepting means: the facts that the journal still proves are stored, and the range goes on behind them. Every row that
is due and has no fact then is dispatched. If it was dispatched before, and both its record and its mark were lost, that
is the second time; its key (task id, generation, attempt) is the same. Marks are written within a second or so of a
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
    show_all(connection, "ranges", (*COLUMNS, "accepted"), [row | {"accepted": yes} for row in rows])
    if not yes:
        click.echo(f"\n{WARNING}\n\nNothing was changed. To accept: give --yes.", err=True)


DIFFERENCE_COLUMNS = ("kind", "task_id", "namespace", "due", "generation", "attempt", "range", "detail", "done")
DIFFERENCES = 1
"""The exit code where there are any."""


class RangeList(RangesType):
    """0-7,12."""

    name = "ranges"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """As numbers."""
        if isinstance(value, list):
            return value
        try:
            parts = [part.partition("-") for part in str(value).split(",")]
            spans = [(int(first), int(last if dash else first)) for first, dash, last in parts]
        except ValueError:
            spans = [(0, -1)]
        if any(not 0 <= first <= last < SHARDS_MAX for first, last in spans):
            self.fail(f"{value!r} must be numbers and spans of them, such as 0-7,12", param, ctx)
        return [number for first, last in spans for number in range(first, last + 1)]


@click.command()
@click.option("--from", "from_", type=INSTANT, help="Tasks due from then on [as far back as the journal is kept].")
@click.option("--to", type=INSTANT, help="Tasks due before then [now]. Buckets that are not closed are left out.")
@click.option("--ranges", type=RangeList(), metavar="0-7,12", help="Only these [all].")
@click.option("--repair", is_flag=True, help="Have lost tasks dispatched by their owners, and write missing facts.")
@settings_options
@output_options
def fsck(
    connection: Connection,
    load: Callable[..., Any],
    from_: datetime | None,
    to: datetime | None,
    ranges: list[int] | None,
    repair: bool,
) -> int:
    """Compare the rows of closed buckets with the journal, while the cluster works. Names each task that is in one but
    not in the other. Exit code 0: nothing differs, 1: something does.
    """
    from .. import app

    from_ms, to_ms = 0 if from_ is None else _ms(from_), None if to is None else _ms(to)
    if to_ms is not None and from_ms >= to_ms:
        raise click.UsageError("--from must be before --to")
    checked = app.fsck(load(), from_ms, to_ms, ranges, repair, lambda line: click.echo(line, err=True))
    _show(connection, checked)
    return 0 if checked.report.clean else DIFFERENCES


def _ms(value: datetime) -> int:
    return int(value.timestamp() * 1000)


def _show(connection: Connection, checked: Checked) -> None:
    report = checked.report
    rows = [_row(checked, at) for at in range(len(report.differences))]
    summary = {
        "from": instant(datetime.fromtimestamp(report.from_ms / 1000, UTC)),
        "to": instant(datetime.fromtimestamp(report.to_ms / 1000, UTC)),
        "buckets": report.buckets,
        "rows": report.rows,
        "facts": report.facts,
        "unreadable_records": [f"lane {lane}, offset {offset}" for lane, offset in report.unreadable],
        "ranges_without_checkpoint": report.skipped_ranges,
        "more": report.more,
    }
    if connection.output == "json":
        print(json.dumps(summary | {"differences": rows}, ensure_ascii=False))
        return
    if rows:
        show_all(connection, "differences", DIFFERENCE_COLUMNS, rows)
    counts = Counter(str(difference.kind) for difference in report.differences)
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "nothing differs"
    print(f"{report.rows} rows, {report.facts} facts of the journal, {report.buckets} buckets: {found}")
    for name in ("unreadable_records", "ranges_without_checkpoint"):
        if summary[name]:
            print(f"{name.replace('_', ' ')}: {summary[name]}")
    if report.more:
        print("there are more differences: narrow --from and --to")


def _row(checked: Checked, at: int) -> Mapping[str, Any]:
    difference = checked.report.differences[at]
    ref = RowRef.unpack(difference.ref)
    return {
        "kind": str(difference.kind),
        "task_id": ids.text(ref.task_id),
        "namespace": checked.namespaces.get(ref.namespace_id, ref.namespace_id.hex()),
        "due": instant(datetime.fromtimestamp(ref.due_ms / 1000, UTC)),
        "generation": ref.generation,
        "attempt": ref.attempt,
        "range": difference.range_id,
        "detail": difference.detail,
        "done": checked.done[at],
    }
