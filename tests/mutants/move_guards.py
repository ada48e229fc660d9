"""The guards of planned moves between living lanes."""

from __future__ import annotations

from .guards import RANGE, Guard

WARM, FOLLOWING = "tests/unit/test_lane_warm.py", "tests/unit/test_coordinator_follower.py"

MOVE_GUARDS = [
    # ---------------------------------------------------------------- giving
    Guard(
        "a-doubtful-release-is-the-end",
        "it may have been carried out, and the next owner fences nobody",
        "poller/hand_over.py",
        "                pause = min(2 * pause, RETRY_S_MAX)\n                continue\n",
        "                owned.phase = Phase.ACTIVE\n                return\n",
        (WARM,),
    ),
    Guard(
        "nothing-stops-for-what-is-away",
        "with the lease service away a range goes on, as nobody could take it",
        "poller/hand_over.py",
        "if owned.range_id not in await self._leases.validate([owned.lease]):",
        "if False:",
        (WARM,),
    ),
    Guard(
        "release-at-a-transactions-end",
        "what is under way may still be committed after the release",
        "poller/hand_over.py",
        "            async with self._dispatcher.turn:\n                pass\n",
        "            pass\n",
        (WARM,),
    ),
    Guard(
        "a-stop-that-is-cancelled-goes-on",
        "a range that is not released must be served",
        "poller/hand_over.py",
        "                owned.phase = Phase.ACTIVE\n                self._dispatcher.wake.set()\n            raise\n",
        "                pass\n            raise\n",
        (WARM,),
    ),
    # ---------------------------------------------------------------- taking
    Guard(
        "replay-from-the-preloads-checkpoint",
        "what was marked since was read without its mark, and a later checkpoint passes it",
        "poller/takeover.py",
        "self._replay(owned.range_id, since or checkpoint, checkpoint)",
        "self._replay(owned.range_id, checkpoint, checkpoint)",
        (WARM,),
    ),
    Guard(
        "a-preload-is-of-one-epoch",
        "another owner's journal is not the one that is replayed",
        "poller/takeover.py",
        "if since is not None and not _continues(checkpoint, since):",
        "if False:",
        (WARM,),
    ),
    Guard(
        "what-came-meanwhile-is-looked-for-at-once",
        "it was hinted to the former owner only",
        "poller/lane.py",
        "if since is not None and await self._rescanner.scan(owned):",
        "if False:",
        (WARM,),
    ),
    Guard(
        "the-scan-begins-before-the-preload",
        "what the former owner held back is found however long ago it was due",
        "poller/owned_range.py",
        "        self.remembered_from_ms = self.served_from_ms = now_ms",
        "        self.scanned_ms = self.remembered_from_ms = self.served_from_ms = now_ms",
        (WARM,),
    ),
    Guard(
        "old-hints-are-not-taken",
        "whoever takes the range would not look for it there",
        "poller/lane.py",
        "owned.hint(row) if row.due_ms >= trusted_ms else None",
        "owned.hint(row)",
        (WARM,),
    ),
    Guard(
        "replayed-rows-are-not-queued",
        "their bucket would never close",
        "poller/owned_range.py",
        "            self.queued[bucket_of(ref_due_ms(ref))] -= 1\n        self._known[ref] = kind + MARKED",
        "            pass\n        self._known[ref] = kind + MARKED",
        (WARM, RANGE),
    ),
    Guard(
        "replayed-rows-outlast-earlier-reads",
        "a read from before the lease may still bring them without their marks",
        "poller/owned_range.py",
        "heappush(self._remembered, (ref, self._read_number))\n\n    def marked",
        "heappush(self._remembered, (ref, 0))\n\n    def marked",
        (WARM, RANGE),
    ),
    Guard(
        "what-is-not-open-takes-nothing",
        "a read that saw a row after the last one of its bucket queues it beside the closing",
        "poller/owned_range.py",
        "        if not self.is_open(row.bucket):\n            return False  #",
        "        if False:\n            return False  #",
        (RANGE,),
    ),
    Guard(
        "closed-meanwhile-is-not-queued",
        "what came late to a bucket that was closed is its creator's to admit",
        "poller/owned_range.py",
        "                if self._known.get(ref) == QUEUED:\n                    del self._known[ref]\n",
        "                pass\n",
        (RANGE,),
    ),
    # ---------------------------------------------------------------- agreeing
    Guard(
        "who-leaves-is-drained",
        "its ranges are read ahead by others before it ends",
        "coordinator/standing.py",
        "if order.drained or member.leaving:",
        "if order.drained:",
        ("tests/unit/test_coordinator.py",),
    ),
    Guard(
        "an-owner-waits-for-the-word",
        "else every move is cold",
        "coordinator/warm_moves.py",
        "            if lane not in talking or self._ready.get(range_id) == lane or now - since >= READY_WAIT_S_MAX\n",
        "",
        (FOLLOWING,),
    ),
    Guard(
        "an-owner-waits-for-nobody-who-can-not-speak",
        "a dead lane will never be ready",
        "coordinator/warm_moves.py",
        "if lane not in talking or ",
        "if ",
        (FOLLOWING,),
    ),
    Guard(
        "an-owner-does-not-wait-for-ever",
        "nothing depends on the word",
        "coordinator/warm_moves.py",
        " or now - since >= READY_WAIT_S_MAX",
        "",
        (FOLLOWING,),
    ),
    Guard(
        "the-word-is-of-one-lane",
        "another lane's preload is none of this one's",
        "coordinator/warm_moves.py",
        "self._ready.get(range_id) == lane",
        "range_id in self._ready",
        (FOLLOWING,),
    ),
]
