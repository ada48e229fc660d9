"""The whole of it in one file: schedule tasks, and run a handler for each when it is due.

bucketsched dev                  # in another terminal
python examples/quickstart.py
"""

from __future__ import annotations

import argparse
import asyncio

from bucketsched import Client, Task, Worker

GREETINGS = 5
QUEUE = "greetings"


async def main(target: str) -> None:
    """Schedules a few greetings, one every 0.2 s, and ends when all have been received."""
    async with Client(target) as client:
        await client.create_queue(QUEUE)  # of its own: workers share what is in a queue
        worker = Worker(client, QUEUE)
        received: list[str] = []

        @worker.task("greet")
        async def greet(task: Task) -> None:
            received.append(task.text())
            print(f"{task.text()}: due {task.due:%H:%M:%S.%f}, dispatched {task.dispatched_ms - task.due_ms} ms later")
            if len(received) == GREETINGS:
                worker.stop()

        for number in range(GREETINGS):
            created = await client.create("greet", f"hello {number}".encode(), queue=QUEUE, delay=0.5 + 0.2 * number)
            print(f"scheduled {created.id} for {created.due:%H:%M:%S.%f}")

        await worker.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    asyncio.run(main(parser.parse_args().target))
