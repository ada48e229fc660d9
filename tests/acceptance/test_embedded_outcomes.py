"""Outcomes of attempts in `bucketsched dev`, by the SDK, REST and the CLI."""

from __future__ import annotations

import json
import subprocess

import pytest
from tests.acceptance import outcomes
from tests.acceptance.test_embedded import Server
from tests.nodes import COMMAND, in_thread

from bucketsched import Client
from bucketsched.core.task import FactKind

pytestmark = pytest.mark.integration


async def test_retries_and_results(client: Client) -> None:
    await outcomes.retries_and_results(client)


async def test_dead_letters(client: Client) -> None:
    await outcomes.dead_letters(client)


async def test_running_and_expiry(client: Client) -> None:
    await outcomes.running_and_expiry(client)


async def test_waiting_retries(client: Client) -> None:
    await outcomes.waiting_retries(client)


async def test_changed_policies(client: Client) -> None:
    await outcomes.changed_policies(client)


async def test_retries_through_a_kill(server: Server, client: Client) -> None:
    async def kill_and_restart() -> None:
        await server.processes[-1].kill()
        await server.start()

    tasks = await outcomes.retries_through_a_kill(client, kill_and_restart)
    journaled = server.journaled()
    for task in tasks:
        assert journaled[task.id, FactKind.SUCCEEDED] == 1
        assert journaled[task.id, FactKind.DISPATCHED] == 3


async def test_the_command_line_tells_what_became_of_attempts(server: Server, client: Client) -> None:
    def run(*arguments: str) -> dict[str, list[dict[str, object]]]:
        done = subprocess.run(
            [COMMAND, "--output", "json", "--address", server.address, "task", *arguments],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        told: dict[str, list[dict[str, object]]] = json.loads(done.stdout)
        return told

    await outcomes.retries_and_results(client)
    (task,) = in_thread(lambda: run("list", "--state", "succeeded"))["tasks"]
    attempts = in_thread(lambda: run("attempts", str(task["task_id"])))["attempts"]
    assert [each["outcome"] for each in attempts] == ["FAILED", "FAILED", "SUCCEEDED"]
