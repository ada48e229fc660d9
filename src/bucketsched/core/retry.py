"""When something that failed is tried again: exponential back-off with full jitter, the same at each computation.

Full jitter: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and for how long. Lengths in ms; `tries_max` counts the first one, too."""

    tries_max: int = 10
    delay_ms_first: int = 1_000
    """The longest pause behind the first try; it grows by `multiplier` with each further one."""
    delay_ms_max: int = 300_000
    elapsed_ms_max: int = 3_600_000
    """No try begins later than this after the first one was due."""
    multiplier: float = 2.0
    """At least 1."""
    final_errors: tuple[str, ...] = ()
    """Types of errors after which there is no other try."""

    def ceiling_ms(self, attempt: int) -> int:
        """The longest pause behind the `attempt`th failure, whatever its number: min(`delay_ms_max`,
        first * multiplier ** (attempt - 1))."""
        if self.delay_ms_first >= self.delay_ms_max or self.delay_ms_first <= 0:
            return min(self.delay_ms_first, self.delay_ms_max)
        if self.multiplier > 1:
            steps_max = math.log(self.delay_ms_max / self.delay_ms_first) / math.log(self.multiplier)
            if attempt - 1 >= steps_max:  # the power itself may be beyond what a float can hold
                return self.delay_ms_max
        return min(self.delay_ms_max, int(self.delay_ms_first * self.multiplier ** (attempt - 1)))


DEFAULT_RETRY = RetryPolicy()


def delay_ms(policy: RetryPolicy, attempt: int, key: bytes) -> int:
    """The pause behind the `attempt`th failure (from 1 on): 0 to `policy.ceiling_ms(attempt)`.

    Where in between, a hash of `key` and `attempt` draws, evenly: whoever computes it again gets the same, and what
    failed together is not tried again together. `key` names what failed: task, generation and attempt.
    """
    assert attempt >= 1, attempt
    ceiling = policy.ceiling_ms(attempt)
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
