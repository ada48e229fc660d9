"""Which server a command talks to, and how it answers: options of the whole command line and of each command."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from ..client import Client

ADDRESS_DEFAULT = "127.0.0.1:7400"
NAMESPACE_DEFAULT = "default"
TIMEOUT_S_DEFAULT = 10.0
PATIENCE_S = 1.0
"""A command that takes longer says what it waits for."""

Result = TypeVar("Result")
Output = Literal["table", "json"]


@dataclass(frozen=True, slots=True)
class Connection:
    """The options in force."""

    address: str = ADDRESS_DEFAULT
    namespace: str = NAMESPACE_DEFAULT
    output: Output = "table"
    timeout_s: float = TIMEOUT_S_DEFAULT

    def call(self, use: Callable[[Client], Awaitable[Result]]) -> Result:
        """Runs `use` with a client that is connected to the address; says so if that takes long."""
        return asyncio.run(self._call(use))

    async def _call(self, use: Callable[[Client], Awaitable[Result]]) -> Result:
        from ..client import Client

        patience = asyncio.get_running_loop().call_later(PATIENCE_S, self._say_that_it_waits)
        try:
            async with Client(self.address, self.namespace, timeout=self.timeout_s) as client:
                return await use(client)
        finally:
            patience.cancel()

    def _say_that_it_waits(self) -> None:
        said = f"bucketsched: no answer from {self.address} yet; trying for {self.timeout_s:g} s in all"
        print(f"{said} (is a server running there? `bucketsched dev` starts one)", file=sys.stderr, flush=True)


output_option = click.option(
    "--output", type=click.Choice(["table", "json"]), help="For people, or one JSON document [table]."
)


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """For a command that calls no server: it gets a `connection` whose output counts only."""

    @output_option
    @wraps(command)
    def with_output(*arguments: Any, output: Output | None, **options: Any) -> Any:
        above = click.get_current_context().obj
        connection = above if isinstance(above, Connection) else Connection()
        return command(*arguments, connection=replace(connection, output=output or connection.output), **options)

    return with_output


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which gets them as `connection`. What is not given is inherited."""

    @click.option(
        "--address", envvar="BUCKETSCHED_ADDRESS", metavar="HOST:PORT", help=f"Server to call [{ADDRESS_DEFAULT}]."
    )
    @click.option("--namespace", envvar="BUCKETSCHED_NAMESPACE", help=f"Namespace [{NAMESPACE_DEFAULT}].")
    @output_option
    @click.option(
        "--timeout",
        type=click.FloatRange(0, 3600, min_open=True),
        metavar="SECONDS",
        help=f"How long to try [{TIMEOUT_S_DEFAULT:g}].",
    )
    @wraps(command)
    def with_connection(
        *arguments: Any,
        address: str | None,
        namespace: str | None,
        output: Output | None,
        timeout: float | None,
        **options: Any,
    ) -> Any:
        context = click.get_current_context()
        above = context.obj if isinstance(context.obj, Connection) else Connection()
        connection = Connection(
            _given(context, "address", address) or above.address,
            _given(context, "namespace", namespace) or above.namespace,
            output or above.output,
            timeout or above.timeout_s,
        )
        return command(*arguments, connection=connection, **options)

    return with_connection


def _given(context: click.Context, name: str, value: str | None) -> str | None:
    """The value, unless it only comes from the environment and was given, nearer or not, on the command line."""
    from_environment = context.get_parameter_source(name) is click.core.ParameterSource.ENVIRONMENT
    return None if from_environment and context.parent is not None else value
