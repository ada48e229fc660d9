"""`bucketsched admin`: migrate, namespace; and what operators do, from other modules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from .connection import Connection, connection_options, output_options
from .output import instant, show, show_all
from .ownership import cordon, drain, lanes, nodes, ranges, rebalance
from .parameters import LENGTH
from .recovery import fsck, range_
from .settings import settings_options

_MILLISECOND = timedelta(milliseconds=1)


@click.group()
def admin() -> None:
    """Prepare a cluster; manage namespaces."""


for command in (nodes, lanes, ranges, drain, cordon, rebalance, range_, fsck):
    admin.add_command(command)


@admin.command()
@click.option("--shards", type=int, help="Hash slices [256]. This and the following are fixed for the cluster's life.")
@click.option("--ranges", type=int, help="Blocks of shards that are owned as one [64].")
@click.option("--lanes", type=int, help="The most pollers [32].")
@click.option("--horizon", type=LENGTH, help="How far ahead tasks are loaded [2m].")
@click.option("--grace", type=LENGTH, help="How long after its end a bucket stays open [10m].")
@click.option("--retention", type=LENGTH, help="How long tasks are kept after their due time [90d].")
@settings_options
@output_options
def migrate(
    connection: Connection,
    load: Callable[..., Any],
    shards: int | None,
    ranges: int | None,
    lanes: int | None,
    horizon: timedelta | None,
    grace: timedelta | None,
    retention: timedelta | None,
) -> None:
    """Make what a cluster needs before its first start, or bring it up to date. Safe to repeat, also at once."""
    from .. import app

    lengths = {"horizon_ms": horizon, "grace_ms": grace, "retention_ms": retention}
    counts = {"shards": shards, "ranges": ranges, "lanes": lanes}
    given: dict[str, int] = {name: value for name, value in counts.items() if value is not None}
    given |= {name: -(-value // _MILLISECOND) for name, value in lengths.items() if value is not None}
    report = app.migrate(load(), **given)
    constants = report.constants
    show(
        connection,
        {
            "cluster_id": str(constants.cluster_id),
            "applied": list(report.applied),
            "checkpoints_written": report.checkpoints_written,
            "shards": constants.shards,
            "ranges": constants.ranges,
            "lanes": constants.lanes,
            "horizon_ms": constants.horizon_ms,
            "grace_ms": constants.grace_ms,
            "retention_ms": constants.retention_ms,
        },
    )


@admin.group()
def namespace() -> None:
    """Create and show namespaces."""


@namespace.command()
@click.argument("name")
@connection_options
def create(connection: Connection, name: str) -> None:
    """Create a namespace. One that is there already is fine."""
    created = connection.call(lambda client: client.create_namespace(name))
    show(connection, {"name": created.name, "created": instant(created.created)})


@namespace.command("list")
@connection_options
def list_(connection: Connection) -> None:
    """Show all namespaces."""
    found = connection.call(lambda client: client.list_namespaces())
    rows = [{"name": item.name, "created": instant(item.created)} for item in found]
    show_all(connection, "namespaces", ("name", "created"), rows)
