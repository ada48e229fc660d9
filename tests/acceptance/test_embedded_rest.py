"""REST as its user sees it: `bucketsched dev` as a real process, and curl."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.nodes import Process, until

from bucketsched import Client, Task, Worker

pytestmark = pytest.mark.integration

READ_S_MAX = 30
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rest.sh"


class Dev:
    """A data directory, and the process that serves it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.process = folder, self._spawn(folder, 0)
        self._count = 1

    @staticmethod
    def _spawn(folder: Path, number: int) -> Process:
        arguments = ["dev", "--output", "json", "--data-dir", str(folder / "data"), "--grpc-address", "127.0.0.1:0"]
        arguments += ["--metrics-address", "", "--http-address", "127.0.0.1:0"]
        return Process(f"{number:02}-dev", arguments, folder, {})

    async def ready(self) -> Dev:
        self.address = await self.process.ready()
        self.url = f"http://{json.loads(self.process.out())['http_address']}"
        return self

    async def restart(self) -> None:
        self.process = self._spawn(self._folder, self._count)
        self._count += 1
        await self.ready()

    async def curl(self, path: str, *options: str) -> tuple[int, Any]:
        """HTTP's code, and the JSON."""
        command = ["curl", "--silent", "--show-error", "--max-time", str(READ_S_MAX), "--write-out", "\n%{http_code}"]
        child = await asyncio.create_subprocess_exec(
            *command, *options, f"{self.url}{path}", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await child.communicate()
        assert child.returncode == 0, err
        body, _, code = out.decode().rpartition("\n")
        return int(code), json.loads(body)

    async def post(self, path: str, body: str) -> tuple[int, Any]:
        return await self.curl(path, "--header", "Content-Type: application/json", "--data-binary", body)


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[Dev]:
    dev = await Dev(tmp_path).ready()
    yield dev
    dev.process.end()
    dev.process.show()


async def test_a_task_from_curl_to_a_worker(dev: Dev) -> None:
    code, created = await dev.post("/tasks", '{"type":"mail","payload":{"to": "ada", "n": 1.0},"delay":"1s"}')
    assert (code, created["status"]) == (201, "PENDING")
    code, found = await dev.curl(f"/tasks/{created['task_id']}")
    assert (code, found["status"], found["queue"]) == (200, "PENDING", "default")
    async with Client(dev.address) as client:
        worker, got = Worker(client, "default"), list[Task]()

        @worker.default
        async def keep(task: Task) -> None:
            got.append(task)

        running = asyncio.create_task(worker.run(handle_signals=False))
        await until(lambda: bool(got), "the worker got it")
        worker.stop()
        await running
    assert (got[0].id, got[0].type, got[0].content_type) == (created["task_id"], "mail", "application/json")
    assert got[0].payload == b'{"to": "ada", "n": 1.0}'
    while found["status"] in ("PENDING", "DISPATCHED", "RUNNING"):
        _, found = await dev.curl(f"/tasks/{created['task_id']}")
    assert (found["status"], found["attempts"]) == ("SUCCEEDED", 1)
    assert found["run_at"] <= found["dispatched_at"]
    code, refused = await dev.curl(f"/tasks/{created['task_id']}/cancel", "--request", "POST")
    assert (code, refused["error"]["status"]) == (409, "FAILED_PRECONDITION")


async def test_a_cancel_is_final_over_a_restart(dev: Dev) -> None:
    body = '{"type":"t","run_at":"9026-12-24T18:00:00.0001+01:00","task_id":null}'
    code, refused = await dev.post("/tasks", body)
    assert (code, refused["error"]["details"]) == (400, [{"field": "run_at"}])
    code, created = await dev.post("/tasks", '{"type":"t","delay":"24h"}')
    again = await dev.post(
        "/tasks", json.dumps({"type": "t", "run_at": created["run_at"], "task_id": created["task_id"]})
    )
    assert (code, again) == (201, (201, created))
    code, cancelled = await dev.curl(f"/tasks/{created['task_id']}/cancel", "--request", "POST")
    assert (code, cancelled["outcome"]) == (200, "CANCELLED")
    assert await dev.process.terminate() == 0
    await dev.restart()
    assert (await dev.curl(f"/tasks/{created['task_id']}"))[1]["status"] == "CANCELLED"
    code, cancelled = await dev.curl(f"/tasks/{created['task_id']}/cancel", "--request", "POST")
    assert (code, cancelled["outcome"]) == (200, "ALREADY_CANCELLED")


async def test_a_task_that_waits_is_changed_and_run(dev: Dev) -> None:
    _, created = await dev.post("/tasks", '{"type":"t","payload":1,"delay":"24h"}')
    path = f"/tasks/{created['task_id']}"
    patch = ("--request", "PATCH", "--header", "Content-Type: application/json", "--data-binary")
    code, changed = await dev.curl(path, *patch, '{"payload": [2.0], "delay": "48h"}')
    assert (code, changed["payload"], changed["status"], changed["run_at"] > created["run_at"]) == (
        200,
        [2.0],
        "PENDING",
        True,
    )
    assert (await dev.curl(path))[1] == changed | {"last_attempts": []}
    code, due = await dev.curl(f"{path}/run", "--request", "POST")
    assert (code, due["run_at"] < created["run_at"]) == (200, True)
    while due["status"] == "PENDING":
        _, due = await dev.curl(path)
    assert (due["status"], due["payload"]) == ("DISPATCHED", [2.0])
    code, refused = await dev.curl(path, *patch, '{"delay": "1h"}')
    assert (code, refused["error"]["status"]) == (409, "FAILED_PRECONDITION")


async def test_health_queues_batch_and_document(dev: Dev) -> None:
    for path in ("/health", "/livez", "/readyz"):
        assert (await dev.curl(path))[0] == 200
    assert (await dev.curl("/openapi.json"))[1]["openapi"].startswith("3.1")
    assert (await dev.post("/queues", '{"name":"emails"}'))[0] == 201
    assert [queue["name"] for queue in (await dev.curl("/queues"))[1]["queues"]] == ["default", "emails"]
    code, answer = await dev.post("/tasks:batch", '{"tasks":[{"type":"t","queue":"emails"},{"type":""}]}')
    assert (code, [result["code"] for result in answer["results"]]) == (200, [201, 400])
    assert (await dev.curl("/tasks", "--data", "type=t"))[0] == 415
    large = ("--header", "Content-Type: application/json", "--data-binary", "@/proc/self/exe")
    assert (await dev.curl("/tasks", *large))[0] == 413


async def test_the_example(dev: Dev) -> None:
    child = await asyncio.create_subprocess_exec("sh", str(EXAMPLE), dev.url, stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    answers = [json.loads(line) for line in out.splitlines()]
    assert child.returncode == 0, out
    health, created, found, cancelled, batch = answers
    assert health["status"] == "SERVING"
    assert (found["task_id"], found["payload"]) == (created["task_id"], {"invoice": 42})
    assert cancelled["outcome"] == "CANCELLED"
    assert [result["code"] for result in batch["results"]] == [201, 404]


async def test_pages_of_others_are_refused(dev: Dev) -> None:
    assert (await dev.curl("/livez", "--header", "Host: evil.example"))[0] == 403
    assert (await dev.curl("/livez", "--header", "Origin: http://evil.example"))[0] == 403


async def test_the_default_address_may_be_taken_but_not_one_that_was_asked_for(tmp_path: Path) -> None:
    """By default dev serves REST at a port that others like, too."""
    arguments = ["dev", "--output", "json", "--grpc-address", "127.0.0.1:0", "--metrics-address", ""]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        except OSError:
            pass  # somebody else has it: as well
        default = Process("default", [*arguments, "--data-dir", "a"], tmp_path, {})
        asked = Process("asked", [*arguments, "--data-dir", "b", "--http-address", "127.0.0.1:8080"], tmp_path, {})
        off = Process("off", [*arguments, "--data-dir", "c", "--http-address", ""], tmp_path, {})
        try:
            await default.ready()
            assert json.loads(default.out())["http_address"] == ""
            assert "no REST: --http-address names another address" in default.err()
            assert await asked.ended() == 2
            assert "127.0.0.1:8080: Address already in use; --http-address names another" in asked.err()
            await off.ready()
            assert (json.loads(off.out())["http_address"], "REST" in off.err()) == ("", False)
        finally:
            for process in (default, asked, off):
                process.end()
