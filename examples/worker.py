"""A worker as it runs in production: handlers by type, retries, and a stop that finishes what is at work.

bucketsched dev                  # in another terminal
python examples/worker.py        # ends in order on ctrl-c or SIGTERM
bucketsched task create --type send-mail --payload '{"to": "ada@example.org"}' --delay 2s
bucketsched task create --type resize --payload picture.png --delay 2s
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time

from bucketsched import Task, Worker

sent: set[str] = set()


async def send_mail(task: Task) -> None:
    """Delivery is at least once, and what has failed is tried again, so what must not happen twice remembers
    `task.once`: in real life, in your database."""
    if task.once("sent") in sent:
        return
    message = task.json()
    print(f"sending to {message['to']}")  # a KeyError here: another attempt, as the retry policy says
    sent.add(task.once("sent"))


def resize(task: Task) -> None:
    """A plain function may block: it runs in a thread."""
    time.sleep(0.1)
    print(f"resized {task.text()}")


async def show(task: Task) -> None:
    """Everything that has no handler of its own."""
    print(f"{task.type}: {len(task.payload)} bytes, attempt {task.attempt}, metadata {task.metadata}")


async def main(target: str, queue: str) -> None:
    """Works until it is stopped; waits and reconnects while servers are away."""
    worker = Worker(target, queue, concurrency=50, lease=30, grace=20)
    worker.task("send-mail")(send_mail)
    worker.task("resize")(resize)
    worker.default(show)
    await worker.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    parser.add_argument("--queue", default="default", help="[%(default)s]")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(arguments.target, arguments.queue))
