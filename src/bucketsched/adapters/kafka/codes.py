"""Kafka's error codes that decide something here, and the groups that they fall into.

aiokafka 0.14 does not know all of them (90, 120), so the wire's numbers are used.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """An error code of Kafka's protocol. Values that are not listed become UNKNOWN."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    COORDINATOR_LOADING = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    TOPIC_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE = 45
    DUPLICATE_SEQUENCE = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90

    @classmethod
    def _missing_(cls, value: object) -> Code:
        return cls.UNKNOWN


FENCED = frozenset(
    {
        Code.OUT_OF_ORDER_SEQUENCE,
        Code.DUPLICATE_SEQUENCE,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTION_COORDINATOR_FENCED,
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        Code.UNKNOWN_PRODUCER_ID,
        Code.PRODUCER_FENCED,
    }
)
"""This producer's epoch is of no more use: a newer one exists, or the coordinator gave up on it."""

COORDINATOR_MOVED = frozenset({Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR, Code.COORDINATOR_LOADING})
"""Ask again who coordinates."""

LEADER_MOVED = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER,
        Code.REPLICA_NOT_AVAILABLE,
        Code.STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
    }
)
"""Ask again who leads the partition."""

PASSING = (
    LEADER_MOVED
    | COORDINATOR_MOVED
    | {
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.CONCURRENT_TRANSACTIONS,
        Code.OFFSET_NOT_AVAILABLE,
    }
)
"""The same request may succeed in a moment."""

TOO_LARGE = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE})

REFUSED_FOR_GOOD = frozenset(
    {
        Code.INVALID_TOPIC,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.INVALID_TIMESTAMP,
        Code.INVALID_RECORD,
    }
)
"""Sending the same message to the same topic again is of no use."""

REFUSED_RECORDS = frozenset({Code.INVALID_TIMESTAMP, Code.INVALID_RECORD})
"""Of these, those that may be meant for a single record of the batch."""

CERTAINLY_NOT_APPENDED = (
    TOO_LARGE
    | REFUSED_FOR_GOOD
    | {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_ENOUGH_REPLICAS,
        Code.CONCURRENT_TRANSACTIONS,
        Code.POLICY_VIOLATION,
    }
)
"""A batch answered with one of these is not in the log. (NOT_LEADER also comes after an append.)"""
