"""REST in a cluster: a process that is nothing but an api takes tasks from HTTP, and they come out of Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta

import httpx
import pytest
from tests.nodes import Cluster, until_state
from tests.workload import workload

from bucketsched import CreatedTask, TaskState
from bucketsched.core.durations import instant_ms

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]


async def test_tasks_from_http_come_out_of_kafka(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(shards=16, ranges=8, horizon_ms=60_000, grace_ms=2_000)
    poller = cluster.start("poller", "poller,coordinator", node__http_address="127.0.0.1:0")
    api = cluster.start("api", "api", node__http_address="127.0.0.1:0")
    await poller.ready()
    await api.ready()
    assert json.loads(poller.out())["http_address"] == ""  # it is no api
    await cluster.settled(poller)
    url = f"http://{json.loads(api.out())['http_address']}"
    async with workload(cluster, api.address) as work, httpx.AsyncClient(base_url=url, timeout=30) as http:
        sent = {"type": "mail", "queue": work.queue, "payload": {"n": 1.5}, "delay": "1500ms"}
        answer = await http.post("/tasks", json=sent)
        assert answer.status_code == 201, answer.text
        body = answer.json()
        task = CreatedTask(body["task_id"], instant_ms(body["run_at"], "run_at"))
        cancelled = (await http.post("/tasks", json=sent | {"delay": "1h"})).json()
        outcome = await http.post(f"/tasks/{cancelled['task_id']}/cancel")
        assert (outcome.status_code, outcome.json()["outcome"]) == (200, "CANCELLED")
        await work.recorder.exactly([task])
        seen = work.recorder.of(task)
        assert (seen.event.payload, seen.event.content_type) == (b'{"n":1.5}', "application/json")
        await until_state(work.client, task, TaskState.DISPATCHED)
        found = (await http.get(f"/tasks/{task.id}")).json()
        assert (found["status"], found["attempts"], found["payload"]) == ("DISPATCHED", 1, {"n": 1.5})
        assert (await http.get("/queues")).json()["queues"][0]["kind"] in ("KAFKA", "WORKER")
        assert "bucketsched_tasks_created_total" in (await http.get("/metrics")).text
        assert (await http.get("/readyz")).elapsed < timedelta(seconds=30)
    assert await api.terminate() == 0
