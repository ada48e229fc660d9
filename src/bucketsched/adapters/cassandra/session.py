"""One connection to the cluster for the whole process, and the edge at which the driver's errors end.

It never retries: a write whose answer is missing is OutcomeUnknown, and whoever sent it decides. But what is not
answered soon is sent to a second node as well (lightweight transactions apart, everything here may be applied twice):
one that stands still is found out by heartbeats, after seconds.

Rows come as plain tuples, with uuids as 16 bytes and timestamps as milliseconds: nothing is built that nobody needs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import structlog

from ...config import CassandraSettings, split_address
from ...core.errors import BucketschedError, ConfigError, NotWritten, OutcomeUnknown, Unavailable
from .connection import connection_class
from .failures import one_line, read_error, write_error
from .group_commit import Refused, Write
from .requests import Page, Requests
from .requests import Row as Row

log = structlog.get_logger(__name__)
PROTOCOL_VERSION = 5
CONNECT_TIMEOUT_S = 5.0
RECONNECT_INTERVAL_S = 0.5
HEARTBEAT_INTERVAL_S = 3.0
SCHEMA_TIMEOUT_S = 30.0
"""A statement that changes the schema, and the agreement of all nodes on it."""
GROUPS_CACHED_MAX = 65_536
"""Partitions whose replica set is remembered."""

EXPECTED_WARNINGS = ("Unlogged batch covering", "Batch for")
"""The server's remarks on partitions in a batch and on its size, by default from 10 and 5 KiB on: both are meant."""

_CONDITION = " IF "
"""What makes a statement a lightweight transaction."""


class CassandraSession:
    """Prepared statements, reads, writes, and batches of writes. Made by `connect`, used in one event loop."""

    def __init__(
        self, cluster: Any, session: Any, keyspace: str, loop: asyncio.AbstractEventLoop, timeout_s: float
    ) -> None:
        self._cluster = cluster
        self._session = session
        self._keyspace = keyspace
        self._requests = Requests(session, loop, timeout_s)
        self._groups: dict[bytes, Hashable] = {}
        cluster.register_listener(_topology_listener(self._forget_groups))

    @classmethod
    async def connect(cls, settings: CassandraSettings, must_exist: bool = True) -> CassandraSession:
        """Connects, and uses the settings' keyspace, which may be missing where `must_exist` is False.

        Raises ConfigError where credentials, data centre or keyspace are wrong, Unavailable where no node answers.
        """
        cluster, session = await asyncio.to_thread(_connect, settings, must_exist)
        timeout_s = settings.request_timeout_ms / 1000
        return cls(cluster, session, settings.keyspace.lower(), asyncio.get_running_loop(), timeout_s)

    async def close(self) -> None:
        """Lets go of all connections; answers that are still out become errors."""
        await asyncio.to_thread(self._cluster.shutdown)

    # ------------------------------------------------------------ statements

    async def prepare(self, cql: str, serial: bool = False) -> Any:
        """Prepares a statement; `serial`: a read that sees every finished lightweight transaction.

        `@` before a table's name stands for the keyspace (the server warns of names without one).
        Raises ConfigError where the tables are missing, Unavailable.
        """
        from cassandra import ConsistencyLevel, InvalidRequest

        try:
            prepared = await asyncio.to_thread(self._session.prepare, cql.replace("@", f"{self._keyspace}."))
        except InvalidRequest as error:
            advice = f"keyspace {self._keyspace} is out of date, run `bucketsched admin migrate`"
            raise ConfigError(f"cassandra: {advice}: {one_line(error)}") from error
        except Exception as error:
            raise read_error(error) from error
        prepared.is_idempotent = _CONDITION not in cql
        if serial:
            prepared.consistency_level = ConsistencyLevel.LOCAL_SERIAL
        _make_plain(prepared)
        return prepared

    async def change_schema(self, cql: str, keyspace: str | None = None) -> None:
        """Executes a schema change and waits until all nodes agree on it. Raises ConfigError, Unavailable.

        `keyspace`: of unqualified names; None: the session's.
        """
        try:
            await asyncio.to_thread(self._change_schema, cql, self._keyspace if keyspace is None else keyspace)
        except BucketschedError:
            raise
        except Exception as error:
            text = f"cassandra: {cql.split('(')[0].strip()}: {one_line(error)}"
            refused = isinstance(write_error(error, single=True), Refused)
            raise (ConfigError(text) if refused else Unavailable(text)) from error

    def _change_schema(self, cql: str, keyspace: str) -> None:
        from cassandra.query import SimpleStatement

        statement = SimpleStatement(cql, keyspace=keyspace or None)
        future = self._session.execute_async(statement)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.add_callbacks(answer.set_result, answer.set_exception)
        answer.result(SCHEMA_TIMEOUT_S)
        if not future.is_schema_agreed and not self._cluster.control_connection.wait_for_schema_agreement(
            wait_time=SCHEMA_TIMEOUT_S
        ):
            raise Unavailable(f"cassandra: nodes did not agree on the schema within {SCHEMA_TIMEOUT_S:.0f} s")

    # ------------------------------------------------------------ reads and writes

    async def read(self, prepared: Any, values: Sequence[Any]) -> list[Row]:
        """All rows of all pages. Raises Unavailable."""
        loop, bound = asyncio.get_running_loop(), prepared.bind(values)
        found: list[Row] = []
        more: bytes | None = None
        while True:
            result: asyncio.Future[Page] = loop.create_future()
            self._requests.send(bound, partial(_settle, result), more)
            try:
                rows, more = await result
            except Exception as error:
                raise read_error(error) from error
            if rows is None or (rows and len(rows[0]) != len(prepared.result_metadata or ())):
                raise self.distrust("other columns than asked for")
            found += rows
            if more is None:
                return found

    async def write(self, prepared: Any, values: Sequence[Any]) -> list[Row] | None:
        """Executes one statement. Raises NotWritten or OutcomeUnknown."""
        result: asyncio.Future[Page] = asyncio.get_running_loop().create_future()
        self._requests.send(prepared.bind(values), partial(_settle, result))
        try:
            return (await result).rows
        except Exception as error:
            raise write_error(error, single=True) from error

    def write_batch(self, writes: Sequence[Write], done: Callable[[NotWritten | OutcomeUnknown | None], None]) -> None:
        """Executes one write, or several as an unlogged batch. `done` is called later, in the event loop."""
        single = len({write.routing_key for write in writes}) == 1

        def finish(page: Page | None, error: Exception | None) -> None:
            done(write_error(error, single) if error is not None else None)

        self._requests.send(_statement(writes, self._keyspace), finish)

    def distrust(self, what: str) -> Unavailable:
        """Ends all connections, since an answer was not one to its request; what is returned is to be raised."""
        from cassandra.connection import ConnectionException

        log.critical("an answer of Cassandra does not belong to its request: its connections end", what=what)
        for pool in list(self._session._pools.values()):
            for connection in pool.get_connections():
                connection.defunct(ConnectionException("answers were mixed up"))
        return Unavailable(f"cassandra: an answer to another request: {what}")

    # ------------------------------------------------------------ topology

    def group_of(self, routing_key: bytes) -> Hashable:
        """What names the replica set of a partition."""
        group = self._groups.get(routing_key)
        if group is None:
            if len(self._groups) >= GROUPS_CACHED_MAX:
                self._forget_groups()
            hosts = self._cluster.metadata.get_replicas(self._keyspace, routing_key)
            group = self._groups[routing_key] = frozenset(host.host_id for host in hosts)
        return group

    def _forget_groups(self) -> None:
        self._groups = {}


def _settle(result: asyncio.Future[Page], page: Page | None, error: Exception | None) -> None:
    if result.done():
        return
    if error is not None:
        result.set_exception(error)
    elif page is not None:
        result.set_result(page)


def _statement(writes: Sequence[Write], keyspace: str) -> Any:
    from cassandra.query import BatchStatement, BatchType, BoundStatement

    first = writes[0]
    if len(writes) == 1:
        bound = BoundStatement(first.statement, routing_key=first.routing_key)
        bound.values = list(first.values)
        return bound
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.is_idempotent = all(write.statement.is_idempotent for write in writes)
    batch.keyspace, batch.routing_key = keyspace, first.routing_key
    # What BatchStatement.add() ends in, without binding values that are encoded already.
    batch._statements_and_parameters.extend((True, write.statement.query_id, write.values) for write in writes)
    return batch


# ---------------------------------------------------------------- connecting (in a thread)


def _connect(settings: CassandraSettings, must_exist: bool) -> tuple[Any, Any]:
    logging.getLogger("cassandra.protocol").addFilter(_is_unexpected)
    cluster = _cluster(settings)
    keyspace = settings.keyspace.lower()
    try:
        session = cluster.connect()
        session.client_protocol_handler = _plain_protocol()
        if must_exist and keyspace not in cluster.metadata.keyspaces:
            raise ConfigError(f"cassandra: there is no keyspace {keyspace}: run `bucketsched admin migrate`")
    except Exception as error:
        cluster.shutdown()
        raise _connect_error(cluster, settings, error) from error
    return cluster, session


def _is_unexpected(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in EXPECTED_WARNINGS)


def _connect_error(cluster: Any, settings: CassandraSettings, error: Exception) -> BucketschedError:
    from cassandra import AuthenticationFailed

    if isinstance(error, BucketschedError):
        return error
    nodes = ", ".join(settings.contact_points)
    errors = getattr(error, "errors", {})  # of NoHostAvailable: by host, or the hosts' names only
    causes = [error, *(errors.values() if isinstance(errors, dict) else ())]
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        return ConfigError(f"cassandra: {nodes} refused cassandra.username and password")
    centres = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
    if centres and settings.local_datacenter not in centres:
        return ConfigError(
            f"cassandra.local_datacenter: there is no {settings.local_datacenter!r} among {', '.join(sorted(centres))}"
        )
    return Unavailable(f"cassandra: no answer from {nodes}: {one_line(error)}")


def _cluster(settings: CassandraSettings) -> Any:
    from cassandra import ConsistencyLevel, UnresolvableContactPoints
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import (
        ConstantReconnectionPolicy,
        DCAwareRoundRobinPolicy,
        FallthroughRetryPolicy,
        TokenAwarePolicy,
    )
    from cassandra.query import tuple_factory

    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_datacenter)),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=None,  # each request has a deadline here
        row_factory=tuple_factory,
    )
    password = settings.password.get_secret_value()
    try:
        return Cluster(
            [split_address(address) for address in settings.contact_points],
            protocol_version=PROTOCOL_VERSION,
            connection_class=connection_class(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            auth_provider=PlainTextAuthProvider(settings.username, password) if settings.username else None,
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_INTERVAL_S, max_attempts=None),
            connect_timeout=CONNECT_TIMEOUT_S,
            control_connection_timeout=CONNECT_TIMEOUT_S,
            idle_heartbeat_interval=HEARTBEAT_INTERVAL_S,
            idle_heartbeat_timeout=HEARTBEAT_INTERVAL_S,
            application_name="bucketsched",
        )
    except UnresolvableContactPoints as error:
        raise ConfigError(f"cassandra.contact_points: can't resolve {', '.join(settings.contact_points)}") from error


def _plain_types() -> dict[Any, Any]:
    from cassandra.cqltypes import BytesType, DateType, LongType, UUIDType

    return {UUIDType: BytesType, DateType: LongType}  # DateType is CQL's timestamp


def _make_plain(prepared: Any) -> None:
    """Gives the columns of a prepared statement these types, those of its values and those of its results."""
    types = _plain_types()
    bound, results = prepared.column_metadata, prepared.result_metadata
    prepared.column_metadata = [column._replace(type=types.get(column.type, column.type)) for column in bound]
    prepared.result_metadata = results and [(*column[:3], types.get(column[3], column[3])) for column in results]


def _plain_protocol() -> Any:
    """The driver's protocol with these types, for answers that bring their columns: LWTs, statements prepared anew."""
    from cassandra import protocol

    handler: Any
    if protocol.HAVE_CYTHON:
        handler = protocol.cython_protocol_handler(protocol.ListParser())
    else:
        message: Any = type("PlainResultMessage", (protocol.ResultMessage,), {})
        by_opcode = {**protocol.ProtocolHandler.message_types_by_opcode, message.opcode: message}
        handler = type("PlainProtocolHandler", (protocol.ProtocolHandler,), {"message_types_by_opcode": by_opcode})
    types = _plain_types()
    results = handler.message_types_by_opcode[protocol.ResultMessage.opcode]
    results.type_codes = {code: types.get(kind, kind) for code, kind in protocol.ResultMessage.type_codes.items()}
    return handler


def _topology_listener(changed: Callable[[], None]) -> Any:
    """Calls `changed`, in a thread of the driver, when nodes come and go."""
    from cassandra.policies import HostStateListener

    def on_change(self: Any, host: Any) -> None:
        changed()

    names = ("on_up", "on_down", "on_add", "on_remove")
    return type("TopologyListener", (HostStateListener,), dict.fromkeys(names, on_change))()
