"""Cancelling: the answer is final. And: an id of one's own, so that a crash between two steps loses nothing.

bucketsched dev                  # in another terminal
python examples/cancel.py
"""

from __future__ import annotations

import argparse
import asyncio

from bucketsched import Client
from bucketsched.errors import NotFound


async def main(target: str) -> None:
    """Cancels one task in time, one too late, and one that never was."""
    async with Client(target) as client:
        # Mint the id first and store it with your own data: after a crash, creating with it again is the same task.
        task_id = await client.mint(delay=3600)
        await client.create("remind", task_id=task_id)
        await client.create("remind", task_id=task_id)
        outcome = await client.cancel(task_id)
        assert outcome.cancelled
        print(f"an hour ahead: {outcome}, now {(await client.get(task_id)).state}")

        created = await client.create("remind")
        await until_dispatched(client, created.id)
        outcome = await client.cancel(created.id)
        assert not outcome.cancelled
        print(f"due at once: {outcome}")

        try:
            await client.cancel(await client.mint())
        except NotFound as error:
            print(f"never created: {error}")


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
