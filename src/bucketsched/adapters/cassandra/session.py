"""One connection to the cluster for the whole process, and the edge at which the driver's errors end.

The driver works in threads of its own. What it has to say is collected and handed to the event loop with one wake-up
per batch of answers. It never retries: a write whose answer is missing is OutcomeUnknown, and whoever sent it decides.
But what is not answered soon is sent to a second node as well (lightweight transactions apart, everything here may be
applied twice): one that stands still is found out by heartbeats, after seconds.

Rows come as plain tuples, with uuids as 16 bytes and timestamps as milliseconds: nothing is built that nobody needs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import structlog

from ...config import CassandraSettings, split_address
from ...core.errors import BucketschedError, ConfigError, NotWritten, OutcomeUnknown, Unavailable
from .group_commit import Refused, Write

log = structlog.get_logger(__name__)
PROTOCOL_VERSION = 5
CONNECT_TIMEOUT_S = 5.0
RECONNECT_INTERVAL_S = 0.5
HEARTBEAT_INTERVAL_S = 3.0
SPECULATE_AFTER_S = 0.4
"""When a request goes to a second node: late enough that servers that are only slow don't get all of it twice."""
SPECULATIONS_MAX = 1
SCHEMA_TIMEOUT_S = 30.0
"""A statement that changes the schema, and the agreement of all nodes on it."""
GROUPS_CACHED_MAX = 65_536
"""Partitions whose replica set is remembered."""

EXPECTED_WARNINGS = ("Unlogged batch covering", "Batch for")
"""The server's remarks on partitions in a batch and on its size, by default from 10 and 5 KiB on: both are meant."""

_CONDITION = " IF "
"""What makes a statement a lightweight transaction."""

Row = tuple[Any, ...]
Done = Callable[[Any, Exception | None], None]


class CassandraSession:
    """Prepared statements, reads, writes, and batches of writes. Made by `connect`, used in one event loop."""

    def __init__(self, cluster: Any, session: Any, keyspace: str, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster = cluster
        self._session = session
        self._keyspace = keyspace
        self._answers = _Answers(loop)
        self._groups: dict[bytes, Hashable] = {}
        cluster.register_listener(_topology_listener(self._forget_groups))

    @classmethod
    async def connect(cls, settings: CassandraSettings, must_exist: bool = True) -> CassandraSession:
        """Connects, and uses the settings' keyspace, which may be missing where `must_exist` is False.

        Raises ConfigError where credentials, data centre or keyspace are wrong, Unavailable where no node answers.
        """
        cluster, session = await asyncio.to_thread(_connect, settings, must_exist)
        return cls(cluster, session, settings.keyspace.lower(), asyncio.get_running_loop())

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
            raise ConfigError(
                f"cassandra: keyspace {self._keyspace} is out of date, run `bucketsched admin migrate`: {_text(error)}"
            ) from error
        except Exception as error:
            raise _read_error(error) from error
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
            text = f"cassandra: {cql.split('(')[0].strip()}: {_text(error)}"
            refused = isinstance(_write_error(error, single=True), Refused)
            raise (ConfigError(text) if refused else Unavailable(text)) from error

    def _change_schema(self, cql: str, keyspace: str) -> None:
        from cassandra.query import SimpleStatement

        statement = SimpleStatement(cql, keyspace=keyspace or None)
        future = self._session.execute_async(statement, timeout=SCHEMA_TIMEOUT_S)
        future.result()
        if not future.is_schema_agreed and not self._cluster.control_connection.wait_for_schema_agreement(
            wait_time=SCHEMA_TIMEOUT_S
        ):
            raise Unavailable(f"cassandra: nodes did not agree on the schema within {SCHEMA_TIMEOUT_S:.0f} s")

    # ------------------------------------------------------------ reads and writes

    async def read(self, prepared: Any, values: Sequence[Any]) -> list[Row]:
        """All rows of all pages. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[list[Row]] = loop.create_future()
        _Read(self._answers, result).start(self._session, prepared.bind(values))
        return await result

    async def write(self, prepared: Any, values: Sequence[Any]) -> list[Row] | None:
        """Executes one statement. Raises NotWritten or OutcomeUnknown."""
        result: asyncio.Future[list[Row] | None] = asyncio.get_running_loop().create_future()
        self._submit(prepared.bind(values), partial(_settle, result))
        return await result

    def write_batch(self, writes: Sequence[Write], done: Callable[[NotWritten | OutcomeUnknown | None], None]) -> None:
        """Executes one write, or several as an unlogged batch. `done` is called later, in the event loop."""
        single = len({write.routing_key for write in writes}) == 1

        def finish(rows: Any, error: Exception | None) -> None:
            done(_write_error(error, single) if error is not None else None)

        self._submit(_statement(writes, self._keyspace), finish)

    def _submit(self, statement: Any, done: Done) -> None:
        try:
            future = self._session.execute_async(statement)
        except Exception as error:
            self._answers.post(done, None, error)
            return
        post = self._answers.post

        def finish(rows: Any, error: Exception | None) -> None:
            alone = len(future.attempted_hosts) <= 1
            _let_go(future)
            done(rows, error if error is None or alone else _OneOfSeveral.of(error))

        future.add_callbacks(lambda rows: post(finish, rows, None), lambda error: post(finish, None, error))

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


class _Answers:
    """Carries the driver's callbacks into the event loop: one wake-up for all that came meanwhile."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._items: list[tuple[Done, Any, Exception | None]] = []

    def post(self, done: Done, value: Any, error: Exception | None) -> None:
        """From any thread: `done(value, error)` will be called in the event loop, never from within this call."""
        with self._lock:
            self._items.append((done, value, error))
            if len(self._items) > 1:
                return
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    def _drain(self) -> None:
        with self._lock:
            items, self._items = self._items, []
        for done, value, error in items:
            try:
                done(value, error)
            except Exception:
                log.exception("a callback failed; those behind it go on")


class _Read:
    """A read in progress: fetches page after page."""

    def __init__(self, answers: _Answers, result: asyncio.Future[list[Row]]) -> None:
        self._answers = answers
        self._result = result
        self._rows: list[Row] = []
        self._future: Any = None

    def start(self, session: Any, bound: Any) -> None:
        post, arrived = self._answers.post, self._arrived
        try:
            self._future = session.execute_async(bound)
        except Exception as error:
            post(arrived, None, error)
        else:
            self._future.add_callbacks(lambda rows: post(arrived, rows, None), lambda error: post(arrived, None, error))

    def _arrived(self, rows: list[Row], error: Exception | None) -> None:
        if error is None and not self._result.done():
            self._rows += rows
            rows.clear()  # the driver's future and its timer hold on to this list for seconds
            if self._future.has_more_pages:
                try:
                    self._future.start_fetching_next_page()
                    return
                except Exception as failure:
                    error = failure
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._future is not None:
            _let_go(self._future)
            self._future = None
        if self._result.done():
            return
        if error is None:
            self._result.set_result(self._rows)
        else:
            self._result.set_exception(_read_error(error))


def _let_go(future: Any) -> None:
    """Takes a finished future of the driver out of its cycles, which are looked for seldom: it holds all that was sent.

    It refers to callbacks and timer, and they to it.
    """
    future.clear_callbacks()
    future._timer = None


def _settle(result: asyncio.Future[list[Row] | None], rows: Any, error: Exception | None) -> None:
    if result.done():
        return
    if error is None:
        result.set_result(rows)
    else:
        result.set_exception(_write_error(error, single=True))


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


# ---------------------------------------------------------------- errors


def _text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


class _OneOfSeveral(Exception):
    """What one node said, or nobody, to a request that was sent to more than one."""

    @classmethod
    def of(cls, error: Exception) -> Exception:
        """A refusal of the request itself is the same everywhere; of anything else the others may think differently."""
        return error if isinstance(_write_error(error, single=False), Refused) else cls(_text(error))


def _read_error(error: Exception) -> Unavailable:
    return Unavailable(f"cassandra: {_text(error)}")


def _write_error(error: Exception, single: bool) -> NotWritten | OutcomeUnknown:
    """What a failed write means. `single`: it touched one partition only.

    Too few replicas alive is found out before the first of them is written to, but per partition: of a batch over
    several, others may have been written.
    """
    import cassandra
    from cassandra import protocol
    from cassandra.cluster import NoHostAvailable

    text = f"cassandra: {_text(error)}"
    if isinstance(error, cassandra.RequestValidationException | protocol.RequestValidationException):
        return Refused(text)
    if isinstance(error, NoHostAvailable) or (isinstance(error, cassandra.Unavailable) and single):
        return NotWritten(text)
    return OutcomeUnknown(text)


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
    return Unavailable(f"cassandra: no answer from {nodes}: {_text(error)}")


def _cluster(settings: CassandraSettings) -> Any:
    from cassandra import ConsistencyLevel, UnresolvableContactPoints
    from cassandra.auth import PlainTextAuthProvider
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import (
        ConstantReconnectionPolicy,
        ConstantSpeculativeExecutionPolicy,
        DCAwareRoundRobinPolicy,
        FallthroughRetryPolicy,
        TokenAwarePolicy,
    )
    from cassandra.query import tuple_factory

    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_datacenter)),
        retry_policy=FallthroughRetryPolicy(),
        speculative_execution_policy=ConstantSpeculativeExecutionPolicy(SPECULATE_AFTER_S, SPECULATIONS_MAX),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=settings.request_timeout_ms / 1000,
        row_factory=tuple_factory,
    )
    password = settings.password.get_secret_value()
    try:
        return Cluster(
            [split_address(address) for address in settings.contact_points],
            protocol_version=PROTOCOL_VERSION,
            connection_class=_queueing_connection(),
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


def _queueing_connection() -> Any:
    """The libev connection, but requests queue while the socket's buffer is full.

    The driver would answer ConnectionBusy, to reads that come behind large writes too, and forget to give the request's
    stream id back. What may be queued is bounded by those who send.
    """
    from cassandra.io.libevreactor import LibevConnection

    always = property(lambda self: True, lambda self, writable: None)
    return type("QueueingConnection", (LibevConnection,), {"_socket_writable": always})


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
