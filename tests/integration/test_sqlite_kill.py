"""kill -9 at random moments: nothing that was answered is lost, and a dispatch is there whole or not at all."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlite_victim import KEPT, TAKEN

from bucketsched.adapters.sqlite.database import Database
from bucketsched.adapters.sqlite.journal import SqliteJournal
from bucketsched.adapters.sqlite.outbox import Outbox
from bucketsched.adapters.sqlite.store import SqliteTaskStore
from bucketsched.core.task import RowRef
from bucketsched.ports import JournalEntry

ROUNDS = 24
SEED = 20_260_101
VICTIM = Path(__file__).with_name("sqlite_victim.py")
DEADLINE_S = 30.0
LIFE_S_MAX = 0.25


@dataclass
class Promises:
    """Everything that was answered so far, over all rounds."""

    inserted: set[str] = field(default_factory=set)
    marked: set[str] = field(default_factory=set)
    committed: dict[int, str] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)

    def add(self, line: bytes) -> None:
        answered = json.loads(line)
        for name in ("inserted", "marked", "tried", "acknowledged"):
            getattr(self, name).update(answered.get(name, []))
        if "committed" in answered:
            assert answered["offset"] not in self.committed, "an offset was given twice"
            self.committed[answered["offset"]] = answered["committed"]


async def let_live_and_kill(directory: Path, seed: int, life_s: float, promises: Promises) -> None:
    victim = await asyncio.create_subprocess_exec(
        sys.executable, str(VICTIM), str(directory), str(seed), stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    assert victim.stdout is not None
    try:
        assert json.loads(await asyncio.wait_for(victim.stdout.readline(), DEADLINE_S)) == {"started": True}
        asyncio.get_running_loop().call_later(life_s, victim.kill)
        async with asyncio.timeout(DEADLINE_S):
            async for line in victim.stdout:
                if line.endswith(b"\n"):  # else it was killed within the line
                    promises.add(line)
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.wait()


async def check(directory: Path, promises: Promises) -> None:
    database = Database.open(directory)
    try:
        outbox = Outbox(database)
        journal = SqliteJournal(database, outbox, "journal")
        entries = [entry async for batch in journal.read(0, 0) for entry in batch]
        kept, taken = [await values(outbox, queue.name) for queue in (KEPT, TAKEN)]
        check_dispatches(promises, entries, kept, taken)
        await check_rows(SqliteTaskStore(database), promises)
        damage = await database.read(lambda c: c.execute("PRAGMA integrity_check").fetchall())
        assert damage == [("ok",)]
    finally:
        await database.close()


async def values(outbox: Outbox, queue: str) -> list[str]:
    found: list[str] = []
    after, complete = 0, False
    while not complete:
        batch, complete = await outbox.read((KEPT.namespace_id, queue), after, 10_000)
        found += [delivery.value.decode() for delivery in batch]
        after = batch[-1].token if batch else after
    return found


def check_dispatches(promises: Promises, entries: list[JournalEntry], kept: list[str], taken: list[str]) -> None:
    stored = {entry.offset: entry.value.decode() for entry in entries}
    assert promises.committed.items() <= stored.items(), "an answered commit is lost"
    messages = [f"{record}:{i}" for record in stored.values() for i in range(int(record.split(":")[1]))]
    assert kept == messages, "record and messages are not there together, in order, once"
    remaining = set(taken)
    assert len(taken) == len(remaining)
    assert not remaining & promises.acknowledged, "an answered ack is forgotten"
    assert set(messages) - promises.tried <= remaining <= set(messages), "a message is gone that nobody acknowledged"


async def check_rows(store: SqliteTaskStore, promises: Promises) -> None:
    """In ten buckets of one shard."""
    buckets = {RowRef.unpack(bytes.fromhex(ref)).due_ms // 60_000 for ref in promises.inserted}
    found: dict[str, bool] = {}
    for bucket in buckets:
        after, complete = None, False
        while not complete:
            page = await store.read_partition(bucket, 1, after, 1 << 60, 5_000)
            found.update({task.row.ref.hex(): task.facts.settled for task in page.tasks})
            complete = page.complete
            after = page.tasks[-1].row.ref if page.tasks else None
    assert promises.inserted <= found.keys(), "an answered row is lost"
    assert all(found[ref] for ref in promises.marked), "an answered mark is lost"


@pytest.mark.timeout(240)
async def test_nothing_that_was_answered_is_lost(tmp_path: Path) -> None:
    chance, promises = random.Random(SEED), Promises()
    for number in range(ROUNDS):
        await let_live_and_kill(tmp_path, SEED + number, chance.uniform(0, LIFE_S_MAX), promises)
        await check(tmp_path, promises)
    assert len(promises.inserted) > 500
    assert len(promises.marked) > 200
    assert len(promises.committed) > 50
    assert len(promises.acknowledged) > 200
