"""The guards of the journal's trimming, of accepting a loss, and of looking for one."""

from __future__ import annotations

from .guards import Guard

JOURNALS, TRIMMING = "tests/conformance/test_journal.py", "tests/unit/test_trimmer.py"
LOSSES = "tests/unit/test_loss.py"
CHECKS, FSCK = "tests/unit/test_fsck.py", "recovery/fsck.py"
BACKLOG = "tests/unit/test_lane_backlog.py"
TRIMMER, LOSS = "coordinator/trimmer.py", "recovery/loss.py"

RECOVERY_GUARDS = [
    Guard(
        "trimming-keeps-what-checkpoints-end-with",
        "a taker replays from there, and the record's hash proves that the journal is the one it was",
        TRIMMER,
        "min(first, _needed_from(lane, checkpoints, first))",
        "first",
        (TRIMMING,),
    ),
    Guard(
        "trimming-looks-at-the-journal-first",
        "a checkpoint that is written while others are read points to a record that is no older than what was found",
        TRIMMER,
        "            if first is not None:\n",
        "            first = await self._journal.find(lane, self._clock.earliest_ms() - self._retention_ms)\n"
        "            if first is not None:\n",
        (TRIMMING,),
    ),
    Guard(
        "an-idle-lane-is-not-trimmed-to-its-end",
        "it may take a range and point to its last record",
        TRIMMER,
        "            if first is not None:\n",
        "            first = await self._journal.end(lane) if first is None else first\n            if True:\n",
        (TRIMMING,),
    ),
    Guard(
        "a-row-settled-twice-is-an-alarm",
        "somebody else has written there: of this range nobody knows what was dispatched",
        "poller/takeover.py",
        "        if mark.ref in self.marks:\n",
        "        if False:\n",
        (LOSSES,),
    ),
    Guard(
        "trimming-waits-for-alarmed-ranges",
        "what is in the journal may be all that says what was dispatched",
        TRIMMER,
        "any(c.journal != self._journal.name for c in checkpoints)",
        "False",
        (TRIMMING,),
    ),
    Guard(
        "what-was-aborted-has-no-time",
        "a partition would be trimmed up to what was never committed, and the last record with it",
        "adapters/kafka/reader.py",
        "                return entries[0].offset\n        return None",
        "                return entries[0].offset\n        return first",
        (JOURNALS,),
    ),
    Guard(
        "what-is-left-of-a-journal-is-stored",
        "a task whose record survived would go twice",
        LOSS,
        "        await self._apply(marks, moved, attempts)\n        return offset",
        "        return offset",
        (LOSSES,),
    ),
    Guard(
        "an-owner-that-goes-on-is-left-alone",
        "its checkpoints would have no effect any more",
        LOSS,
        "            await self._check_still(finding)\n",
        "            pass\n",
        (LOSSES,),
    ),
    Guard(
        "a-loss-is-accepted-once",
        "what the second would write is older than what the owner has done since",
        LOSS,
        "        await self._check_still(finding)\n        offset",
        "        offset",
        (LOSSES,),
    ),
    Guard(
        "zombies-do-not-undo-an-acceptance",
        "a former owner may still write checkpoints of its epoch",
        LOSS,
        "sequence_of(finding.order) + SEQUENCES_SKIPPED",
        "sequence_of(finding.order) + 1",
        (LOSSES,),
    ),
    Guard(
        "an-alarm-stands-until-the-checkpoint-changes",
        "each try fences lanes that do no harm",
        "poller/alarms.py",
        "order == self._orders.get(owned.range_id, 0) or ",
        "",
        (LOSSES,),
    ),
    Guard(
        "only-closed-ranges-of-a-bucket-are-compared",
        "ranges close their buckets one by one",
        FSCK,
        " if bucket < first]",
        "]",
        (CHECKS,),
    ),
    Guard(
        "differences-are-looked-at-twice",
        "rows are settled between the reading of the journal and of the store",
        FSCK,
        "if await self._stands(difference, later)]",
        "]",
        (CHECKS,),
    ),
    Guard(
        "what-was-journaled-meanwhile-counts",
        "a dispatch behind the first reading of the journal",
        FSCK,
        "return difference.ref not in later\n",
        "return True\n",
        (CHECKS,),
    ),
    Guard(
        "young-rows-are-nobodys-loss",
        "their creators may still be asking their owners",
        FSCK,
        "not (young or difference.ref in later)",
        "difference.ref not in later",
        (CHECKS,),
    ),
    Guard(
        "a-trimmed-journal-limits-the-window",
        "another lane may have had the record",
        FSCK,
        "trimmed_ms = max(",
        "trimmed_ms = min(",
        (CHECKS,),
    ),
    Guard(
        "old-facts-need-no-record",
        "their records were trimmed",
        "recovery/differences.py",
        "if all(at_ms >= kept_from_ms for at_ms in has.values()):",
        "if True:",
        (CHECKS,),
    ),
    Guard(
        "repair-reads-the-row-again",
        "it may be settled by now",
        "recovery/repair.py",
        "if stored is None or stored.facts.settled:",
        "if stored is None:",
        (CHECKS,),
    ),
    Guard(
        "a-backlog-goes-beside-the-present",
        "all of it is older, so the present would wait for it",
        "poller/dispatcher.py",
        "self._ready.push(row, owned, backlog)",
        "self._ready.push(row, owned)",
        (BACKLOG,),
    ),
    Guard(
        "a-backlog-takes-half-of-the-memory",
        "the present must find room to be loaded",
        "poller/loader.py",
        "rows_max, bytes_max = rows_max // 2, bytes_max // 2",
        "pass",
        (BACKLOG,),
    ),
    Guard(
        "foreign-records-are-passed-over",
        "a transaction in doubt would end the process",
        "poller/dispatcher.py",
        '    except JournalCorrupt:\n        return b""\n',
        '    except ZeroDivisionError:\n        return b""\n',
        ("tests/unit/test_lane_poison.py",),
    ),
]
