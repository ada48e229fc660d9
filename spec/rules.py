"""The rules of the protocol: each is a guard that can be dropped, and what happens without it.

A rule names the scenario in which dropping it has a counter-example. One that has none there names the reason why it is
kept all the same, or why no model can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """`says`: one sentence. Either `scenario` shows what happens without it, or `because` says why nothing does."""

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
    Rule(
        "validate-slot",
        "That validation covers slot and session, not only lane and epoch of each range.",
        because="Epochs keep a zombie from dispatching. Slot and session make it end, or it would fence its successor "
        "in the slot again after every init.",
    ),
    Rule("validate-epoch", "It proves the epoch of each lease, not only that it is the process's.", "two lanes"),
    Rule("init-on-unknown", "An EndTxn of unknown outcome is followed by an init of the own lane.", "takeover"),
    Rule("read-own-journal", "After an init the own journal tells what became of a transaction in doubt.", "takeover"),
    Rule("own-journal-after-init", "The own journal is read after that init, not before it.", "takeover"),
    Rule("one-transaction", "Message and journal record are committed in one transaction (I5).", "takeover"),
    Rule("answers-after-replay", "Before the replay has ended nothing is answered or changed for a range.", "cancel"),
    Rule("cancel-through-journal", "A cancel is confirmed only when its journal record is committed.", "cancel"),
    Rule("forget-only-when-marked", "An id is forgotten only when it is marked.", "rescan"),
    Rule("forget-not-under-read", "... and no read that began before the mark is in flight.", "rescan"),
    Rule("rescan", "What nobody told of is found by reading again.", "hints"),
    Rule("release-versioned", "Released is set only by whoever still holds the lease.", "release"),
    Rule(
        "release-after-marks",
        "Released is set only after marks and checkpoint are stored.",
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

RULES = {rule.name: rule for rule in _OWNERSHIP}
