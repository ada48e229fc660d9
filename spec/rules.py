"""The rules of the protocol: each is a guard that can be dropped, and what happens without it.

A rule names the scenario in which it is dropped, and what goes wrong there is found. Where nothing does, or where
there is no scenario since the model does not go that deep, it says why, and why the rule is kept all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """`says`: one sentence. `scenario`: where it is dropped ("": outside the model). `because`: why in vain."""

    name: str
    says: str
    scenario: str = ""
    because: str = ""


class Rules:
    """The rules that a model keeps: all but those that are dropped."""

    def __init__(self, dropped: Iterable[str] = ()) -> None:
        self.dropped = frozenset(dropped)
        unknown = self.dropped - RULES.keys()
        if unknown:
            raise ValueError(f"no such rule: {', '.join(sorted(unknown))}; --list shows them")

    def keeps(self, name: str) -> bool:
        """True unless the rule is dropped."""
        assert name in RULES, name
        return name not in self.dropped


_OWNERSHIP = [
    Rule(
        "all-predecessors", "All unfenced predecessors are kept and fenced, not only the last owner.", "there and back"
    ),
    Rule("fence-before-replay", "Predecessors are fenced before the journal is replayed, not after it.", "takeover"),
    Rule("fence-own-lane", "A taker that finds its own lane among the predecessors inits it, too.", "own lane"),
    Rule(
        "replay-the-checkpoints-lane",
        "The lane that the checkpoint names is replayed even after a clean release.",
        "warm",
    ),
    Rule("marks-before-checkpoint", "A checkpoint passes only what is marked.", "takeover"),
    Rule("checkpoint-order", "Checkpoints are ordered by epoch and number, not by their arrival.", "there and back"),
    Rule("checkpoint-before-dispatch", "A new owner stores its checkpoint before its first dispatch.", "own lane"),
    Rule("clear-versioned", "The first dispatch needs the versioned clearing of the predecessors.", "there and back"),
    Rule("clear-after-fence", "Predecessors are cleared only after all are fenced.", "there and back"),
    Rule(
        "clear-after-checkpoint",
        "Predecessors are cleared only after the new checkpoint is stored.",
        "own lane",
        because="Until its checkpoint is stored a taker dispatches nothing, and the next one replays from the old one; "
        "all that wrote there are fenced. It is kept as the one write to which the first dispatch is tied.",
    ),
    Rule(
        "epochs-above-checkpoints",
        "A taker that finds a checkpoint of its epoch or a later one begins again.",
        "restored",
    ),
    Rule(
        "init-then-validate", "After every init slot and ranges are validated before the first transaction.", "own lane"
    ),
    Rule("validate-ranges", "That validation covers every range of the lane.", "own lane"),
    Rule(
        "validate-slot",
        "... and slot and session, not only lane and epoch of each range.",
        "one slot",
        because="Epochs keep a zombie from dispatching. Slot and session make it end, or it would fence its successor "
        "in the slot again after every init.",
    ),
    Rule("validate-epoch", "It proves the epoch of each lease, not only that it is the process's.", "two lanes"),
    Rule("init-on-unknown", "An EndTxn of unknown outcome is followed by an init of the own lane.", "takeover"),
    Rule("read-own-journal", "After an init the own journal tells what became of a transaction in doubt.", "takeover"),
    Rule("own-journal-after-init", "The own journal is read after that init, not before it.", "takeover"),
    Rule("one-transaction", "Message and journal record are committed in one transaction (I5).", "takeover"),
    Rule("one-fate-per-transaction", "One transaction settles a task once: cancel or dispatch, not both.", "cancel"),
    Rule("answers-after-replay", "Before the replay has ended nothing is answered or changed for a range.", "cancel"),
    Rule("cancel-through-journal", "A cancel is confirmed only when its journal record is committed.", "cancel"),
    Rule("forget-only-when-marked", "An id is forgotten only when it is marked.", "rescan"),
    Rule("forget-not-under-read", "... and no read that began before the mark is in flight.", "rescan"),
    Rule("rescan", "What nobody told of is found by reading again.", "hints"),
    Rule("release-versioned", "Released is set only by whoever still holds the lease.", "release"),
    Rule(
        "release-after-marks",
        "Released is set only after marks and checkpoint are stored.",
        "release",
        because="The taker replays from the checkpoint in any case and marks what it finds there. It is kept to "
        "make that replay short.",
    ),
    Rule("release-at-transactions-end", "A range is released between transactions, with none in doubt.", "release"),
    Rule(
        "release-in-doubt",
        "After a release of unknown outcome the range goes on only with a proof of the lease.",
        "release",
    ),
    Rule("preload-checkpoint-first", "A preload reads the checkpoint first, then the rows.", "warm"),
    Rule(
        "superseded-preload-is-void",
        "A preload is thrown away if the checkpoint read after the lease has another epoch.",
        "warm",
    ),
    Rule("replay-from-the-preloads-checkpoint", "Else replay starts at the offset read before the preload.", "warm"),
    Rule(
        "rescan-behind-preload",
        "Rows stored since the preload are looked for, although its cursor has passed them.",
        "warm creates",
    ),
    Rule(
        "trim-behind-checkpoints",
        "A journal is trimmed only behind the lowest checkpoint that points there.",
        "trimming",
    ),
    Rule("trimmer-takes-end-first", "The trimmer takes the journal's end before it reads the checkpoints.", "trimming"),
    Rule("trim-only-what-is-old", "Only what is older than any write under way is trimmed.", "trimming"),
    Rule(
        "trimmed-replay-begins-again",
        "A replay whose start was trimmed meanwhile reads checkpoint and rows again.",
        "trimming, warm",
    ),
]

_ADMISSION = [
    Rule("rescan-the-present", "The present is read again every 5 s: a hint may be lost.", "admission"),
    Rule("scan-from-the-last-success", "A scan begins 30 s before the last one that succeeded began.", "admission"),
    Rule("low-due-trails", "A checkpoint's low due trails the last scan by 30 s.", "admission"),
    Rule("unanswered-only-before-20s", "A create is acknowledged without an answer until 20 s after due.", "admission"),
    Rule("memory-answers-only-before-20s", "So long, too, an owner answers hints from its memory.", "admission"),
    Rule("taken-by-record", "Later, taken is proved by a committed record, not by a memory.", "admission"),
    Rule(
        "no-relocation-by-itself", "A create that is late never writes its row to another place by itself.", "admission"
    ),
    Rule(
        "closed-bucket-moves", "Into a closed bucket nothing is admitted: the owner moves the row to now.", "admission"
    ),
    Rule("nothing-admitted-while-closing", "... nor between its last read and the commit of its close.", "admission"),
    Rule("closed-means-settled", "A bucket is closed when everything in it is settled.", "admission"),
    Rule(
        "last-read",
        "A bucket is read as a whole before it is closed.",
        "admission",
        because="As long as scans succeed, they find whatever is acknowledged. The last read finds what was stored "
        "later by a create that was given up, and what an outage of the store kept from the scans.",
    ),
]

_CHANGES = [
    Rule("change-through-journal", "A cancel or a move is confirmed only by its committed record.", "cancel and move"),
    Rule("facts-after-their-record", "Facts are stored after their record, never ahead of it.", "cancel and move"),
    Rule("replay-writes-successors", "A taker writes the rows of moves and retries again.", "cancel and move"),
    Rule("first-outcome-wins", "The first outcome journaled for an attempt counts, a later one is told so.", "outcome"),
    Rule("outcome-through-journal", "An outcome is confirmed only by its committed record.", "outcome"),
    Rule("retry-is-deterministic", "The retry's row follows from the record alone.", "outcome"),
    Rule(
        "successor-before-its-pointer",
        "A move's new row is stored before the fact that points to it.",
        because="Both come from one record, and a taker writes both again: nothing is lost either way. It is kept for "
        "readers, who would follow a pointer to nothing.",
    ),
    Rule(
        "answer-after-the-row",
        "A move is answered after its new row is stored.",
        because="The record alone makes it final. It is kept so that whoever was answered can read the new row.",
    ),
]

_PARKING = [
    Rule("park-through-journal", "A task is parked by a committed record, not by writing its chunk.", "parking"),
    Rule("parked-row-is-done", "What is parked is dispatched from its chunk only.", "parking"),
    Rule("cursor-behind-journal", "A chunk's cursor moves after the dispatch is committed.", "parking"),
    Rule("checkpoint-behind-chunks", "A checkpoint passes a record when its chunk or cursor is stored.", "parking"),
    Rule("replay-writes-chunks", "A taker writes the chunks that the journal names again.", "parking"),
    Rule("replay-moves-cursors", "... and moves cursors to where the journal says.", "parking"),
]

_OUTSIDE = [
    Rule(
        "due-before-commit",
        "The clock's earliest reading is checked once more before a commit (I2).",
        because="Time is a small number here, the same for everybody. Clocks and their errors are for the simulation.",
    ),
    Rule(
        "sends-awaited",
        "Every send of a transaction is awaited before it ends.",
        because="A transaction is one step here. What a producer does in it is for the journal's conformance suite.",
    ),
    Rule(
        "hints-wait-for-reads",
        "A hint that comes while its partition is read waits for that read's end.",
        because="A read of a partition is one step here, and the rescan finds what a hint misses. Cursors are searched "
        "in tests/unit/test_owned_range.py.",
    ),
    Rule(
        "journal-proved-by-hash",
        "A checkpoint holds the hash of its last record: another journal stops the range.",
        because="Kafka loses nothing here. A recreated or truncated topic is played in the unit tests of the takeover.",
    ),
    Rule(
        "lease-read-back",
        "After a lost connection a lease of one's own session counts as taken.",
        because="Each operation of ZooKeeper is one step here. A lease that is taken without being known stands in the "
        "way until its session ends, and its lane is a predecessor: that is what the crash of a taker is here.",
    ),
]

_ALL = [*_OWNERSHIP, *_ADMISSION, *_CHANGES, *_PARKING, *_OUTSIDE]
RULES = {rule.name: rule for rule in _ALL}
assert len(RULES) == len(_ALL), "a name is used twice"
