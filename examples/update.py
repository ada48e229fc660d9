"""Changing a task that waits, and creating one under a key of your own so that it happens once.

bucketsched dev                  # in another terminal
python examples/update.py
"""

from __future__ import annotations

import argparse
import asyncio
from uuid import uuid4

from bucketsched import Client, UpdateOutcome
from bucketsched.errors import AlreadyExists, FailedPrecondition


async def main(target: str) -> None:
    """Creates a task twice, moves it, changes it only as it was read, runs it, and comes too late."""
    async with Client(target) as client:
        key = f"order-7-reminder-{uuid4()}"  # a name that your own data gives it: after a crash you would use it again
        task = await client.create("remind", b"first", delay=3600, idempotency_key=key)
        again = await client.create("remind", b"first", delay=3600, idempotency_key=key)
        assert (again.id, again.due) == (task.id, task.due)
        try:
            await client.create("remind", b"something else", delay=3600, idempotency_key=key)
        except AlreadyExists as error:
            print(f"another task under the same key: {error}")

        moved = await client.update(task.id, delay=7200, payload=b"second")
        assert moved.task is not None
        print(f"moved: due {moved.task.due}, generation {moved.task.generation}, payload {moved.task.payload!r}")

        try:  # only if it still is what was read before somebody else changed it
            await client.update(task.id, payload=b"third", expected_generation=0)
        except FailedPrecondition as error:
            print(f"changed meanwhile: {error}")

        assert await client.run_now(task.id) is UpdateOutcome.UPDATED
        await until_dispatched(client, task.id)
        late = await client.update(task.id, payload=b"fourth")
        assert not late.outcome.updated
        print(f"too late: {late.outcome}")


async def until_dispatched(client: Client, task_id: str) -> None:
    """Waits by asking."""
    while True:
        if (await client.get(task_id)).dispatched is not None:
            return
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    asyncio.run(main(parser.parse_args().target))
