"""What happened in a run: a line an event, and a hash over all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator


class Trace:
    """Collects events. Equal hashes mean equal runs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._events: list[tuple[float, str, str]] = []

    def note(self, who: str, what: str) -> None:
        """`who`: a process or server."""
        self._events.append((self._now(), who, what))

    def __len__(self) -> int:
        return len(self._events)

    def lines(self) -> Iterator[str]:
        """All of it."""
        for at, who, what in self._events:
            yield f"{at:10.4f}  {who:8} {what}"

    def about(self, words: set[str], last: int = 60) -> list[str]:
        """The lines that hold one of the words, and every fault; the last so many."""
        found = [line for line in self.lines() if "! " in line or any(word in line for word in words)]
        left_out = len(found) - last
        return [f"  ... {left_out} earlier lines left out", *found[-last:]] if left_out > 0 else found

    def hash(self) -> str:
        """Of the whole run."""
        digest = hashlib.blake2b(digest_size=8)
        for at, who, what in self._events:
            digest.update(f"{at!r} {who} {what}\n".encode())
        return digest.hexdigest()
