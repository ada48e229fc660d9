"""The tables, and how an older file becomes a newer one."""

from __future__ import annotations

import sqlite3

from ...core.errors import ConfigError

APPLICATION_ID = 0x62736368
"""What tells our file from any other SQLite file ("bsch")."""

# The unique index is the partition in clustering order; the rows themselves lie in order of arrival, which makes
# inserts three times as fast as clustering them would. The body is last, so that facts are read without it.
_VERSION_1 = """
CREATE TABLE tasks (
    bucket INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    namespace_id BLOB NOT NULL,
    task_id BLOB NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    dispatched_ms INTEGER,
    cancelled_ms INTEGER,
    failed_ms INTEGER,
    failed_reason TEXT,
    moved_to_ms INTEGER,
    body BLOB,
    UNIQUE (bucket, shard, due_ms, namespace_id, task_id)
);
CREATE TABLE range_checkpoints (
    range_id INTEGER PRIMARY KEY,
    write_order INTEGER NOT NULL,
    checkpoint BLOB NOT NULL
);
CREATE TABLE cluster (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    cluster_id BLOB NOT NULL,
    shards INTEGER NOT NULL,
    ranges INTEGER NOT NULL,
    horizon_ms INTEGER NOT NULL,
    grace_ms INTEGER NOT NULL,
    retention_ms INTEGER NOT NULL,
    lanes INTEGER NOT NULL
);
CREATE TABLE namespaces (
    name TEXT PRIMARY KEY,
    namespace_id BLOB NOT NULL,
    created_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE queues (
    namespace_id BLOB NOT NULL,
    name TEXT NOT NULL,
    namespace TEXT NOT NULL,
    kind TEXT NOT NULL,
    topic TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    replication INTEGER NOT NULL,
    priority_topics INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace_id, name)
) WITHOUT ROWID;
CREATE TABLE leases (
    range_id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL
);
CREATE TABLE lanes (
    lane INTEGER PRIMARY KEY,
    producer INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    next_offset INTEGER NOT NULL
);
CREATE TABLE journal (
    lane INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (lane, offset)
) WITHOUT ROWID;
CREATE TABLE outbox (
    message_id INTEGER PRIMARY KEY,
    namespace_id BLOB NOT NULL,
    queue TEXT NOT NULL,
    headers BLOB NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX outbox_by_queue ON outbox (namespace_id, queue, message_id);
"""

_WEBHOOKS = """
ALTER TABLE queues ADD COLUMN webhook TEXT NOT NULL DEFAULT '';
"""

_IDEMPOTENCY_KEYS = """
CREATE TABLE idempotency_keys (
    namespace_id BLOB NOT NULL,
    key TEXT NOT NULL,
    task_id BLOB NOT NULL,
    due_ms INTEGER NOT NULL,
    nominal_due_ms INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    digest BLOB NOT NULL,
    expires_ms INTEGER NOT NULL,
    PRIMARY KEY (namespace_id, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_ms);
"""

_PRESENCE = """
CREATE TABLE presence (
    namespace_id BLOB NOT NULL,
    queue TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    PRIMARY KEY (namespace_id, queue, bucket, shard)
) WITHOUT ROWID;
"""

_EXECUTIONS = """
ALTER TABLE tasks ADD COLUMN succeeded_ms INTEGER;
ALTER TABLE tasks ADD COLUMN expired_ms INTEGER;
ALTER TABLE queues ADD COLUMN policy TEXT NOT NULL DEFAULT '';
CREATE TABLE executions (
    namespace_id BLOB NOT NULL,
    task_id BLOB NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    started_ms INTEGER,
    ended_ms INTEGER,
    ended TEXT,
    worker TEXT,
    error_type TEXT,
    error_message TEXT,
    error_trace TEXT,
    result BLOB,
    retry_ms INTEGER,
    latest_ms INTEGER NOT NULL,
    UNIQUE (namespace_id, task_id, generation, attempt)
);
CREATE INDEX executions_by_age ON executions (latest_ms);
"""

_QUEUE_SETTINGS = """
ALTER TABLE queues ADD COLUMN settings TEXT NOT NULL DEFAULT '';
"""

MIGRATIONS = (_VERSION_1, _WEBHOOKS, _IDEMPOTENCY_KEYS, _PRESENCE, _EXECUTIONS, _QUEUE_SETTINGS)
"""Each brings a file one version further; a file's version is its PRAGMA user_version."""


def migrate(connection: sqlite3.Connection) -> None:
    """Brings the file to the newest version, each step in a transaction. Raises ConfigError, sqlite3.Error."""
    version = _version(connection)
    for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
        stamp = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"
        connection.executescript(f"BEGIN IMMEDIATE; {script} {stamp} COMMIT")


def _version(connection: sqlite3.Connection) -> int:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (application or version or tables):
        raise ConfigError("the file is not a bucketsched database")
    if version > len(MIGRATIONS):
        raise ConfigError(f"the database is of version {version}, and this program knows {len(MIGRATIONS)}: upgrade it")
    return int(version)
