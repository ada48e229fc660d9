"""When something that failed is tried again: exponential back-off with full jitter, the same at each computation."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

_DOUBLINGS_MAX = 62
"""From 1 ms on that is longer than any limit, and a shift by more would cost memory for nothing."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how long. Lengths in ms; `tries_max` counts the first one, too."""

    tries_max: int = 10
    delay_ms_first: int = 1_000
    """The longest pause behind the first try; it doubles with each further one."""
    delay_ms_max: int = 300_000
    elapsed_ms_max: int = 3_600_000
    """No try begins later than this after the first one."""


def delay_ms(policy: RetryPolicy, attempt: int, key: bytes) -> int:
    """The pause behind the `attempt`th failure (from 1 on): 0 to min(`delay_ms_max`, first * 2 ** (attempt - 1)).

    Where in between, a hash of `key` and `attempt` draws, evenly: whoever computes it again gets the same, and what
    failed together is not tried again together. `key` names what failed: task, generation and attempt.
    """
    assert attempt >= 1, attempt
    ceiling = min(policy.delay_ms_max, policy.delay_ms_first << min(attempt - 1, _DOUBLINGS_MAX))
    digest = blake2b(key + b"/%d" % attempt, digest_size=8).digest()
    return int.from_bytes(digest, "big") * (ceiling + 1) >> 64


def next_try_ms(policy: RetryPolicy, tries: int, elapsed_ms: int, least_ms: int, key: bytes) -> int | None:
    """The pause before another try, at least `least_ms` (what the other side asked for); None: there is none any more.

    `tries` have failed, the last of them `elapsed_ms` after the first began.
    """
    if tries >= policy.tries_max:
        return None
    pause_ms = least_ms + delay_ms(policy, tries, key)
    return pause_ms if elapsed_ms + pause_ms <= policy.elapsed_ms_max else None
