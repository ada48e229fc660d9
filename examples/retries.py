"""What becomes of attempts: retries by a policy, results, dead letters that are done all over, tasks that expire.

bucketsched dev                  # in another terminal
python examples/retries.py
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
from uuid import uuid4

from bucketsched import Client, NoRetry, RetryPolicy, Task, TaskInfo, TaskState, Worker

QUICK = RetryPolicy(max_attempts=4, initial_delay=0.2, non_retryable_errors=["ValueError"])
repaired = False


async def main(target: str) -> None:
    """Works at four tasks: one that succeeds at its third attempt, two that fail for good, one that comes too late."""
    async with Client(target) as client:
        queue = f"retries-{uuid4().hex[:8]}"
        await client.create_queue(queue, retry=QUICK)
        late = await client.create("report", queue=queue, expire_after=0.5)  # nobody works yet
        await asyncio.sleep(1)

        worker = Worker(client, queue, worker_id="example")
        worker.task("flaky")(flaky)
        worker.task("broken")(broken)
        worker.task("report")(report)
        at_work = asyncio.create_task(worker.run())
        try:
            await follow(client, queue, late.id)
        finally:
            worker.stop()
            with contextlib.suppress(asyncio.CancelledError):
                await at_work


async def follow(client: Client, queue: str, late_id: str) -> None:
    """Creates the tasks, and tells what becomes of them."""
    flaky_task = await client.create("flaky", queue=queue)
    done = await ended(client, flaky_task.id)
    print(f"flaky: {done.state} at attempt {done.attempt}; the one before: {done.last_error}")
    for attempt in await client.attempts(flaky_task.id):
        said = attempt.json() if attempt.result else f"{attempt.error_type}: {attempt.error_message}"
        print(f"  attempt {attempt.attempt} by {attempt.worker}: {attempt.outcome}, {said}")

    print(f"late: {(await ended(client, late_id)).state}")

    for payload in (b"wrong", b"gone"):
        broken_task = await client.create("broken", payload, queue=queue)
        failed = await ended(client, broken_task.id)
        print(f"broken: {failed.state} at attempt {failed.attempt}: {failed.fail_reason}")

    global repaired
    repaired = True
    async for dead in client.list_tasks(queue=queue, state=TaskState.FAILED):  # the dead letters of the queue
        redriven = await client.redrive(dead.id)
        done = await ended(client, dead.id)
        print(f"redriven: {redriven.outcome}, {done.state} in generation {done.generation}")
    print(f"left: {(await client.count_tasks(queue=queue, state=TaskState.FAILED)).count} dead letters")


async def flaky(task: Task) -> dict[str, int]:
    """Fails twice. What it returns, the execution log keeps."""
    if task.attempt < 3:
        raise ConnectionError("the other side is busy")
    return {"attempts": task.attempt}


async def broken(task: Task) -> None:
    """Fails for good: by an error that the policy names, or because it says so."""
    if repaired:
        return
    if task.payload == b"wrong":
        raise ValueError("no such order")
    raise NoRetry("the customer is gone")


async def report(task: Task) -> None:
    """Would be of no use any more."""
    raise AssertionError(f"{task.id} came too late")


async def ended(client: Client, task_id: str) -> TaskInfo:
    """Waits by asking."""
    while True:
        found = await client.get(task_id)
        if found.state in (TaskState.SUCCEEDED, TaskState.FAILED, TaskState.EXPIRED):
            return found
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # what handlers raise is told here by what the execution log says of it
    asyncio.run(main(arguments.target))
