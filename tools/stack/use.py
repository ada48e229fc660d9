"""Servers for those who need some: the ones that run already, or own ones that end with their user."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .addresses import Addresses
from .guard import Guard
from .layout import Layout
from .ports import choose
from .stack import DEFAULT_FOLDER, ONE_OF_EACH, Stack

NAMED = "BUCKETSCHED_TEST_STACK"
"""This environment variable names the settings file of servers to use."""


def running() -> Addresses | None:
    """The servers that the environment names, or those of `make stack-up` if all of them answer; else None.

    Raises StackError if the environment names a file that does not tell.
    """
    if named := os.environ.get(NAMED):
        return Addresses.read(Path(named))
    common = Stack(DEFAULT_FOLDER)
    return Addresses.read(common.settings) if common.settings.exists() and common.healthy() else None


@contextmanager
def own_stack(say: Callable[[str], None], layout: Layout = ONE_OF_EACH) -> Iterator[Stack]:
    """A stack of one's own in a folder of its own; gone afterwards, also if this process is killed."""
    DEFAULT_FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=DEFAULT_FOLDER))
    guard = Guard(folder, layout)
    stack = Stack(folder, say, layout)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()
        guard.close()


@contextmanager
def own_elasticmq(say: Callable[[str], None]) -> Iterator[str]:
    """The URL of an ElasticMQ of one's own; gone afterwards, also if this process is killed."""
    DEFAULT_FOLDER.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="own-", dir=DEFAULT_FOLDER))
    guard = Guard(folder)
    server = Stack(folder, say).elasticmq
    server.ports = choose(server.port_names, {}, set())
    try:
        server.start()
        yield f"http://{server.address}"
    finally:
        server.stop()
        guard.close()


@contextmanager
def any_stack(say: Callable[[str], None]) -> Iterator[Addresses]:
    """What runs already, left running; else a stack of one's own."""
    if found := running():
        say(f"using the servers of {found.settings}")
        yield found
        return
    with own_stack(say) as own:
        yield own.addresses
