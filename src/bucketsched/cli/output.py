"""Results on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .connection import Connection

PIPE_WIDTH = 200

Row = Mapping[str, Any]


def show(connection: Connection, row: Row) -> None:
    """One thing: a table of names and values, or a JSON object."""
    if connection.output == "json":
        print(json.dumps(row, ensure_ascii=False))
        return
    table = _table(None)
    for name, value in row.items():
        table.add_row(name.replace("_", " "), _text(value))
    _print(table)


def show_all(connection: Connection, name: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Many things: a table with a line for each, or a JSON object that holds them under `name`."""
    if connection.output == "json":
        print(json.dumps({name: list(rows)}, ensure_ascii=False))
        return
    table = _table([column.replace("_", " ") for column in columns])
    for row in rows:
        table.add_row(*(_text(row.get(column)) for column in columns))
    _print(table)


def instant(value: datetime | None) -> str | None:
    """RFC 3339 in UTC, with milliseconds."""
    if value is None:
        return None
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _table(columns: Sequence[str] | None) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if columns is None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        return table
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Any) -> None:
    """rich colours terminals only, and respects NO_COLOR; into pipes, lines are not broken at 80 columns."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(table)


def _text(value: Any) -> Any:
    """Plain text: what stands in a task is not markup."""
    from rich.text import Text

    if value is None or value == "":
        return Text("-")
    if isinstance(value, Mapping):
        return Text(", ".join(f"{key}={item}" for key, item in value.items()) or "-")
    if isinstance(value, list | tuple):
        return Text(", ".join(str(item) for item in value) or "-")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    return Text(str(value))
