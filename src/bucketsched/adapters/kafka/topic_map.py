"""Which broker leads which partition, asked for topic by topic and never by creating one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from aiokafka.protocol.metadata import MetadataRequest

from ...core.errors import Unavailable
from .codes import Code
from .connection import Connection

AGE_S_MAX = 60.0
"""Leaders and partition counts older than this are asked for again."""
UNKNOWN_WAIT_S = 0.2
"""How long a topic that brokers don't know is waited for: a new topic reaches all brokers within this."""
UNKNOWN_AGE_S = 5.0
"""How long a topic counts as unknown before brokers are asked again."""
POLL_S = 0.05
TOPICS_MAX = 10_000
"""Remembered topics; beyond this all are forgotten and asked for again."""


@dataclass(frozen=True)
class Topic:
    """A topic's partitions. `leaders[p]` is the broker that leads partition p, -1 if none does now."""

    name: str
    leaders: tuple[int, ...]
    problem: Code
    asked_at: float

    @cached_property
    def led(self) -> tuple[int, ...]:
        """The partitions that have a leader."""
        return tuple(partition for partition, leader in enumerate(self.leaders) if leader >= 0)

    @property
    def usable(self) -> bool:
        """True if there is a partition to write to."""
        return self.problem is Code.NONE and bool(self.led)

    @property
    def missing(self) -> bool:
        """True if brokers say that it does not exist, or not to us."""
        return not self.usable and self.problem not in (Code.NONE, Code.LEADER_NOT_AVAILABLE, Code.UNKNOWN)


class TopicMap:
    """A cache of topics."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: dict[str, Topic] = {}
        self._refreshing: asyncio.Task[None] | None = None

    def get(self, name: str) -> Topic | None:
        """What is remembered of a topic."""
        return self._topics.get(name)

    def leader(self, name: str, partition: int) -> int:
        """The broker that leads this partition, -1 if that is not known."""
        topic = self._topics.get(name)
        return topic.leaders[partition] if topic and partition < len(topic.leaders) else -1

    def forget(self, names: Iterable[str]) -> None:
        """They are asked for again at the next `know`."""
        for name in names:
            self._topics.pop(name, None)

    async def know(self, names: Iterable[str]) -> None:
        """Afterwards `get` tells what there is to know of these. Raises Unavailable.

        What is usable but aged is refreshed in the background: a broker that does not answer must not stop a dispatch
        that does not need it.
        """
        if len(self._topics) > TOPICS_MAX:
            self._topics.clear()
        now = asyncio.get_running_loop().time()
        old = [name for name in names if self._is_old(name, now)]
        wanted = [name for name in old if not self._usable(name)]
        if len(old) > len(wanted) and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self._refresh_quietly(list(set(old) - set(wanted))))
        if not wanted:
            return
        await self.refresh(wanted)
        while unusable := [name for name in wanted if not self._usable(name)]:
            if asyncio.get_running_loop().time() - now > UNKNOWN_WAIT_S:
                return
            await asyncio.sleep(POLL_S)
            await self.refresh(unusable)

    async def refresh(self, names: list[str]) -> None:
        """Asks a broker now. Raises Unavailable."""
        response = await self._connection.send_anywhere(MetadataRequest(names, allow_auto_topic_creation=False))
        if not response.brokers:
            raise Unavailable("Kafka names no brokers")
        now = asyncio.get_running_loop().time()
        answered = {topic: (Code(code), partitions) for code, topic, _, partitions in response.topics}
        for name in names:
            code, partitions = answered.get(name, (Code.UNKNOWN_TOPIC_OR_PARTITION, []))
            self._topics[name] = Topic(name, _leaders(partitions), code, now)

    async def close(self) -> None:
        """Ends a refresh that is under way."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def _refresh_quietly(self, names: list[str]) -> None:
        try:
            await self.refresh(names)
        except Unavailable:
            pass  # asked again with the next transaction

    def _usable(self, name: str) -> bool:
        topic = self._topics.get(name)
        return topic is not None and topic.usable

    def _is_old(self, name: str, now: float) -> bool:
        topic = self._topics.get(name)
        if topic is None:
            return True
        return now - topic.asked_at > (AGE_S_MAX if topic.usable else UNKNOWN_AGE_S)


def _leaders(partitions: list[tuple[int, int, int, object, object, object]]) -> tuple[int, ...]:
    """Leader per partition."""
    leaders = {
        partition: (-1 if Code(code) is Code.LEADER_NOT_AVAILABLE else leader)
        for code, partition, leader, *_ in partitions
    }
    return tuple(leaders.get(partition, -1) for partition in range(max(leaders, default=-1) + 1))
