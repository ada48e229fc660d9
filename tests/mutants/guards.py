"""The guards, one for each sentence of the protocol that closes a sequence of events."""

from __future__ import annotations

from dataclasses import dataclass

LANE = "tests/unit/test_lane.py"
SEQUENCES = "tests/unit/test_lane_guards.py"
RANGE = "tests/unit/test_owned_range.py"
LATE = "tests/unit/test_lane_late.py"
RACES = "tests/unit/test_lane_races.py"
MARKER = "tests/unit/test_marker.py"
OUTAGES = "tests/unit/test_lane_outages.py"
INTERLEAVINGS = "tests/unit/test_lane_interleavings.py"
CHANGE = "tests/unit/test_lane_change.py"
KEYS = "tests/unit/test_service_keys.py"


@dataclass(frozen=True)
class Guard:
    """`code` in `file` (below src/bucketsched) becomes `without`; then one of `tests` must fail."""

    name: str
    why: str
    file: str
    code: str
    without: str
    tests: tuple[str, ...]


GUARDS = [
    # ---------------------------------------------------------------- never early
    Guard(
        "due-is-checked-again",
        "the clock may step back between choosing and committing",
        "poller/dispatcher.py",
        "if batch.latest_due_ms > self._clock.earliest_ms():",
        "if False:",
        (SEQUENCES,),
    ),
    Guard(
        "due-means-not-before",
        "a heap gives out nothing before its time",
        "core/due_heap.py",
        "entries[0][1].due_ms <= now_ms",
        "entries[0][1].due_ms <= now_ms + 5",
        ("tests/unit/test_heaps.py",),
    ),
    # ---------------------------------------------------------------- transactions in doubt
    Guard(
        "validate-after-init",
        "a lane that was fenced drops the ranges that others took",
        "poller/dispatcher.py",
        """                await self._journal.init()
                await self._validate()
                return await self._find(nonce)""",
        """                await self._journal.init()
                return await self._find(nonce)""",
        (LANE,),
    ),
    Guard(
        "own-journal-after-doubt",
        "whether the transaction in doubt was committed is read, not guessed",
        "poller/dispatcher.py",
        "                return await self._find(nonce)",
        "                return None",
        (LANE,),
    ),
    Guard(
        "init-after-doubt",
        "a delayed EndTxn is void once the lane was initialised again",
        "poller/dispatcher.py",
        """                await self._journal.init()
                await self._validate()
                return await self._find(nonce)""",
        """                await self._validate()
                return await self._find(nonce)""",
        (LANE,),
    ),
    Guard(
        "lost-slot-stops-the-lane",
        "without slot and session nothing is dispatched",
        "poller/dispatcher.py",
        "raise LaneLost(str(error)) from error",
        "return",
        (LANE,),
    ),
    Guard(
        "culprits-only",
        "a message that can't be sent does not take its neighbours with it",
        "poller/dispatcher.py",
        "            if index not in without:\n",
        "            if not without:\n",
        (LANE,),
    ),
    Guard(
        "sick-topics-apart",
        "a topic that can't be written to holds up nothing but its own messages",
        "poller/dispatcher.py",
        "            self._breaker.trip(topic, self._clock.monotonic())\n",
        "            pass\n",
        (LANE,),
    ),
    Guard(
        "withheld-rows-come-back",
        "a refused transaction leaves a row that a cancel had claimed",
        "poller/dispatcher.py",
        "in (*batch.withheld, *batch.expired):",
        "in batch.expired:",
        ("tests/unit/test_dispatcher.py",),
    ),
    Guard(
        "claimed-rows-stay-out",
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
        (SEQUENCES, "tests/unit/test_dispatcher.py"),
    ),
    Guard(
        "given-up-changes",
        "a cancel whose caller was told that nothing came of it changes nothing afterwards",
        "poller/dispatcher.py",
        "            if change.done.done():\n",
        "            if False:\n",
        (OUTAGES,),
    ),
    Guard(
        "backlog-in-order",
        "what waited for Kafka goes by priority and due time, over all ranges",
        "poller/dispatcher.py",
        "            await self._promote_backlog()\n",
        "",
        (OUTAGES,),
    ),
    Guard(
        "suspects-take-turns",
        "partitions that fail slowly would keep all others waiting",
        "poller/marker.py",
        "        self._suspects[partition] = self._suspects.pop(partition)",
        "        pass",
        (MARKER,),
    ),
    Guard(
        "closing-needs-an-empty-bucket",
        "a bucket with a queued row is not closed",
        "poller/dispatcher.py",
        "and not moved and not owned.queued[closing.bucket]:",
        "and not moved:",
        ("tests/unit/test_dispatcher.py",),
    ),
    Guard(
        "closing-sees-who-moves-in",
        "a row that moves into a bucket within the transaction that closes it would never be looked at",
        "poller/dispatcher.py",
        "and not moved and not owned.queued[closing.bucket]:",
        "and not owned.queued[closing.bucket]:",
        (INTERLEAVINGS,),
    ),
    Guard(
        "no-move-into-a-closed-bucket",
        "a move may have waited for the journal until nobody looks there any more",
        "poller/dispatcher.py",
        "elif not all(change.owned.is_open(row.bucket) for row in change.made):",
        "elif False:",
        (INTERLEAVINGS,),
    ),
    Guard(
        "alarmed-ranges-wait-for-none",
        "a range whose retry waits would hold up all others that stand still",
        "poller/alarms.py",
        "asyncio.create_task(self._look(owned))",
        "asyncio.create_task(self._look(owned)); await looks[owned]",
        (INTERLEAVINGS,),
    ),
    Guard(
        "late-hints-are-bounded",
        "a flood of late rows would be read all at once",
        "poller/lane.py",
        "        async with self._admissions:\n",
        "        if True:\n",
        (LATE,),
    ),
    Guard(
        "behind-an-accepted-loss",
        "an operator's checkpoint of the same epoch would stand for ever",
        "poller/takeover.py",
        "owned.sequence = max(owned.sequence, old.sequence)",
        "pass",
        (INTERLEAVINGS,),
    ),
    Guard(
        "an-unproven-init-ends-the-lane",
        "a zombie that became its slot's last producer must not commit",
        "poller/dispatcher.py",
        "                self._error = error  # this is",
        "                pass  # this is",
        (INTERLEAVINGS,),
    ),
    Guard(
        "what-is-released-is-not-tried-again",
        "a range that stood still would be served while its release is under way",
        "poller/hand_over.py",
        "                owned.phase = Phase.STOPPING  # else",
        "                await self._release(owned)  # else",
        (INTERLEAVINGS,),
    ),
    # ---------------------------------------------------------------- takeover
    Guard(
        "fence-before-replay",
        "a former owner's delayed commit can't land after its journal was read",
        "poller/takeover.py",
        """        for lane in owned.lease.predecessors:
            await self._fence(lane)
""",
        "",
        (SEQUENCES,),
    ),
    Guard(
        "replay",
        "what was dispatched and not marked is not dispatched again",
        "poller/takeover.py",
        "return [found for found in self.sections.get(range_id, ()) if found[0] > offset]",
        "return []",
        (LANE,),
    ),
    Guard(
        "replay-from-the-checkpoint",
        "the record that the checkpoint ends with is the one that it was written for",
        "poller/takeover.py",
        "            await self._verify(range_id, since, stretch.values.get(applied))\n",
        "            pass\n",
        (LANE,),
    ),
    Guard(
        "moves-are-made-again",
        "a journaled move whose row was not written is completed by the taker",
        "poller/takeover.py",
        "await successors(self._store, replay.moved)",
        "[]",
        (LATE,),
    ),
    Guard(
        "clear-predecessors-versioned",
        "a taker whose lease was taken meanwhile never begins",
        "poller/takeover.py",
        "        await self._leases.clear_predecessors(owned.lease)\n",
        "",
        (SEQUENCES,),
    ),
    Guard(
        "marks-before-checkpoint",
        "a checkpoint passes only what is stored beside the rows",
        "poller/marker.py",
        "return records[0].before if records else self._last",
        "return self._last",
        (SEQUENCES, MARKER),
    ),
    Guard(
        "marks-of-others-go-on",
        "a partition that can't be written to is tried alone",
        "poller/marker.py",
        "partition for partition in self._waiting if partition not in self._suspects",
        "partition for partition in self._waiting",
        (MARKER,),
    ),
    Guard(
        "few-suspects-at-once",
        "writes that hang do not pile up",
        "poller/marker.py",
        "            if len(self._retries) >= SUSPECTS_IN_FLIGHT_MAX:\n                return\n",
        "",
        (MARKER,),
    ),
    Guard(
        "closed-sockets",
        "a write to a closed socket must not end aiokafka's tasks",
        "adapters/kafka/connection.py",
        "\nmind_closed_sockets()\n",
        "\n",
        ("tests/unit/test_kafka_connection.py",),
    ),
    Guard(
        "release-after-marks",
        "a range is released when what it did is stored",
        "poller/hand_over.py",
        "        return stored.is_set()\n",
        "        return True\n",
        (SEQUENCES,),
    ),
    Guard(
        "shared-work-begins-afterwards",
        "a fence that began before one's lease fences nobody",
        "core/waiting.py",
        "                asked, self._asked = self._asked, []\n",
        "                asked = self._asked\n",
        (SEQUENCES,),
    ),
    # ---------------------------------------------------------------- what a range knows
    Guard(
        "forget-only-when-marked",
        "an id is kept until its fact is stored",
        "poller/owned_range.py",
        "        self._known[ref] = kind\n        for watcher",
        "        self._known[ref] = kind\n        self.marked(ref)\n        for watcher",
        (RANGE,),
    ),
    Guard(
        "forget-not-under-a-read",
        "a read that began before the mark may still bring the row",
        "poller/owned_range.py",
        "            if self._remembered[0][1] >= oldest_read:\n",
        "            if False:\n",
        (RANGE,),
    ),
    Guard(
        "far-rows-wait-for-reads",
        "also a row beyond the loaded buckets is not forgotten under a read",
        "poller/owned_range.py",
        "while self._fading and self._fading[0][0] < oldest_read:",
        "while self._fading:",
        (RANGE,),
    ),
    Guard(
        "remember-what-hints-could-revive",
        "a settled row stays known while hints of its time are believed",
        "poller/owned_range.py",
        """            if row.due_ms >= self.remembered_from_ms:
                self._known""",
        """            if False:
                self._known""",
        (RANGE, LANE),
    ),
    Guard(
        "hints-of-forgotten-times",
        "a hint is believed only if its row can't have been forgotten",
        "poller/owned_range.py",
        "if not self.is_open(row.bucket) or row.due_ms < self.remembered_from_ms:",
        "if not self.is_open(row.bucket):",
        (RANGE, LANE),
    ),
    Guard(
        "hints-wait-for-reads",
        "a hint during a read is decided after it",
        "poller/owned_range.py",
        """        if cursor is not None and cursor.reading:
            return self._hold(row, cursor)
""",
        "",
        (RANGE,),
    ),
    Guard(
        "partial-edge",
        "at the edge of a partial page facts may be unread",
        "poller/owned_range.py",
        "if cursor is not None and cursor.partial and row.due_ms == cursor.edge_ms:",
        "if False:",
        (RANGE,),
    ),
    Guard(
        "known-rows-once",
        "a row that comes twice is queued once",
        "poller/owned_range.py",
        """        if row.ref in self._known:
            return False
""",
        "",
        (RANGE,),
    ),
    Guard(
        "low-due-stops-at-queued-rows",
        "what is not journaled is loaded again by a taker",
        "poller/owned_range.py",
        "return min(read_ms, limit_ms, arriving, ref_due_ms(undone[0]) if undone else read_ms)",
        "return min(read_ms, limit_ms, arriving)",
        (RANGE,),
    ),
    Guard(
        "bounded-hints",
        "hints beyond the budget are left to the loader",
        "poller/owned_range.py",
        "        if self.spare_rows:\n",
        "        if True:\n",
        (RANGE, LANE),
    ),
    Guard(
        "bounded-loading",
        "the loader stays within the budget",
        "poller/loader.py",
        "return held + self._page_rows(owned) <= rows_max and self.resident_bytes() < bytes_max",
        "return True",
        (LANE,),
    ),
    Guard(
        "what-failed-leaves-room",
        "partitions that can't be read would take all reads",
        "poller/loader.py",
        "            if cursor.retry_at and not self._may_retry(cursor):\n",
        "            if False:\n",
        (OUTAGES,),
    ),
    # ---------------------------------------------------------------- late and lost
    Guard(
        "rescan",
        "a lost hint is made good",
        "poller/rescanner.py",
        "            counts = await asyncio.gather(*(self.scan(owned, gate) for owned in active))\n",
        "            counts = [0 for owned in active if gate is None]\n",
        (LANE,),
    ),
    Guard(
        "last-read-before-closing",
        "a row that nobody knew is found before its bucket is closed",
        "poller/closer.py",
        "            found = await admit_pending(owned, self._store, self._clock, bucket, start_ms, end_ms)\n",
        "            found = 0\n",
        (SEQUENCES,),
    ),
    Guard(
        "late-rows-move",
        "into a closed bucket nothing is admitted any more",
        "poller/changes.py",
        "            if owned.is_open(row.bucket):\n",
        "            if True:\n",
        (LANE,),
    ),
    Guard(
        "closing-bars-admission",
        "nothing is admitted to a bucket whose closing is under way",
        "poller/owned_range.py",
        "return bucket >= self.buckets.first and bucket != self.closing",
        "return bucket >= self.buckets.first",
        (LATE,),
    ),
    Guard(
        "late-rows-are-answered-by-the-journal",
        "a former owner's memory can't answer for a row whose bucket its heir has closed",
        "poller/changes.py",
        "return await self._settled(owned, stored.row.ref)",
        "return HintAnswer.TAKEN",
        (LATE,),
    ),
    Guard(
        "successors-are-queued-at-the-commit",
        "a moved row is dispatched also if whoever asked for it has gone",
        "poller/dispatcher.py",
        "                    owned.move_in(row)\n",
        "                    pass\n",
        (LATE,),
    ),
    Guard(
        "low-due-stops-at-rows-that-are-not-stored",
        "a moved row whose bucket was begun before it was stored is loaded again by a taker",
        "poller/owned_range.py",
        "return min(read_ms, limit_ms, arriving, ref_due_ms(undone[0]) if undone else read_ms)",
        "return min(read_ms, limit_ms, ref_due_ms(undone[0]) if undone else read_ms)",
        (CHANGE,),
    ),
    Guard(
        "a-row-that-is-stored-late-is-read",
        "its bucket was read before it was stored",
        "poller/owned_range.py",
        "        if arriving.pop(row.ref, None) is None:\n            return\n",
        "        arriving.pop(row.ref, None)\n        return\n",
        (CHANGE,),
    ),
    Guard(
        "a-place-is-used-once",
        "a row at a place where the task has been would be one that is settled",
        "poller/changes.py",
        "await self._store.get(due_ms, row.namespace_id, row.task_id) is None",
        "True",
        (CHANGE,),
    ),
    Guard(
        "a-change-that-was-made-is-made",
        "who asks again because an answer was lost must not think that somebody else came before",
        "poller/changes.py",
        "made = change.generation == row.generation - 1 and body == row.body",
        "made = False",
        (CHANGE,),
    ),
    Guard(
        "a-generation-that-the-store-does-not-show-yet-counts",
        "else a change is refused for another generation than the newest one",
        "poller/changes.py",
        "for stage in Stage)",
        "for stage in (Stage.OUTCOME, Stage.REDRIVE))",
        (CHANGE,),
    ),
    Guard(
        "the-journal-carries-the-changed-body",
        "who takes the range would write the old body at the new place",
        "poller/batch.py",
        "new_due_ms=due, body=change.body)",
        "new_due_ms=due)",
        (CHANGE,),
    ),
    Guard(
        "home-rows-name-the-newest-place",
        "else look-ups follow every move that a task has made",
        "poller/batch.py",
        "                if pointer is not None:\n",
        "                if False:\n",
        (CHANGE,),
    ),
    Guard(
        "bodies-of-a-record-are-bounded",
        "a record has to fit into a Kafka message",
        "poller/dispatcher.py",
        "if batch.body_bytes and batch.body_bytes + self._mutations[0].size > RECORD_BODIES_BYTES_MAX:",
        "if False:",
        (CHANGE,),
    ),
    Guard(
        "a-key-holds-what-it-was-used-for",
        "another task under the same key would pass for the first",
        "service/idempotency.py",
        "if standing.digest != claim.digest:",
        "if False:",
        (KEYS,),
    ),
    Guard(
        "a-key-holds-id-and-due",
        "the same create would be another task",
        "service/idempotency.py",
        "if standing == claim:",
        "if True:",
        (KEYS,),
    ),
    Guard(
        "a-scan-catches-up",
        "after an outage of the store the scan begins where it left off",
        "poller/rescanner.py",
        "from_ms, until_ms = min(now_ms, owned.scanned_ms) - REMEMBER_MS,",
        "from_ms, until_ms = now_ms - REMEMBER_MS,",
        (LATE,),
    ),
    Guard(
        "what-no-scan-saw-is-not-done",
        "a taker looks where no scan has succeeded",
        "poller/owned_range.py",
        "limit_ms = min(now_ms, self.scanned_ms) - REMEMBER_MS",
        "limit_ms = now_ms - REMEMBER_MS",
        (RANGE, LATE),
    ),
    Guard(
        "held-hints-survive-a-read",
        "a hint that was taken during a read is known afterwards, or its place is read again",
        "poller/owned_range.py",
        "                self.buckets.rewind(row.due_ms, cursor.shard)\n\n    def admit",
        "                pass\n\n    def admit",
        (RANGE,),
    ),
    Guard(
        "epochs-are-not-given-twice",
        "a checkpoint of one's own epoch that is somebody else's is not gone past",
        "poller/takeover.py",
        "        if old.epoch >= owned.epoch and not ours:\n",
        "        if False:\n",
        (LATE,),
    ),
    Guard(
        "hand-over-needs-the-store",
        "a range that can't be handed over goes on being served",
        "poller/hand_over.py",
        "if owned.phase is not Phase.ACTIVE or await self._prepared(owned):",
        "if owned.phase is not Phase.ACTIVE or (await self._prepared(owned) or True):",
        (LATE,),
    ),
    Guard(
        "the-present-before-the-backlog",
        "a day's backlog does not hold up what is due now",
        "poller/open_buckets.py",
        "        for bucket in range(present, bucket_of(until_ms) + 1):\n            self._begin(bucket)\n",
        "",
        (RANGE, LATE),
    ),
    Guard(
        "buckets-open-again",
        "what a clock that was ahead has closed is open again when it is set right",
        "poller/loader.py",
        "                if owned.reopen(now_ms):\n",
        "                if False:\n",
        (RACES,),
    ),
    Guard(
        "future-rows-go-back",
        "a row that a clock step has put into the future does not hold up the others",
        "poller/dispatcher.py",
        "            elif row.due_ms > batch.at_ms:\n",
        "            elif False:\n",
        (RACES,),
    ),
    Guard(
        "the-present-is-whole-buckets",
        "the bucket of now is not taken for backlog late in its minute",
        "poller/loader.py",
        "waiting += [(c.bucket < present, c.edge_ms, c.shard, owned, c)",
        "waiting += [(c.edge_ms < present_ms, c.edge_ms, c.shard, owned, c)",
        (RACES,),
    ),
    Guard(
        "cancel-by-the-journal",
        "a cancel is confirmed by a committed record only",
        "poller/dispatcher.py",
        "            claimed.add(change.ref)\n            batch.mutations.append(change)",
        "            claimed.add(change.ref)\n            change.answer(change.kind, 0)\n"
        "            batch.mutations.append(change)",
        (LANE,),
    ),
    Guard(
        "waiting-changes-are-refused",
        "who waits for a lane that has ended is sent on",
        "poller/lane.py",
        "            self.dispatcher.abandon()\n",
        "",
        (LANE,),
    ),
]
