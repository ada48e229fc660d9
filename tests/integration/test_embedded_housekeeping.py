"""What the embedded mode forgets, and how it ends where it never began."""

from __future__ import annotations

from pathlib import Path

import pytest

from bucketsched.adapters.sqlite import journal as journals
from bucketsched.adapters.sqlite.catalog import SqliteCatalog
from bucketsched.adapters.sqlite.database import Database
from bucketsched.app.embedded import Embedded
from bucketsched.core.checkpoint import Checkpoint, record_hash
from bucketsched.core.errors import Unavailable
from bucketsched.core.journal_record import JournalRecord, encode

RECORDS = 50


async def test_the_journal_does_not_outgrow_its_trimming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "TRIM_RECORDS_MAX", 7)
    embedded = Embedded(str(tmp_path), "127.0.0.1:0", "", None)
    await embedded.start()
    try:
        journal = embedded._journal
        values = [encode(JournalRecord(0, bytes([n]) * 16, 0, [])) for n in range(RECORDS)]
        last = [await journal.commit([], value) for value in values][-1]
        for range_id in range(embedded._constants.ranges):
            checkpoint = Checkpoint(1 << 20, 0, journal.name, 0, last, record_hash(values[-1]), 0)
            await embedded._checkpoints.save(range_id, checkpoint)
        await embedded._forget()
        assert await journal.start(0) == last
        assert [entry.offset async for entries in journal.read(0, last) for entry in entries] == [last]
    finally:
        await embedded.stop()


async def test_a_start_that_fails_half_way_gives_the_directory_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def establish(*_: object) -> None:
        raise Unavailable("disk full")

    monkeypatch.setattr(SqliteCatalog, "establish", establish)
    embedded = Embedded(str(tmp_path), "127.0.0.1:0", "", None)
    with pytest.raises(Unavailable, match="disk full"):
        await embedded.start()
    await embedded.stop()
    await Database.open(tmp_path).close()
