"""Settings of a node from the command line: --config FILE, --set section.key=value."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from .parameters import PAIR

if TYPE_CHECKING:
    from ..config import Settings


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options to a command, which gets a function `load(flags)` as `load`."""

    @click.option(
        "--config", "path", type=click.Path(dir_okay=False), envvar="BUCKETSCHED_CONFIG", help="Settings file (TOML)."
    )
    @click.option(
        "--set",
        "pairs",
        type=PAIR,
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="One setting, a list as JSON; wins over all else. May be given many times.",
    )
    @wraps(command)
    def with_settings(*arguments: Any, path: str | None, pairs: tuple[tuple[str, str], ...], **options: Any) -> Any:
        def load(flags: dict[str, dict[str, Any]] | None = None) -> Settings:
            from .. import config

            return config.load(path, _merged(_sections(pairs), flags or {}))

        return command(*arguments, load=load, **options)

    return with_settings


def _sections(pairs: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    for name, raw in pairs:
        section, dot, key = name.partition(".")
        if not (dot and section and key):
            raise click.BadParameter(f"{name!r} must be SECTION.KEY", param_hint="--set")
        sections.setdefault(section, {})[key] = _value(raw)
    return sections


def _value(raw: str) -> Any:
    """A TOML value, or else the text as it is: 5, true, ["a", "b"], or 127.0.0.1:9042."""
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    return parsed["value"] if set(parsed) == {"value"} else raw


def _merged(first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: first.get(name, {}) | second.get(name, {}) for name in first.keys() | second.keys()}
