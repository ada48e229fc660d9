"""Finding tasks: by queue, type, state, due time and metadata, from either end.

bucketsched dev                  # in another terminal
python examples/list.py
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from bucketsched import Client, NewTask, TaskOrder, TaskState


async def main(target: str) -> None:
    """Creates reminders of two customers, and finds those of one."""
    async with Client(target) as client:
        ours, theirs = f"customer-{uuid4()}", f"customer-{uuid4()}"
        reminders = [
            NewTask("remind", delay=3600 * hours, metadata={"customer": customer, "hours": str(hours)})
            for customer in (ours, theirs)
            for hours in (1, 2, 48)
        ]
        await client.create_many(reminders)

        tasks = client.list_tasks(state=TaskState.PENDING, metadata={"customer": ours})
        print("next first:", [task.metadata["hours"] async for task in tasks])

        tasks = client.list_tasks(metadata={"customer": ours}, order=TaskOrder.NEWEST)
        print("newest first:", [task.metadata["hours"] async for task in tasks])

        today = datetime.now(UTC) + timedelta(days=1)
        async for task in client.list_tasks(type="remind", due_until=today, metadata={"customer": ours}):
            await client.cancel(task.id)
        left = [task async for task in client.list_tasks(state="PENDING", metadata={"customer": ours})]
        print("left after cancelling those of today:", [task.metadata["hours"] for task in left])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    asyncio.run(main(parser.parse_args().target))
