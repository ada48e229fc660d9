"""Decides which partition each message of a transaction goes to, and refuses what can't be sent before it begins."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

from aiokafka.partitioner import murmur2

from ...core.message import Message
from ...ports import CommitRefused
from .batches import Place, size_of
from .topic_map import Topic, TopicMap

MISSING_S_MAX = 60.0
"""How long a topic must have been missing, or closed to us, before its messages are given up: a broker's view may be
stale, and what is given up is not sent any more."""


class Routes:
    """Unkeyed messages of one topic share one partition per transaction: fewer partitions are cheaper to commit."""

    def __init__(self, topics: TopicMap, message_bytes_max: int) -> None:
        self._topics = topics
        self._message_bytes_max = message_bytes_max
        self._turns: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}

    async def place(self, messages: Sequence[Message]) -> dict[Place, list[int]]:
        """Indices of the messages per partition, in order.

        Raises CommitRefused with culprits (too large, or a topic that does not exist or is closed to us), without
        where a topic can't be written to just now; Unavailable.
        """
        names = {message.topic for message in messages}
        await self._topics.know(names - {""})
        culprits = self._culprits(messages, self._lost(names))
        if culprits:
            raise CommitRefused(f"{len(culprits)} messages can't be sent", culprits)
        if held := [name for name in names if name and not self._topic(name).usable]:
            raise CommitRefused(f"no partition of {', '.join(sorted(held)[:3])} can be written to", sick_topics=held)
        return self._placed(messages, {name: self._next_partition(self._topic(name)) for name in names})

    def _topic(self, name: str) -> Topic:
        topic = self._topics.get(name)
        assert topic is not None, name
        return topic

    def _lost(self, names: set[str]) -> dict[str, str]:
        """The topics that nothing can be sent to any more, and why."""
        now = asyncio.get_running_loop().time()
        lost = {"": "the queue has no topic"} if "" in names else {}
        for name in names - {""}:
            topic = self._topic(name)
            if not topic.missing:
                self._missing_since.pop(name, None)
            elif now - self._missing_since.setdefault(name, now) >= MISSING_S_MAX:
                lost[name] = f"topic {name!r}: {topic.problem.name}"
        return lost

    def _culprits(self, messages: Sequence[Message], lost: dict[str, str]) -> dict[int, str]:
        bytes_max = self._message_bytes_max
        culprits = {}
        for index, message in enumerate(messages):
            if message.topic in lost:
                culprits[index] = lost[message.topic]
            elif (size := size_of(message.key, message.value, message.headers)) > bytes_max:
                culprits[index] = f"{size} bytes are more than message_bytes_max ({bytes_max})"
        return culprits

    def _next_partition(self, topic: Topic) -> int:
        """Round robin over the partitions that have a leader."""
        turn = self._turns.get(topic.name, random.randrange(len(topic.led)))
        self._turns[topic.name] = (turn + 1) % len(topic.led)
        return topic.led[turn % len(topic.led)]

    def _placed(self, messages: Sequence[Message], sticky: dict[str, int]) -> dict[Place, list[int]]:
        placed: dict[Place, list[int]] = defaultdict(list)
        for index, message in enumerate(messages):
            if message.key is None:
                partition = sticky[message.topic]
            else:
                partition = partition_of(message.key, len(self._topic(message.topic).leaders))
            placed[message.topic, partition].append(index)
        return placed


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's own clients put a message with this key."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
