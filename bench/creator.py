"""Creates many tasks by `Client` as fast as it takes them: `python -m bench.creator ADDRESS QUEUE`.

Asked {"count", "from_ms", "span_ms"}, it answers {"created", "errors", "seconds", "cpu_s", "due_ms"}: the tasks are due
at random milliseconds of the span, and `due_ms` has one of them by id for each created task if "ids" is asked for.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import uvloop

from bucketsched import Client, CreatedTask, NewTask
from bucketsched.client.model import to_datetime

from .answering import answer
from .load import PAYLOAD, TYPE


async def create(address: str, queue: str) -> None:
    """Until stdin ends."""
    async with Client(address) as client:

        async def work(asked: dict[str, Any]) -> dict[str, Any]:
            span_ms = max(1, asked["span_ms"])
            due = [to_datetime(asked["from_ms"] + random.randrange(span_ms)) for _ in range(asked["count"])]
            tasks = [NewTask(TYPE, PAYLOAD, queue=queue, due=at) for at in due]
            began, cpu_began = time.perf_counter(), time.process_time()
            answers = await client.create_many(tasks)
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            created = [each for each in answers if isinstance(each, CreatedTask)]
            return {
                "created": len(created),
                "errors": [str(each) for each in answers if not isinstance(each, CreatedTask)][:3],
                "seconds": seconds,
                "cpu_s": cpu_s,
                "due_ms": {each.id: each.due_ms for each in created} if asked.get("ids") else {},
            }

        await answer(work)


if __name__ == "__main__":
    uvloop.run(create(*sys.argv[1:]))
