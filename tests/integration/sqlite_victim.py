"""Writes, commits and acknowledges until it is killed, and says what was answered, one JSON line each.

Arguments: the data directory, a seed. Every line that it prints is a promise that the database must keep.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.deliveries import SqliteDeliveries
from bucketsched.adapters.sqlite.journal import SqliteJournal
from bucketsched.adapters.sqlite.outbox import Outbox
from bucketsched.adapters.sqlite.store import SqliteTaskStore
from bucketsched.core.catalog import Queue, QueueKind
from bucketsched.core.message import Message
from bucketsched.core.task import FactKind, Mark, TaskBody, TaskRow
from bucketsched.core.task_id import RANDOM_BITS, mint

NAMESPACE = UUID(int=1).bytes
KEPT = Queue(NAMESPACE, "default", "kept", QueueKind.WORKER)
"""Nobody takes its messages, so each must stay as long as its record."""
TAKEN = Queue(NAMESPACE, "default", "taken", QueueKind.WORKER)
BASE_MS = 1_800_000_000_000


def say(**answered: Any) -> None:
    """One line, whole or not at all."""
    os.write(1, json.dumps(answered).encode() + b"\n")


async def insert(store: SqliteTaskStore, chance: random.Random) -> None:
    while True:
        dues = [BASE_MS + chance.randrange(600_000) for _ in range(chance.randrange(1, 60))]
        rows = [
            TaskRow(due, NAMESPACE, mint(due, 1, chance.getrandbits(RANDOM_BITS)), TaskBody("default", "q", "t"))
            for due in dues
        ]
        assert not any(await store.insert(rows))
        say(inserted=[row.ref.hex() for row in rows])
        marked = rows[: len(rows) // 2]
        await store.mark([Mark(row.ref, FactKind.DISPATCHED, row.due_ms) for row in marked])
        say(marked=[row.ref.hex() for row in marked])


async def commit(journal: SqliteJournal, chance: random.Random) -> None:
    while True:
        name, count = f"{chance.getrandbits(64):x}", chance.randrange(1, 30)
        record = f"{name}:{count}".encode()
        offset = await journal.commit([_message(q, record, i) for i in range(count) for q in (KEPT, TAKEN)], record)
        say(committed=record.decode(), offset=offset)


def _message(queue: Queue, record: bytes, number: int) -> Message:
    return Message(bytes(48), queue, "", None, [], record + b":%d" % number)


async def acknowledge(deliveries: SqliteDeliveries, chance: random.Random) -> None:
    subscription = await deliveries.subscribe(TAKEN)
    while True:
        fetched = await subscription.fetch(chance.randrange(1, 50))
        done = [delivery for delivery in fetched if chance.random() < 0.8]
        say(tried=[delivery.value.decode() for delivery in done])
        await subscription.ack([delivery.token for delivery in done])
        say(acknowledged=[delivery.value.decode() for delivery in done])


async def work(directory: Path, seed: int) -> None:
    chance, database = random.Random(seed), Database.open(directory)
    outbox = Outbox(database)
    journal = SqliteJournal(database, outbox, "journal")
    await journal.init()
    say(started=True)
    await asyncio.gather(
        insert(SqliteTaskStore(database), chance),
        commit(journal, chance),
        acknowledge(SqliteDeliveries(outbox), chance),
    )


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2])))
