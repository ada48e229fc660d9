"""What the load asks for: tasks and changes of tasks, drawn at random."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from bucketsched import NewTask, Priority
from bucketsched.client.model import to_datetime
from bucketsched.core import task_id as ids
from bucketsched.core.message import DEFAULT_CONTENT_TYPE

from .model import Body, Change, body_of, digest_of, metadata_digest

NAMESPACE = "default"
UNKNOWN_QUEUE = "nowhere"
PAYLOAD_MIN = 8
"""Of creates with a key: their contents tell them apart."""
PAYLOAD_MAX = 400
DELAYS_S = ((0, 0.5), (0.5, 6), (6, 20), (20, 60))
MOVES_S = ((-5, 0), (0, 0.5), (0.5, 6), (6, 20), (20, 60))
TYPES = ("a", "b.c", "ü")
CONTENT_TYPES = ("", "application/json")
FIELD_SHARE = 0.4
"""How often an update names a field."""


@dataclass(slots=True)
class Wanted:
    """A task that is to be created, perhaps several times. `task_id`: "" for one with a key, until it is told.

    `body`: what is to arrive, its due time 0 where only a delay is asked for. `generation`: the last that was told.
    """

    task: NewTask
    body: Body
    task_id: str = ""
    due_ms: int = 0
    delay_ms: int | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Alteration:
    """An update: what the client is given, and the same in the checker's terms."""

    given: dict[str, Any]
    change: Change


class Drawing:
    """`last_due_ms`: nothing is due later."""

    def __init__(self, rng: random.Random, queues: list[str], last_due_ms: int) -> None:
        self._rng, self._queues, self._last_due_ms = rng, queues, last_due_ms

    def delay_s(self, now_ms: int) -> float:
        """From nothing to a minute."""
        left_s = (self._last_due_ms - now_ms) / 1000
        return min(self._rng.uniform(*self._rng.choice(DELAYS_S)), max(0.0, left_s))

    def task(self, task_id: str, queue: str = "") -> Wanted:
        """A task with an id of the client's, which says when it is due."""
        due_ms = ids.home_of(bytes.fromhex(task_id.replace("-", ""))).due_ms
        task = replace(self._contents(0, queue), task_id=task_id)
        return Wanted(task, _body(task, due_ms), task_id, due_ms)

    def keyed(self, now_ms: int, key: str = "") -> Wanted:
        """A task with an idempotency key, due after a delay or at an instant."""
        delay_ms = int(self.delay_s(now_ms) * 1000)
        task = replace(self._contents(PAYLOAD_MIN), idempotency_key=key or secrets.token_hex(8))
        if self._rng.random() < 0.5:
            return Wanted(replace(task, delay=timedelta(milliseconds=delay_ms)), _body(task, 0), delay_ms=delay_ms)
        due_ms = now_ms + delay_ms
        return Wanted(replace(task, due=to_datetime(due_ms)), _body(task, due_ms), due_ms=due_ms)

    def alteration(self, wanted: Wanted, now_ms: int) -> Alteration:
        """At least one field, and sometimes the generation that the task should have."""
        rng, given, change = self._rng, dict[str, Any](), Change()
        while not given:
            if rng.random() < FIELD_SHARE:
                given["payload"] = secrets.token_bytes(rng.randrange(PAYLOAD_MAX))
                change = change._replace(payload=digest_of(given["payload"]))
            if rng.random() < FIELD_SHARE:
                given["metadata"] = self._metadata()
                change = change._replace(metadata=metadata_digest(given["metadata"]))
            if rng.random() < FIELD_SHARE:
                given["content_type"] = rng.choice(CONTENT_TYPES)
                change = change._replace(content_type=given["content_type"] or DEFAULT_CONTENT_TYPE)
            if rng.random() < FIELD_SHARE:
                given["priority"] = rng.choice(list(Priority))
                change = change._replace(priority=int(given["priority"]))
            if rng.random() < FIELD_SHARE:
                change = change._replace(due_ms=self._other_due_ms(now_ms))
                given["due"] = to_datetime(change.due_ms or 0)
        expected = self._expected(wanted.generation)
        return Alteration(given | {"expected_generation": expected}, change._replace(expected=expected))

    def _other_due_ms(self, now_ms: int) -> int:
        due_ms = now_ms + int(1000 * self._rng.uniform(*self._rng.choice(MOVES_S)))
        return min(due_ms, self._last_due_ms)

    def _expected(self, generation: int) -> int | None:
        return self._rng.choices((None, generation, generation + 1, 0), (55, 35, 5, 5))[0]

    def _contents(self, payload_min: int, queue: str = "") -> NewTask:
        rng = self._rng
        return NewTask(
            rng.choice(TYPES),
            secrets.token_bytes(rng.randrange(payload_min, PAYLOAD_MAX)),
            queue or rng.choice(self._queues),
            priority=rng.choice(list(Priority)),
            metadata=self._metadata(),
            content_type=rng.choice(CONTENT_TYPES),
        )

    def _metadata(self) -> dict[str, str]:
        return {f"key{n}": f"värde {self._rng.random()}" for n in range(self._rng.randrange(3))}


def _body(task: NewTask, due_ms: int) -> Body:
    assert task.queue is not None
    return body_of(
        NAMESPACE,
        task.queue,
        task.type,
        task.payload,
        task.metadata or {},
        task.content_type,
        task.priority,
        due_ms,
    )
