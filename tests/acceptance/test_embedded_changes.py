"""Updates of tasks in `bucketsched dev`, by the SDK and by the CLI."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.acceptance.changing import TOO_LATE, Seen, moves_and_changes, races
from tests.acceptance.test_embedded import Echo, Server, echoing
from tests.nodes import COMMAND, in_thread

from bucketsched import Client

pytestmark = pytest.mark.integration


@pytest.fixture
async def server(server: Server) -> Server:
    """It is started."""
    await server.start()
    return server


def by_task(echo: Echo) -> Seen:
    found: Seen = {}
    for at_ms, task in echo.got:
        found.setdefault(task.id, []).append((task.payload, at_ms))
    return found


async def test_moves_and_changes(server: Server) -> None:
    async with Client(server.address) as client, echoing(client) as echo:
        await moves_and_changes(client, "default", lambda: by_task(echo))


async def test_updates_race_with_the_dispatch(server: Server) -> None:
    async with Client(server.address) as client, echoing(client) as echo:
        await races(client, "default", lambda: by_task(echo))


async def test_the_command_line_changes_a_task(server: Server) -> None:
    def run(*arguments: str) -> tuple[int, dict[str, object]]:
        done = subprocess.run(
            [COMMAND, "--output", "json", "--address", server.address, "task", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout) if done.stdout else {"error": done.stderr}

    async with Client(server.address) as client:
        task = await client.create("t", b"old", delay=3_600)
    code, shown = in_thread(lambda: run("update", task.id, "--payload", "new", "--priority", "high", "--delay", "2h"))
    assert (code, shown["outcome"], shown["generation"]) == (0, "UPDATED", 1)
    code, shown = in_thread(lambda: run("get", task.id))
    assert (shown["payload"], shown["priority"], shown["state"]) == ("new", "HIGH", "PENDING")
    code, shown = in_thread(lambda: run("update", task.id, "--payload", "x", "--expected-generation", "0"))
    assert (code, "generation 1" in str(shown)) == (4, True)
    code, shown = in_thread(lambda: run("update", task.id))
    assert (code, "at least one" in str(shown)) == (2, True)
    assert in_thread(lambda: run("run-now", task.id))[0] == 0
    async with Client(server.address) as client, echoing(client) as echo:
        await echo.until_all([task])
    code, shown = in_thread(lambda: run("run-now", task.id))
    assert (code, shown["outcome"]) in [(4, outcome.name) for outcome in TOO_LATE]
