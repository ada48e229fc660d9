"""Makes the topics of queues, and the journal's.

A topic that exists is taken as it is: its owner may have chosen partitions, retention and replication with care. Only
the journal's must be right, because tasks that were dispatched are forgotten if it forgets.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DescribeConfigsRequest

from ...config import KafkaSettings
from ...core.catalog import Queue, QueueKind
from ...core.cluster import ClusterConstants
from ...core.errors import ConfigError, InvalidArgument, Unavailable
from ...core.validation import check_topic
from .codes import PASSING, Code
from .connection import RETRY_BACKOFF_MS, Connection
from .topic_map import TopicMap

CREATE_S_MAX = 15.0
"""How long making topics and waiting for their leaders may take."""
CREATE_TIMEOUT_MS = 2_000
DIGEST_BYTES = 4
BATCH_OVERHEAD_BYTES = 1_024
JOURNAL_CONFIG = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""The journal is trimmed by checkpoints only, never by age or size."""
CLOCK_PARTITIONS = 3
"""So that about as many brokers lead one, each a machine of its own."""
CLOCK_CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "3600000",
    "segment.ms": "3600000",
}

_FIELD_AT_FAULT = {
    Code.INVALID_TOPIC: "topic",
    Code.INVALID_PARTITIONS: "partitions",
    Code.INVALID_REPLICATION_FACTOR: "replication",
    Code.INVALID_CONFIG: "replication",
    Code.POLICY_VIOLATION: "topic",
    Code.INVALID_REQUEST: "topic",
    Code.TOPIC_AUTHORIZATION_FAILED: "topic",
    Code.CLUSTER_AUTHORIZATION_FAILED: "topic",
}


class KafkaTopics:
    """Port Topics."""

    def __init__(self, settings: KafkaSettings, constants: ClusterConstants) -> None:
        self._settings = settings
        self._constants = constants
        self._connection = Connection(settings, "bucketsched-topics")
        self._map = TopicMap(self._connection)

    async def ensure(self, queue: Queue) -> Queue:
        """Creates the queue's topics where missing; the queue with topic, partitions and replication filled in.

        Raises InvalidArgument where a setting is not possible, Unavailable.
        """
        topic = self._topic_name(queue)
        wanted = replace(
            queue,
            topic=topic,
            partitions=queue.partitions or self._settings.partitions,
            replication=queue.replication or self._settings.replication,
        )
        try:
            async with asyncio.timeout(CREATE_S_MAX):
                for name in wanted.topics:
                    await self._create(name, wanted.partitions, wanted.replication, self._durability(wanted))
                await self._usable(wanted.topics)
        except TimeoutError as error:
            raise Unavailable(f"Kafka did not make topic {topic} within {CREATE_S_MAX} s") from error
        found = self._map.get(topic)
        assert found is not None
        return replace(wanted, partitions=len(found.leaders))

    async def ensure_journal(self) -> None:
        """Creates the journal's topic, or adds partitions to it. Raises ConfigError, Unavailable."""
        name, lanes = self._constants.journal_name, self._constants.lanes
        config = JOURNAL_CONFIG | {
            "min.insync.replicas": str(self._settings.min_insync_replicas),
            "max.message.bytes": str(self._batch_bytes_max()),
        }
        try:
            async with asyncio.timeout(CREATE_S_MAX):
                await self._create(name, lanes, self._settings.replication, config)
                await self._usable([name])
                found = self._map.get(name)
                if found is not None and len(found.leaders) < lanes:
                    await self._add_partitions(name, lanes)
                await self._check_journal(name)
        except InvalidArgument as error:
            raise ConfigError(f"the journal's topic {name} can't be made: {error.message}") from error
        except TimeoutError as error:
            raise Unavailable(f"Kafka did not make the journal within {CREATE_S_MAX} s") from error

    async def ensure_clock(self) -> None:
        """Creates the topic by which the brokers tell their time, one partition for each. Raises Unavailable."""
        name = self._constants.clock_topic
        try:
            async with asyncio.timeout(CREATE_S_MAX):
                await self._create(name, CLOCK_PARTITIONS, self._settings.replication, CLOCK_CONFIG)
                await self._usable([name])
        except InvalidArgument as error:
            raise ConfigError(f"topic {name} can't be made: {error.message}") from error
        except TimeoutError as error:
            raise Unavailable(f"Kafka did not make topic {name} within {CREATE_S_MAX} s") from error

    async def close(self) -> None:
        """Lets go of the brokers."""
        await self._connection.close()

    def _topic_name(self, queue: Queue) -> str:
        if queue.kind is not QueueKind.KAFKA:
            return self._worker_topic(queue)
        topic = queue.topic or f"{queue.namespace}.{queue.name}"
        check_topic(topic)
        return topic

    def _worker_topic(self, queue: Queue) -> str:
        """Names may contain every character that could separate them, so a digest keeps two queues apart."""
        pair = f"{queue.namespace}/{queue.name}".encode()
        digest = hashlib.blake2b(pair, digest_size=DIGEST_BYTES).hexdigest()
        return f"bucketsched-{self._constants.cluster_id.hex[:8]}-{queue.namespace}-{queue.name}-{digest}"

    def _durability(self, queue: Queue) -> dict[str, str]:
        replicas = min(self._settings.min_insync_replicas, queue.replication)
        return {"min.insync.replicas": str(replicas), "max.message.bytes": str(self._batch_bytes_max())}

    def _batch_bytes_max(self) -> int:
        """What the largest message takes as a batch of its own."""
        return self._settings.message_bytes_max + BATCH_OVERHEAD_BYTES

    async def _create(self, name: str, partitions: int, replication: int, config: dict[str, str]) -> None:
        """Returns also where it exists already."""
        known = await self._asked_for(name)
        if known:
            return
        spec: Any = (name, partitions, replication, [], list(config.items()))
        request = CreateTopicsRequest([spec], CREATE_TIMEOUT_MS, False)
        code, message = Code.UNKNOWN, ""
        while code is not Code.NONE and code is not Code.TOPIC_EXISTS:
            response = await self._connection.send_to_controller(request)
            [(_, number, message)] = response.topic_errors
            code = Code(number)
            if code in _FIELD_AT_FAULT:
                raise InvalidArgument(_FIELD_AT_FAULT[code], message or code.name)
            await self._pause_unless(code)

    async def _asked_for(self, name: str) -> bool:
        await self._map.refresh([name])
        topic = self._map.get(name)
        return topic is not None and topic.problem is Code.NONE

    async def _pause_unless(self, code: Code) -> None:
        """Waits before the next try, after a passing error; raises for others."""
        if code in (Code.NONE, Code.TOPIC_EXISTS):
            return
        if code is Code.NOT_CONTROLLER:
            self._connection.mark_stale()
        elif code not in PASSING:
            raise Unavailable(f"Kafka refuses to change a topic: {code.name}")
        await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _usable(self, names: list[str], partitions: int = 1) -> None:
        """Waits until every partition has a leader."""
        while True:
            await self._map.refresh(names)
            topics = [self._map.get(name) for name in names]
            if all(t and t.usable and len(t.led) == len(t.leaders) >= partitions for t in topics):
                return
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def _add_partitions(self, name: str, count: int) -> None:
        spec: Any = (name, (count, None))  # None: Kafka chooses the brokers
        request = CreatePartitionsRequest([spec], CREATE_TIMEOUT_MS, False)
        code = Code.UNKNOWN
        while code is not Code.NONE:
            response = await self._connection.send_to_controller(request)
            [(_, number, _)] = response.topic_errors
            code = Code(number)
            if code is Code.INVALID_PARTITIONS:
                break  # somebody else was faster
            await self._pause_unless(code)
        await self._usable([name], count)

    async def _check_journal(self, name: str) -> None:
        config = await self._config(name, [*JOURNAL_CONFIG, "min.insync.replicas"])
        for key, wanted in JOURNAL_CONFIG.items():
            if key in config and config[key] != wanted:
                raise ConfigError(f"the journal's topic {name} has {key}={config[key]}, but needs {key}={wanted}")
        least = self._settings.min_insync_replicas
        if int(config.get("min.insync.replicas", least)) < least:
            raise ConfigError(f"the journal's topic {name} has min.insync.replicas below {least}")

    async def _config(self, name: str, keys: list[str]) -> dict[str, str]:
        resource = (ConfigResourceType.TOPIC, name, keys)
        response: Any = await self._connection.send_anywhere(DescribeConfigsRequest([resource]))
        [(number, message, _, _, entries)] = response.resources
        if Code(number) is not Code.NONE:
            raise Unavailable(f"Kafka does not tell the settings of {name}: {message or Code(number).name}")
        return {key: value for key, value, *_ in entries}
