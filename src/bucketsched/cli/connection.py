"""Which server a command talks to, and how it answers: options of the whole command line and of each command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

if TYPE_CHECKING:
    from ..client import Client

ADDRESS_DEFAULT = "127.0.0.1:7400"
NAMESPACE_DEFAULT = "default"
TIMEOUT_S_DEFAULT = 10.0

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
        """Runs `use` with a client that is connected to the address."""
        return asyncio.run(self._call(use))

    async def _call(self, use: Callable[[Client], Awaitable[Result]]) -> Result:
        from ..client import Client

        async with Client(self.address, self.namespace, timeout=self.timeout_s) as client:
            return await use(client)


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which gets them as `connection`. What is not given is inherited."""

    @click.option(
        "--address", envvar="BUCKETSCHED_ADDRESS", metavar="HOST:PORT", help=f"Server to call [{ADDRESS_DEFAULT}]."
    )
    @click.option("--namespace", envvar="BUCKETSCHED_NAMESPACE", help=f"Namespace [{NAMESPACE_DEFAULT}].")
    @click.option("--output", type=click.Choice(["table", "json"]), help="For people, or one JSON document [table].")
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
