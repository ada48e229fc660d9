"""One multi for what many callers want at the same moment: a take-over changes dozens of ranges at once.

Whatever is submitted in one turn of the event loop goes out together, behind a proof that all of it needs. A multi is
applied as a whole or not at all; where it is refused, each caller's part is sent again by itself, so that nobody is
refused for another's sake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .session import Op, Refused, ZooKeeperSession

PARTS_MAX = 64
"""Callers' parts in one multi."""


class GroupedMultis:
    """`proof` gives the operations in front of each multi."""

    def __init__(self, session: ZooKeeperSession, proof: Callable[[], Sequence[Op]]) -> None:
        self._session = session
        self._proof = proof
        self._waiting: list[tuple[tuple[Op, ...], asyncio.Future[None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def submit(self, *ops: Op) -> None:
        """All of the operations or none. Raises Refused (its index counts the proof, too), InDoubt, OwnershipLost.

        A caller that is cancelled while it waits does not know what became of them.
        """
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((ops, answered))
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._flush)
        await answered

    def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:PARTS_MAX], self._waiting[PARTS_MAX:]
            task = asyncio.get_running_loop().create_task(self._send(batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[tuple[tuple[Op, ...], asyncio.Future[None]]]) -> None:
        proof = self._proof()
        try:
            await self._session.multi(*proof, *(op for ops, _ in batch for op in ops))
        except Refused as refused:
            if len(batch) > 1 and refused.index >= len(proof):
                await asyncio.gather(*(self._send([part]) for part in batch))
                return
            _answer(batch, refused)
        except Exception as error:
            _answer(batch, error)
        else:
            _answer(batch, None)


def _answer(batch: list[tuple[tuple[Op, ...], asyncio.Future[None]]], error: Exception | None) -> None:
    for _, answered in batch:
        if answered.done():
            continue  # nobody waits any more
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)
