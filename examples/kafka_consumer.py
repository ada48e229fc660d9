"""A plain Kafka consumer of a queue of kind KAFKA: no bucketsched in the receiving process, only CloudEvents headers.

    make stack-up; bucketsched admin migrate; bucketsched node        # see docs/quickstart.md; or a cluster of your own
    grep bootstrap .stack/settings.toml                               # where Kafka is
    python examples/kafka_consumer.py --bootstrap HOST:PORT

Two things matter. `isolation_level="read_committed"`: the default shows messages of transactions that are aborted or
not committed yet, which may be early or come twice. And what must not happen twice remembers `ce_id`: dispatch into the
topic is exactly once, but a consumer that dies between its work and its commit sees a message again.
"""

from __future__ import annotations

import argparse
import asyncio

from aiokafka import AIOKafkaConsumer, ConsumerRecord

from bucketsched import Client, QueueKind

TASKS = 5


def describe(record: ConsumerRecord) -> str:
    """A task as it stands in a message: attributes in headers, the payload as the value."""
    headers = {name: value.decode() for name, value in record.headers}
    metadata = {name.removeprefix("bs-meta-"): value for name, value in headers.items() if name.startswith("bs-meta-")}
    late_ms = record.timestamp - int(headers["ce_due"])
    return (
        f"{headers['ce_id']} {headers['ce_type']} {record.value!r} {metadata} written {late_ms} ms after its due time"
    )


async def main(target: str, bootstrap: str, queue: str) -> None:
    """Schedules a few tasks, and reads them from the queue's topic when they are due."""
    async with Client(target) as client:
        topic = (await client.create_queue(queue, QueueKind.KAFKA)).topic
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=f"example-{queue}",
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        try:
            await consumer.start()
            awaited: set[str] = set()
            for number in range(TASKS):
                created = await client.create(
                    "report", b"%d" % number, queue=queue, delay=2 + 0.2 * number, metadata={"part": str(number)}
                )
                awaited.add(created.id)
            while awaited:
                record = await consumer.getone()
                print(describe(record))  # also of tasks that others put there: ce_id is task id/generation/attempt
                awaited.discard(describe(record).partition("/")[0])
                await consumer.commit()
        finally:
            await consumer.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="host:port of Kafka [%(default)s]")
    parser.add_argument("--queue", default="reports", help="is created where it is missing [%(default)s]")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.target, arguments.bootstrap, arguments.queue))
