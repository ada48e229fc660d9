"""Scheduling many tasks: in one call, or from many coroutines at once; both travel in batches.

bucketsched dev                  # in another terminal
python examples/batch.py --count 10000
"""

from __future__ import annotations

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta

from bucketsched import Client, CreatedTask, NewTask


async def main(target: str, count: int) -> None:
    """Creates `count` tasks in each way, an hour from now, and says how fast it was."""
    due = datetime.now(UTC) + timedelta(hours=1)
    async with Client(target) as client:
        began = time.perf_counter()
        tasks = (NewTask("remind", b"%d" % number, due=due + timedelta(milliseconds=number)) for number in range(count))
        results = await client.create_many(tasks)
        say("create_many", count, began)
        for failed in [result for result in results if not isinstance(result, CreatedTask)]:
            print(f"not created: {failed}")

        began = time.perf_counter()
        await asyncio.gather(*(client.create("remind", b"%d" % number, due=due) for number in range(count)))
        say("concurrent create", count, began)


def say(way: str, count: int, began: float) -> None:
    """A line about one way."""
    seconds = time.perf_counter() - began
    print(f"{way}: {count} tasks in {seconds:.2f} s, {count / seconds:,.0f} a second")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    parser.add_argument("--count", type=int, default=10_000, help="[%(default)s]")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.target, arguments.count))
