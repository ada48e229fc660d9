"""The tree of commands."""

from __future__ import annotations

from importlib import import_module

import click

from . import exit_code
from .connection import Connection, connection_options


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called. `lazy`: name to (module of this package, help)."""

    def __init__(self, *arguments: object, lazy: dict[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(*arguments, **attributes)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order in which they were given."""
        return list(self._lazy)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """The command; its module has it under its own name."""
        if name not in self._lazy:
            return None
        module = import_module(f".{self._lazy[name][0]}", __package__)
        command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])


@click.group(
    cls=LazyGroup,
    lazy={
        "dev": ("server", "Run everything in one process, on SQLite."),
        "node": ("server", "Run roles of a cluster."),
        "task": ("task", "Create, show and cancel tasks."),
        "queue": ("queue", "Create and show queues."),
        "worker": ("worker", "Receive tasks."),
        "admin": ("admin", "Prepare a cluster; manage namespaces."),
        "config": ("server", "Show the settings of a node."),
        "version": ("server", "Show the version."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=exit_code.HELP,
)
@click.version_option(package_name="bucketsched", prog_name="bucketsched")
@connection_options
@click.pass_context
def root(context: click.Context, connection: Connection) -> None:
    """A durable, distributed scheduler for delayed tasks."""
    context.obj = connection
