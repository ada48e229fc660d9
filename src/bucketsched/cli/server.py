"""`bucketsched dev`, `node`, `config` and `version`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from .connection import ADDRESS_DEFAULT, Connection, output_options
from .output import show, show_all
from .settings import settings_options

DATA_DIR_DEFAULT = "bucketsched-data"
METRICS_ADDRESS_DEFAULT = "127.0.0.1:7402"
RESERVE_MIB_DEFAULT = 64


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default=DATA_DIR_DEFAULT,
    show_default=True,
    help="Where the tasks are kept; is made where it is missing.",
)
@click.option(
    "--grpc-address",
    metavar="HOST:PORT",
    default=ADDRESS_DEFAULT,
    show_default=True,
    help="Where to listen; port 0 takes a free one.",
)
@click.option(
    "--http-address",
    metavar="HOST:PORT",
    help="Where REST is served; '' for nowhere [127.0.0.1:8080, unless that is taken].",
)
@click.option(
    "--metrics-address",
    metavar="HOST:PORT",
    default=METRICS_ADDRESS_DEFAULT,
    show_default=True,
    help="Where /metrics and /healthz are served; '' for nowhere.",
)
@click.option(
    "--reserve-mib",
    type=click.IntRange(0),
    default=RESERVE_MIB_DEFAULT,
    show_default=True,
    help="Creates are refused when less is free on the disk; it is for what is stored already.",
)
@click.option(
    "--max-mib",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The size that the database may have; 0: as the disk allows.",
)
@output_options
def dev(
    connection: Connection,
    data_dir: str,
    grpc_address: str,
    http_address: str | None,
    metrics_address: str,
    reserve_mib: int,
    max_mib: int,
) -> int:
    """Run everything in one process, on SQLite, until SIGINT or SIGTERM. Says on stdout when it is ready."""
    from .. import app

    def ready(address: str, http: str) -> None:
        if connection.output == "json":
            print(json.dumps({"address": address, "http_address": http, "data_dir": data_dir}), flush=True)
        else:
            print(f"bucketsched is ready at {address}, {_rest(http)}data in {data_dir}", flush=True)

    return app.run_dev(data_dir, grpc_address, metrics_address, reserve_mib, max_mib, ready, http_address)


@click.command()
@click.option("--roles", help="Some of api,poller,coordinator,deliver [all].")
@settings_options
@output_options
def node(connection: Connection, load: Callable[..., Any], roles: str | None) -> int:
    """Run roles of a cluster, until SIGINT or SIGTERM. Says on stdout when it is ready."""
    from .. import app

    given = {"node": {"roles": [role.strip() for role in roles.split(",")]}} if roles is not None else {}
    settings = load(given)

    def ready(address: str, http: str) -> None:
        if connection.output == "json":
            told = {"address": address, "http_address": http, "roles": list(settings.node.roles)}
            print(json.dumps(told), flush=True)
        else:
            print(f"bucketsched is ready at {address}, {_rest(http)}as {', '.join(settings.node.roles)}", flush=True)

    return app.run_node(settings, ready)


def _rest(http: str) -> str:
    return f"REST at http://{http}, " if http else ""


@click.group()
def config() -> None:
    """Show the settings of a node."""


@config.command("show")
@settings_options
@output_options
def show_settings(connection: Connection, load: Callable[..., Any]) -> None:
    """Show the settings that a node would start with, secrets hidden."""
    from ..config import redacted

    settings = redacted(load())
    if connection.output == "json":
        print(json.dumps(settings, ensure_ascii=False))
        return
    rows = [
        {"setting": f"{section}.{key}", "value": json.dumps(value, ensure_ascii=False)}
        for section, values in settings.items()
        for key, value in values.items()
    ]
    show_all(connection, "settings", ("setting", "value"), rows)


@click.command()
@output_options
def version(connection: Connection) -> None:
    """Show the version."""
    from .. import __version__

    if connection.output == "json":
        show(connection, {"version": __version__})
    else:
        print(f"bucketsched {__version__}")
