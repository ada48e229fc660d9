"""Pauses between tries."""

from __future__ import annotations

import random
from collections.abc import Iterator

PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 2.0


def pauses(shortest_s: float = PAUSE_S_MIN, longest_s: float = PAUSE_S_MAX) -> Iterator[float]:
    """Doubling, with jitter so that many clients don't come back at the same instant; without end."""
    pause_s = shortest_s
    while True:
        yield pause_s * random.uniform(0.5, 1)
        pause_s = min(2 * pause_s, longest_s)
