"""Guards to be taken out, which the simulation then misses: sentences that close a sequence of events."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """`code` in `file` becomes `without`. `seed`: one that finds it, so that the proof is quick.

    None: not found yet, in as few seeds as were tried; or by what the rule forbids, some other rule prevents it, too
    (docs/simulation.md).
    """

    name: str
    rule: str
    file: str
    code: str
    without: str
    seed: int | None
    also: tuple[tuple[str, str], ...] = ()
    """More of the same file: code, and what becomes of it."""
    elsewhere: tuple[tuple[str, str, str], ...] = ()
    """Of other files: file, code, and what becomes of it."""

    @property
    def changes(self) -> dict[str, list[tuple[str, str]]]:
        """By file: code, and what becomes of it."""
        found = {self.file: [(self.code, self.without), *self.also]}
        for file, code, without in self.elsewhere:
            found.setdefault(file, []).append((code, without))
        return found


PLANTED = [
    # ---------------------------------------------------------------- transactions
    Planted(
        "a-send-is-not-awaited",
        "every send is awaited before the transaction ends",
        "tests/simulation/broker.py",
        """            await self._call(lambda: self._broker.produce(self._lane, producer, messages, record))
""",
        """            sent = messages[:-1] if len(messages) > 1 else messages
            await self._call(lambda: self._broker.produce(self._lane, producer, sent, record))
""",
        0,
    ),
    Planted(
        "an-abort-is-a-commit",
        "what was refused was not committed",
        "poller/dispatcher.py",
        "            await self._refused(batch, refusal)\n",
        "            self._settle(batch, self.last[0], value)\n",
        0,
    ),
    Planted(
        "doubt-is-a-commit",
        "a transaction in doubt is answered only when the journal was read",
        "poller/dispatcher.py",
        "            resolved = await self._resolve(batch.nonce)\n",
        "            await self._resolve(batch.nonce)\n            resolved = self.last[0]\n",
        0,
    ),
    Planted(
        "doubt-is-retried",
        "a transaction in doubt is retried only when the journal was read",
        "poller/dispatcher.py",
        "                return await self._find(nonce)",
        "                return None",
        5,
    ),
    Planted(
        "a-lease-is-proof",
        "after every init slot and ranges are validated",
        "poller/dispatcher.py",
        """                await self._journal.init()
                await self._validate()
                return await self._find(nonce)""",
        """                await self._journal.init()
                return await self._find(nonce)""",
        18,
    ),
    Planted(
        "a-cancel-without-the-journal",
        "a cancel is confirmed by a committed record",
        "poller/dispatcher.py",
        "            claimed.add(change.ref)\n            batch.mutations.append(change)",
        "            claimed.add(change.ref)\n            change.answer(change.kind, 0)\n"
        "            batch.mutations.append(change)",
        1,
    ),
    Planted(
        "a-cancelled-row-goes-along",
        "a row is not dispatched by the transaction that cancels it",
        "poller/dispatcher.py",
        """            elif row.ref in claimed:
                batch.withheld.append((row, owned))
            elif owned.status(row.ref) != QUEUED:
                owned.leave(row)
            elif row.due_ms""",
        """            elif owned.status(row.ref) != QUEUED:
                owned.leave(row)
            elif row.due_ms""",
        2,
    ),
    # ---------------------------------------------------------------- time
    Planted(
        "due-is-floored",
        "a due time finer than milliseconds is rounded up",
        "core/durations.py",
        "    return seconds * 1000 - (-nanos // _NANOS_PER_MS)\n\n\ndef duration_ms",
        "    return seconds * 1000 + nanos // _NANOS_PER_MS\n\n\ndef duration_ms",
        12,
    ),
    Planted(
        "the-latest-reading-counts",
        "earliest() >= due is checked before a transaction, and once more",
        "poller/dispatcher.py",
        "        now_ms = self._clock.earliest_ms()\n        batch = Batch(now_ms,",
        "        now_ms = self._clock.latest_ms()\n        batch = Batch(now_ms,",
        2,
        (
            (
                "if batch.latest_due_ms > self._clock.earliest_ms():",
                "if batch.latest_due_ms > self._clock.latest_ms():",
            ),
            ("(soonest - self._clock.earliest_ms()) / 1000", "(soonest - self._clock.latest_ms()) / 1000"),
        ),
    ),
    # ---------------------------------------------------------------- taking a range
    Planted(
        "the-journal-before-the-fence",
        "predecessors are fenced before their journal is read",
        "poller/takeover.py",
        """        for lane in owned.lease.predecessors:
            await self._fence(lane)
        failpoints.reach("takeover.fenced")
        taking.done("fence")
        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)
""",
        """        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)
        for lane in owned.lease.predecessors:
            await self._fence(lane)
        failpoints.reach("takeover.fenced")
""",
        62,
    ),
    Planted(
        "the-own-lane-is-not-fenced",
        "one's own lane is fenced, too, if it is among the predecessors",
        "poller/takeover.py",
        "                await (self._reinitialise() if own else self._journal.fence(lane))\n",
        "                if not own:\n                    await self._journal.fence(lane)\n",
        None,
    ),
    Planted(
        "cleared-before-the-fence",
        "predecessors are cleared only after all are fenced",
        "poller/takeover.py",
        '        await self._leases.clear_predecessors(owned.lease)\n        failpoints.reach("takeover.cleared")\n',
        "",
        211,
        (
            (
                "        for lane in owned.lease.predecessors:\n            await self._fence(lane)\n",
                "        await self._leases.clear_predecessors(owned.lease)\n"
                '        failpoints.reach("takeover.cleared")\n'
                "        for lane in owned.lease.predecessors:\n            await self._fence(lane)\n",
            ),
        ),
    ),
    Planted(
        "only-the-last-predecessor",
        "every unfenced predecessor is fenced, not only the last",
        "poller/takeover.py",
        "        for lane in owned.lease.predecessors:\n",
        "        for lane in owned.lease.predecessors[-1:]:\n",
        69,
    ),
    Planted(
        "clearing-without-a-version",
        "the first dispatch needs the versioned clearing",
        "poller/takeover.py",
        "        await self._leases.clear_predecessors(owned.lease)\n",
        "",
        83,
    ),
    Planted(
        "a-replay-from-a-later-offset",
        "the replay begins at the checkpoint's offset",
        "poller/takeover.py",
        "        for offset, record, section in stretch.behind(applied, range_id):\n",
        "        for offset, record, section in stretch.behind(applied + 2, range_id):\n",
        18,
    ),
    Planted(
        "a-preload-replays-from-a-later-checkpoint",
        "after a preload the replay begins at the checkpoint that was read before it",
        "poller/takeover.py",
        "        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)\n",
        "        replay = await self._replay(owned.range_id, checkpoint, checkpoint)\n",
        2,
    ),
    Planted(
        "a-stale-preload-is-used",
        "a preload is thrown away if the checkpoint read after the lease is of another epoch",
        "poller/takeover.py",
        "        if since is not None and not _continues(checkpoint, since):\n",
        "        if False:\n",
        113,
    ),
    Planted(
        "a-clean-release-needs-no-replay",
        "the journal is replayed even after a clean release",
        "poller/takeover.py",
        "        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)\n",
        "        replay = Replay()\n"
        "        if owned.lease.predecessors:\n"
        "            replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)\n",
        2,
    ),
    Planted(
        "no-checkpoint-before-the-first-dispatch",
        "a new checkpoint is written before the first dispatch",
        "poller/takeover.py",
        "        await self._checkpoints.save(owned.range_id, successor)\n",
        "",
        2,
    ),
    Planted(
        "an-init-fences-nobody",
        "a lane's init ends what a former life of it has open",
        "tests/simulation/broker.py",
        "        self._producer = await self._ask(lambda: self._broker.take(self._lane))\n",
        "        self._producer = await self._ask(lambda: self._broker.lane(self._lane).producer)\n",
        0,
    ),
    Planted(
        "dispatch-before-the-replay",
        "before the replay has ended nothing is dispatched or answered for a range",
        "poller/takeover.py",
        """        for lane in owned.lease.predecessors:
            await self._fence(lane)
        failpoints.reach("takeover.fenced")
        taking.done("fence")
        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)
""",
        """        for lane in owned.lease.predecessors:
            await self._fence(lane)
        failpoints.reach("takeover.fenced")
        taking.done("fence")
        self._activate(owned, checkpoint, Replay(), [])
        replay = await self._replay(owned.range_id, since or checkpoint, checkpoint)
""",
        2,
        (
            (
                "        self._activate(owned, successor, replay, moved)\n        log",
                "        log",
            ),
        ),
    ),
    Planted(
        "a-zombie-moves-a-checkpoint-back",
        "checkpoints are ordered by epoch and sequence, not by arrival",
        "tests/simulation/replicas.py",
        "        if stored is None or stored[0] < order:\n",
        "        if True:\n",
        None,
    ),
    Planted(
        "moves-are-not-made-again",
        "successors that a journal speaks of are written again by the taker",
        "poller/takeover.py",
        "await write_consequences(self._store, moved, replay.attempts, replay.facts())",
        "await write_consequences(self._store, [], replay.attempts, replay.facts())",
        143,
    ),
    Planted(
        "a-fence-that-began-before",
        "a fence that is shared began after one's own lease",
        "core/waiting.py",
        "                asked, self._asked = self._asked, []\n",
        "                asked = self._asked\n",
        51,
    ),
    Planted(
        "trimming-passes-checkpoints",
        "the journal is trimmed behind the lowest checkpoint that points there",
        "coordinator/trimmer.py",
        "min(first, _needed_from(lane, checkpoints, first))",
        "first",
        7,
    ),
    Planted(
        "the-trimmer-looks-too-late",
        "the trimmer takes the journal's end before it reads the checkpoints",
        "coordinator/trimmer.py",
        "        first_kept = {lane: await self._journal.find(lane, old_ms) for lane in lanes}\n"
        "        found = [await self._checkpoint(range_id) for range_id in range(self._constants.ranges)]\n",
        "        found = [await self._checkpoint(range_id) for range_id in range(self._constants.ranges)]\n"
        "        first_kept = {lane: await self._journal.end(lane) for lane in lanes}\n",
        1,
    ),
    Planted(
        "a-trimmed-replay-is-an-alarm",
        "a replay whose start was trimmed while the checkpoint moved on begins again",
        "poller/takeover.py",
        "        if (await self._load(range_id)).order != checkpoint.order:\n",
        "        if False:\n",
        37,
    ),
    Planted(
        "epochs-are-given-twice",
        "after ZooKeeper was restored, epochs go on above those of the checkpoints",
        "tests/simulation/ensemble.py",
        "        self.plan = Plan(0)\n        self.raise_epochs(checkpoints)\n",
        "        self.plan = Plan(0)\n",
        None,
    ),
    # ---------------------------------------------------------------- what an owner knows
    Planted(
        "forgotten-before-the-mark",
        "an id is forgotten only when it is marked",
        "poller/owned_range.py",
        "        self._known[ref] = kind\n        for watcher",
        "        self._known[ref] = kind\n        self.marked(ref)\n        for watcher",
        29,
    ),
    Planted(
        "the-rescan-is-left-out",
        "a lost hint is made good by the rescan",
        "poller/rescanner.py",
        "            counts = await asyncio.gather(*(self.scan(owned, gate) for owned in active))\n",
        "            counts = [0 for owned in active if gate is None]\n",
        107,
    ),
    Planted(
        "closed-too-early",
        "a bucket is open until its grace is over",
        "poller/closer.py",
        "self._clock.earliest_ms() < bucket_end_ms(bucket) + self._grace_ms",
        "self._clock.earliest_ms() < bucket_end_ms(bucket) + self._grace_ms - 500",
        1,
    ),
    Planted(
        "closed-without-a-last-read",
        "before a bucket is closed its whole partition is read once more",
        "poller/closer.py",
        "await admit_pending(owned, self._store, self._clock, bucket, start_ms, end_ms)",
        "await admit_pending(owned, self._store, self._clock, bucket, start_ms, start_ms)",
        52,
    ),
    Planted(
        "a-successor-is-not-queued",
        "a moved row is dispatched also if whoever asked for it has gone",
        "poller/dispatcher.py",
        "                    owned.move_in(row)\n",
        "                    pass\n",
        None,
    ),
    Planted(
        "a-successor-is-neither-queued-nor-looked-for",
        "a moved row is queued, and if that was in vain the rescan finds it",
        "poller/dispatcher.py",
        "                    owned.move_in(row)\n",
        "                    pass\n",
        3,
        elsewhere=(
            (
                "poller/rescanner.py",
                "            counts = await asyncio.gather(*(self.scan(owned, gate) for owned in active))\n",
                "            counts = [0 for owned in active if gate is None]\n",
            ),
        ),
    ),
    Planted(
        "a-namespace-is-left-out",
        "the namespace is part of what a row is known by",
        "poller/owned_range.py",
        "        if row.ref in self._known:\n            return False\n",
        "        bare = [known[:8] + known[24:] for known in self._known]\n"
        "        if row.ref[:8] + row.ref[24:] in bare:\n            return False\n",
        28,
    ),
    Planted(
        "forgotten-under-a-read",
        "an id is not forgotten while a read is in flight that may bring it",
        "poller/owned_range.py",
        "            if self._remembered[0][1] >= oldest_read:\n",
        "            if False:\n",
        None,
    ),
    Planted(
        "far-ids-are-forgotten-under-a-read",
        "the same for a row beyond the loaded buckets",
        "poller/owned_range.py",
        "while self._fading and self._fading[0][0] < oldest_read:",
        "while self._fading:",
        65,
    ),
    Planted(
        "settled-rows-are-not-remembered",
        "a settled row stays known while hints of its time are believed",
        "poller/owned_range.py",
        "            if row.due_ms >= self.remembered_from_ms:\n                self._known",
        "            if False:\n                self._known",
        None,
    ),
    Planted(
        "hints-of-forgotten-times-are-believed",
        "a hint is believed only if its row can't have been forgotten",
        "poller/owned_range.py",
        "if not self.is_open(row.bucket) or row.due_ms < self.remembered_from_ms:",
        "if not self.is_open(row.bucket):",
        4,
    ),
    Planted(
        "hints-do-not-wait-for-reads",
        "a hint during a read is decided after it",
        "poller/owned_range.py",
        "        if cursor is not None and cursor.reading:\n            return self._hold(row, cursor)\n",
        "",
        None,
    ),
    Planted(
        "the-edge-of-a-page-is-believed",
        "at the edge of a partial page facts may be unread",
        "poller/owned_range.py",
        "if cursor is not None and cursor.partial and row.due_ms == cursor.edge_ms:",
        "if False:",
        None,
    ),
    Planted(
        "low-due-passes-queued-rows",
        "what is not journaled is loaded again by a taker",
        "poller/owned_range.py",
        "return min(read_ms, limit_ms, arriving, ref_due_ms(undone[0]) if undone else read_ms)",
        "return min(read_ms, limit_ms, arriving)",
        None,
    ),
    Planted(
        "a-scan-does-not-catch-up",
        "after an outage of the store the scan begins where it left off",
        "poller/rescanner.py",
        "min(now_ms, owned.scanned_ms) - REMEMBER_MS,",
        "now_ms - REMEMBER_MS,",
        None,
    ),
    Planted(
        "late-rows-stay-in-closed-buckets",
        "into a closed bucket nothing is admitted any more",
        "poller/changes.py",
        "            if owned.is_open(row.bucket):\n",
        "            if True:\n",
        None,
    ),
    Planted(
        "admitted-while-it-closes",
        "nothing is admitted to a bucket whose closing is under way",
        "poller/owned_range.py",
        "return bucket >= self.buckets.first and bucket != self.closing",
        "return bucket >= self.buckets.first",
        None,
    ),
    Planted(
        "late-rows-are-answered-from-memory",
        "an owner answers for a late row when a committed record says what became of it",
        "poller/changes.py",
        "return await self._settled(owned, stored.row.ref)",
        "return HintAnswer.TAKEN",
        None,
    ),
    Planted(
        "a-lost-slot-stops-nobody",
        "without slot and session nothing is dispatched",
        "poller/dispatcher.py",
        "raise LaneLost(str(error)) from error",
        "return",
        18,
    ),
    Planted(
        "a-checkpoint-passes-the-unmarked",
        "a checkpoint passes only what is marked or written",
        "poller/checkpointer.py",
        "        offset, value_hash = self._marker.applied(owned)\n",
        "        offset, value_hash = self._marker._last\n",
        0,
    ),
    # ---------------------------------------------------------------- creates
    Planted(
        "a-late-create-needs-no-owner",
        "a create whose bucket is over is acknowledged by the owner only",
        "service/tasks.py",
        "over = [row for row in rows if row.ref not in unsure and self._over(row, now_ms)]",
        "over = [row for row in rows if row.ref not in unsure and not rows]",
        0,
    ),
    Planted(
        "a-late-create-relocates-by-itself",
        "a create whose bucket is over does not relocate by itself",
        "core/validation.py",
        "    return Placement(home_ms, nominal_due_ms, raw)\n",
        "    return Placement(now_ms if now_ms // 60_000 > home_ms // 60_000 else home_ms, nominal_due_ms, raw)\n",
        1,
    ),
    Planted(
        "late-hints-need-no-answer",
        "a create may be acknowledged without the answer only before due + 20 s",
        "service/tasks.py",
        "UNANSWERED_UNTIL_MS = 20_000",
        "UNANSWERED_UNTIL_MS = 20_000_000",
        61,
    ),
    Planted(
        "unknown-is-stored",
        "a create whose outcome is not known is never acknowledged",
        "service/tasks.py",
        "            elif answer is not None:\n                left.append(row)\n",
        "",
        27,
    ),
    # ---------------------------------------------------------------- changes
    Planted(
        "an-update-is-answered-before-its-record",
        "an update is confirmed by a committed record",
        "poller/changes.py",
        "                kind, offset = await self._journal(mutation)\n",
        "                self._dispatcher.submit(mutation)\n                kind, offset = FactKind.MOVED, 0\n",
        1,
    ),
    Planted(
        "a-moved-row-goes-all-the-same",
        "a row that was moved stays in the heap, and is passed over",
        "poller/dispatcher.py",
        "            elif owned.status(row.ref) != QUEUED:\n"
        "                owned.leave(row)\n            elif row.due_ms",
        "            elif owned.status(row.ref) not in (QUEUED, FactKind.MOVED, FactKind.MOVED + MARKED):\n"
        "                owned.leave(row)\n            elif row.due_ms",
        2,
    ),
    Planted(
        "a-replay-forgets-what-a-move-has-changed",
        "a taker writes the body that the record of a move carries",
        "poller/successors.py",
        "        if encoded:\n",
        "        if encoded and not packed:\n",
        79,
    ),
    Planted(
        "the-new-due-time-is-not-kept",
        "a moved task goes at its new due time, not before",
        "poller/changes.py",
        "max(wanted_ms, self._clock.now_ms())",
        "self._clock.now_ms()",
        2,
    ),
    Planted(
        "a-place-is-taken-twice",
        "a task never returns to a place where it has been",
        "poller/changes.py",
        "if due_ms != row.due_ms and await self._store.get(due_ms, row.namespace_id, row.task_id) is None:",
        "if due_ms != row.due_ms:",
        58,
    ),
    Planted(
        "any-generation-will-do",
        "an update for one generation changes no other",
        "poller/changes.py",
        "if change.generation not in (None, row.generation):",
        "if change.generation is not None and change.generation < 0:",
        5,
    ),
    Planted(
        "what-the-store-shows-is-as-it-is",
        "what is as it was asked to be is told so only if nothing has become of it meanwhile",
        "poller/changes.py",
        " and not again and owned.status(row.ref) in (None, QUEUED):",
        " and not again:",
        None,
    ),
    Planted(
        "a-store-that-lags-is-believed",
        "a row from which the task has gone on is no answer, even if the store shows no newer one yet",
        "poller/changes.py",
        "                if _went_on(owned, row.ref):\n",
        "                if False:\n",
        143,
    ),
    Planted(
        "a-row-that-arrives-is-not-awaited",
        "until the row of a move is stored, its bucket is known to lack it",
        "poller/owned_range.py",
        "            self._arriving.setdefault(row.bucket, {})[row.ref] = row\n",
        "            pass\n",
        None,
    ),
    Planted(
        "a-move-into-a-closed-bucket",
        "a move that has waited until its bucket was closed is refused",
        "poller/dispatcher.py",
        "        elif not all(change.owned.is_open(row.bucket) for row in change.made):\n",
        "        elif False:\n",
        None,
    ),
    Planted(
        "a-pointer-goes-ahead-of-its-row",
        "what names a row is stored after that row, also where it is stored by itself",
        "poller/batch.py",
        "Consequence(pointer, change.owned, made)",
        "Consequence(pointer, change.owned)",
        None,
    ),
    # ---------------------------------------------------------------- outcomes
    Planted(
        "a-second-outcome-is-accepted",
        "the first outcome that is journaled for an attempt counts",
        "poller/changes.py",
        "            ended = owned.status(at_stage(ref, Stage.OUTCOME)) is not None\n",
        "            ended = False\n",
        0,
        also=(
            (
                "row, ended = stored.row, stored.facts.settled and kind_of(stored.facts) is not FactKind.DISPATCHED",
                "row, ended = stored.row, False",
            ),
        ),
        elsewhere=(
            (
                "poller/dispatcher.py",
                "        elif status is not None and status != QUEUED:\n            change.answer",
                "        elif status is not None and status != QUEUED and change.ref[-4] < 0x20:\n"
                "            change.answer",
            ),
        ),
    ),
    # ---------------------------------------------------------------- idempotency keys
    Planted(
        "a-key-is-claimed-after-its-row",
        "the claim of a key is stored before the row",
        "service/tasks.py",
        "        await self._claim(tasks, results, deadline)\n",
        "        await self._write([row for row in results if isinstance(row, TaskRow)], deadline)\n"
        "        await self._claim(tasks, results, deadline)\n",
        0,
    ),
    Planted(
        "a-claim-without-a-row-is-believed",
        "a claim without a row is made good",
        "service/idempotency.py",
        "        return TaskRow(claim.due_ms, row.namespace_id, claim.task_id, body)\n",
        '        return TaskRow(claim.due_ms, row.namespace_id, claim.task_id, replace(body, type=""))\n',
        None,
        (("    return row.body != NO_BODY\n", '    return row.body.type != ""\n'),),
    ),
    Planted(
        "a-key-is-good-for-anything",
        "a key that was used for something else is refused",
        "service/idempotency.py",
        "if standing.digest != claim.digest:",
        "if not standing.digest:",
        0,
    ),
]
PROVEN = [bug for bug in PLANTED if bug.seed is not None]
