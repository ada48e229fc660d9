"""What a task is in each of its rows, by the journal: a move or a retry ends one of them and makes the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from bucketsched.core.task import RowRef, TaskBody

Key = tuple[bytes, bytes]
"""Namespace and task id."""


class Version(NamedTuple):
    """`ref` is its row's; `body` None: that of the generation before."""

    ref: bytes
    body: TaskBody | None


@dataclass(slots=True)
class Versions:
    """Those that moves and retries have made, in their order. The first of each task is what it was created as."""

    _made: dict[Key, list[Version]] = field(default_factory=dict)

    def make(self, ref: bytes, body: TaskBody | None) -> None:
        """A committed record has made this row. A move is one generation up, a retry one attempt."""
        row = RowRef.unpack(ref)
        self._made.setdefault((row.namespace_id, row.task_id), []).append(Version(ref, body))

    def newest(self, key: Key) -> bytes:
        """The newest row's reference; b"": no record has made one."""
        made = self._made.get(key)
        return made[-1].ref if made else b""

    def generation(self, key: Key) -> int:
        """Of the newest row."""
        newest = self.newest(key)
        return RowRef.unpack(newest).generation if newest else 0

    def made(self, ref: bytes) -> bool:
        """True if a record has made this row."""
        row = RowRef.unpack(ref)
        return any(version.ref == ref for version in self._made.get((row.namespace_id, row.task_id), ()))

    def refs(self) -> Iterator[bytes]:
        """Of all that were made."""
        return (version.ref for made in self._made.values() for version in made)

    def body(self, key: Key, generation: int, first: TaskBody) -> TaskBody:
        """What it consists of in a generation. `first`: what the task was created as."""
        body = first
        for version in self._made.get(key, ()):
            if RowRef.unpack(version.ref).generation <= generation and version.body is not None:
                body = version.body
        return body
