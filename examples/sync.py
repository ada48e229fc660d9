"""Without asyncio: the same client, blocking, to be shared by threads.

bucketsched dev                  # in another terminal
python examples/sync.py
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor

from bucketsched import CreatedTask, NewTask, SyncClient


def main(target: str) -> None:
    """Creates tasks one by one, many at once, and from many threads; cancels one."""
    with SyncClient(target) as client:
        task = client.create("remind", b"hello", delay=3600)
        print(f"created: {client.get(task.id).state}, due {task.due}")
        print(f"cancelled: {client.cancel(task.id)}")

        results = client.create_many(NewTask("remind", b"%d" % number, delay=60) for number in range(100))
        print(f"create_many: {sum(isinstance(result, CreatedTask) for result in results)} tasks")

        with ThreadPoolExecutor(16) as threads:  # what they create at the same time is sent together
            ids = set(threads.map(lambda number: client.create("remind", b"%d" % number, delay=60).id, range(200)))
        print(f"threads: {len(ids)} tasks")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    main(parser.parse_args().target)
