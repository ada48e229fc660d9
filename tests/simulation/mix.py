"""What one seed does more of. Even seeds do a little of everything; odd ones draw a mix of their own, in which a few
kinds of faults and requests meet each other far more often (swarm testing).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

KINDS = {
    "crash": 2, "crash_at_failpoint": 1, "crash_soon": 1, "pause": 1, "stall": 4, "cut": 2, "isolate": 1, "outage": 1,
    "expire": 1, "spurious_fence": 1, "replica_down": 1, "graceful_stop": 2, "shuffle": 2, "sick_topic": 1, "object": 1,
    "restore_zookeeper": 1, "shift_clock": 1, "mute": 2, "doom_a_taker": 1,
}  # fmt: skip
"""Kinds of faults, and how often each is drawn."""
EVERYTHING = tuple(kind for kind, weight in KINDS.items() for _ in range(weight))
THEMES = (
    ("stall",),
    ("stall", "stall", "crash_at_failpoint"),
    ("stall", "crash_at_failpoint"),
    ("stall", "shuffle"),
    ("shuffle", "shuffle", "expire", "crash_soon"),
    ("shuffle", "shuffle", "crash_at_failpoint", "graceful_stop"),
    ("mute",),
    ("mute",),
    ("mute", "replica_down"),
    ("stall", "restore_zookeeper"),
)
"""Kinds that belong together: takeovers that meet each other, moves, hints that get lost."""
STALLED_AT = (
    "dispatch.produced", "dispatch.produced", "dispatch.produced", "dispatch.committed", "takeover.leased",
    "takeover.checkpoint-read", "takeover.fenced", "takeover.replayed", "takeover.checkpoint-written", "close.read",
    "hand-over.stored", "hand-over.stopped", "preload.loaded", "move.row-written", "create.stored", "takeover.loaded",
)  # fmt: skip
WAKENED_AT = ("takeover.leased", "takeover.checkpoint-read", "takeover.fenced", "takeover.replayed", "takeover.cleared")
"""When another process comes there: while it takes ranges over from the one that stalls, perhaps."""
TAKERS_AT = ("takeover.leased", "takeover.checkpoint-read", "takeover.fenced", "takeover.replayed")
DOOMED_AT = ("takeover.leased", "takeover.checkpoint-read", "takeover.fenced", "takeover.cleared")


@dataclass(frozen=True, slots=True)
class Mix:
    """Each entry of a tuple is as likely as any other."""

    faults: tuple[int, ...] = (0, 2, 4, 7, 10, 10)
    """How many there are in a run."""
    kinds: tuple[str, ...] = EVERYTHING
    pollers: bool = False
    """Only processes that own ranges stall, or are killed at failpoints."""
    stalled_at: tuple[str, ...] = STALLED_AT
    stalls_s: tuple[tuple[float, float], ...] = ((0.05, 1.5), (2.0, 12.0))
    mutes_s: tuple[float, float] = (1.0, 6.0)
    restarts_s: tuple[float, float] = (0.2, 15.0)
    """How long after its death somebody starts a process again."""
    awaits: float = 0.7
    """How likely one that stalls goes on when another process comes to some point of a takeover."""
    wakened_at: tuple[str, ...] = WAKENED_AT
    session_ends: float = 0.5
    """How likely the sessions end of one that stalls."""
    doomed_at: tuple[str, ...] = ()
    """Where processes are killed; (): at any failpoint, and others at once, so that there is something to take over."""
    slow_s_max: float = 0.08
    """Of a message that is slow."""
    relays: float = 0.0
    """How likely that other process stalls at this point, too, for a moment: then the one that goes on is ahead."""
    relays_s: tuple[float, float] = (0.02, 1.5)
    pollers_of: tuple[int, ...] = (2, 2, 3)
    """How many processes own ranges."""
    graces_s: tuple[float, ...] = (1.0, 3.0, 8.0)
    """How long a bucket stays open after its end."""
    trims_s: float = 8.0
    """Between two looks of whoever trims the journal."""
    trimmers: tuple[str, ...] = ("", "", "a", "b")
    """Who that is."""
    keeps_s: tuple[float, ...] = (0.5, 4.0)
    """How long it leaves what is not needed any more."""
    cancels: float = 0.3
    late: float = 0.2
    late_s: tuple[float, float] = (5.0, 50.0)
    """How much later than it should have a create is served."""
    early_in_minutes: bool = False
    """Much is due when a minute begins, and goes wrong long after."""
    begins_s: tuple[float, float] = (30.0, 59.5)
    """Into a minute."""
    doubled: float = 0.0
    """How likely a cancel is asked for twice at the same time."""
    changes: float = 0.2
    keys: float = 0.15
    slow_reads: float = 0.0
    """How likely the store's answer to a read is under way for long."""
    chaos_s: float = 34.0
    """Faults come before this, and most of what there is to do."""


def mix_of(seed: int) -> Mix:
    """That of a seed."""
    if seed % 2 == 0:
        return Mix()
    rng = random.Random(seed ^ 0x31337)
    mix = rng.choice((_any, _any, _any, _any, _takers_that_die, _takers_that_overtake, _moves_while_trimming, _late))(
        rng
    )
    pick = rng.choice
    return replace(mix, changes=pick((0.1, 0.2, 0.9)), keys=pick((0.0, 0.1, 0.5)))


def _any(rng: random.Random) -> Mix:
    """A few kinds of faults, at one place."""
    pick = rng.choice
    several = tuple(pick(EVERYTHING) for _ in range(rng.randrange(2, 5)))
    return Mix(
        faults=(4, 7, 10),
        kinds=pick((several, pick(THEMES))),
        pollers=True,
        stalled_at=(pick(("dispatch.produced", "preload.loaded", pick(STALLED_AT))),),
        stalls_s=((2.0, 12.0),),
        mutes_s=(2.0, 12.0),
        restarts_s=pick(((0.2, 15.0), (0.1, 1.0))),
        awaits=0.9,
        wakened_at=(pick((*WAKENED_AT, "takeover.cleared")),),
        session_ends=pick((0.0, 0.9, 0.9)),
        doomed_at=pick(((), (pick(DOOMED_AT),), DOOMED_AT)),
        slow_s_max=pick((0.08, 0.08, 1.0)),
        cancels=pick((0.1, 0.3, 0.9)),
        late=pick((0.0, 0.2, 0.8, 0.8)),
        doubled=pick((0.0, 0.6)),
        chaos_s=pick((34.0, 34.0, 50.0)),
        slow_reads=pick((0.0, 0.0, 0.3)),
    )


def _takers_that_die(rng: random.Random) -> Mix:
    """An owner stalls with a transaction open, whoever takes its ranges dies half-way, and a third one takes them."""
    pick = rng.choice
    return Mix(
        faults=(7, 10, 13),
        kinds=("stall", "doom_a_taker"),
        pollers=True,
        pollers_of=(3,),
        stalled_at=pick((("dispatch.produced",), ("dispatch.produced", pick(STALLED_AT)))),
        stalls_s=((2.0, 8.0),),
        restarts_s=pick(((0.2, 15.0), (0.1, 1.0))),
        awaits=0.9,
        wakened_at=pick((("takeover.replayed",), (pick(WAKENED_AT), "takeover.replayed"))),
        session_ends=0.9,
        doomed_at=pick((DOOMED_AT, DOOMED_AT[:2], ("takeover.cleared",))),
        cancels=pick((0.1, 0.3)),
        late=0.0,
    )


def _takers_that_overtake(rng: random.Random) -> Mix:
    """A taker stalls and loses its lease; the next one stalls in turn, and the former goes on meanwhile."""
    pick = rng.choice
    return Mix(
        faults=(7, 10, 13),
        kinds=pick((("stall", "shuffle"), ("stall", "stall", "crash"), ("stall", "expire", "shuffle"))),
        pollers=True,
        pollers_of=(3,),
        stalled_at=pick((TAKERS_AT, (pick(TAKERS_AT),))),
        stalls_s=((2.0, 8.0),),
        restarts_s=pick(((0.2, 15.0), (0.1, 1.0))),
        awaits=1.0,
        wakened_at=(pick(WAKENED_AT), "takeover.checkpoint-read"),
        relays=0.8,
        session_ends=0.95,
        late=0.0,
        slow_s_max=pick((0.08, 0.3)),
    )


def _moves_while_trimming(rng: random.Random) -> Mix:
    """Ranges move to and fro, slowly, while the journal is trimmed behind all that is not needed."""
    pick = rng.choice
    return Mix(
        faults=(10, 13),
        kinds=pick((("shuffle", "shuffle", "stall"), ("shuffle", "stall", "graceful_stop"))),
        pollers=True,
        stalled_at=("hand-over.stored", "hand-over.stopped", "hand-over.released", "preload.loaded", "takeover.leased"),
        stalls_s=((0.3, 1.9), (1.0, 4.0)),
        awaits=0.0,
        session_ends=0.0,
        trims_s=pick((0.3, 0.8)),
        trimmers=("a", "b"),
        keeps_s=(0.2, 1.0),
        slow_s_max=pick((0.08, 0.5)),
        late=0.0,
    )


def _late(rng: random.Random) -> Mix:
    """Creates that come so late that no scan finds them, by apis whose hints get lost."""
    pick = rng.choice
    return Mix(
        faults=(10, 13),
        kinds=("mute", "mute", pick(EVERYTHING)),
        mutes_s=pick(((0.5, 3.0), (2.0, 12.0))),
        restarts_s=(0.1, 1.0),
        graces_s=(8.0, 25.0, 25.0),
        late=0.9,
        late_s=pick(((30.0, 45.0), (20.0, 50.0))),
        early_in_minutes=True,
        begins_s=(50.0, 59.5),
        cancels=0.1,
        chaos_s=50.0,
    )


SWARM = (_any, _any, _any, _any, _takers_that_die, _takers_that_overtake, _moves_while_trimming, _late)
"""Each as likely as any other."""
