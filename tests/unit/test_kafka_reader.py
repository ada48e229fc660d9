"""Reading goes on where the leader of a partition is gone and another broker has taken its place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bucketsched.adapters.kafka.connection import NotSent
from bucketsched.adapters.kafka.reader import Reader

TOPIC, GONE, HEIR, END = "journal", 1, 2, 42


class Brokers:
    """Two of them, of which the first is gone; what was known of leaders is from before."""

    def __init__(self) -> None:
        self.known = GONE

    def leader(self, topic: str, partition: int) -> int:
        return self.known

    async def refresh(self, topics: list[str]) -> None:
        self.known = HEIR

    async def send(self, node: int, request: Any, group: int) -> Any:
        if node == GONE:
            raise NotSent(f"broker {node} is not ready")
        return SimpleNamespace(topics=[(TOPIC, [(0, 0, END - 1, END)])])


async def test_a_leader_that_is_gone_is_asked_for_anew() -> None:
    brokers: Any = Brokers()
    assert await Reader(brokers, brokers, TOPIC, stall_s_max=1).end(0) == END
