"""Which records of one partition were handed over and done, so that an offset can be committed behind them.

Kafka remembers one offset per partition: everything below it is done. Records may be done in any order; one that is
done behind a gap is remembered here until the gap closes.
"""

from __future__ import annotations

from collections import deque

NOTHING = -1


class Progress:
    """Records are named by tokens. `committed`: the offset that Kafka has from us; NOTHING: none yet."""

    def __init__(self) -> None:
        self._open: deque[tuple[int, int]] = deque()
        self._done: set[int] = set()
        self._last_offset = NOTHING
        self.committable = NOTHING
        self.committed = NOTHING

    def __len__(self) -> int:
        """Records that are not done, and those done behind them."""
        return len(self._open)

    @property
    def tokens(self) -> list[int]:
        """Of the records that are not done."""
        return [token for _, token in self._open if token not in self._done]

    def is_repeat(self, offset: int) -> bool:
        """True if this record was added before: after a rebalance the committed offset is read from again."""
        return offset <= self._last_offset

    def add(self, offset: int, token: int) -> None:
        """A record that was fetched."""
        assert offset > self._last_offset, (offset, self._last_offset)
        self._last_offset = offset
        self._open.append((offset, token))

    def finish(self, token: int) -> int:
        """A record is done; how many records that made room for, gaps considered."""
        self._done.add(token)
        closed = 0
        while self._open and self._open[0][1] in self._done:
            offset, first = self._open.popleft()
            self._done.remove(first)
            self.committable = offset + 1
            closed += 1
        return closed

    @property
    def uncommitted(self) -> bool:
        """True if there is an offset that Kafka does not have yet."""
        return self.committable > self.committed
