"""One ZooKeeper session, and the only bridge from kazoo's threads to asyncio.

kazoo would go on with a new session after the old one expired. A `ZooKeeperSession` does not: it is over then, and its
client is stopped. It is over, too, when its owner finds its slot gone. An unreachable server never makes it over,
however long that lasts (kazoo says LOST only after a server answered): calls just raise Unavailable, in bounded time.

A server that was restored from an older state refuses a client that has seen a newer one, without a word about its
session. So a session that has been suspended for long looks, through another session, whether its nodes still stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ...config import ZooKeeperSettings
from ...core.errors import OwnershipLost, Unavailable

log = structlog.get_logger(__name__)
kazoo_log = logging.getLogger(f"{__name__}.kazoo")
kazoo_log.setLevel(logging.ERROR)  # it warns of every vain attempt to connect

CONNECT_S_MAX = 5.0
CALL_S_MAX = 3.0
"""How long one request may take."""
STOP_S_MAX = 5.0
DOUBT_SESSIONS = 2
"""After so many session time-outs without a connection it looks whether its nodes still stand."""
RECONNECT_DELAY_S_MIN, RECONNECT_DELAY_S_MAX = 0.05, 0.2
"""Short beside a session: one that outlasted the absence of its servers ends if its client comes back too late."""

Op = Callable[[Any], None]
"""One operation of a multi."""

REFUSALS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
"""What a server answers where the tree is not as the request supposed; callers judge these."""


class InDoubt(Unavailable):
    """The request was sent and not answered."""


class Refused(Exception):
    """A multi was not applied: operation `index` of it met `error`."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"operation {index}: {error!r}")
        self.index = index
        self.error = error


def check(path: str, version: int = -1) -> Op:
    """The node exists, at this version if it is not -1."""
    return lambda multi: multi.check(path, version)


def put(path: str, data: bytes, version: int) -> Op:
    """Replaces the node's data if it has this version."""
    assert version >= 0, "an unversioned write proves nothing"
    return lambda multi: multi.set_data(path, data, version)


def create(path: str, data: bytes, ephemeral: bool) -> Op:
    """Creates the node, which must not exist."""
    return lambda multi: multi.create(path, data, ephemeral=ephemeral)


def delete(path: str) -> Op:
    """Deletes the node, which must exist and have no children."""
    return lambda multi: multi.delete(path)


class ZooKeeperSession:
    """Raises Unavailable where no server answers (InDoubt: after the request was sent), OwnershipLost once over."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._client = _client(settings)
        self._over = False
        self._connected = False
        self._moved = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._stopping: asyncio.Task[None] | None = None
        self._doubting: asyncio.Task[None] | None = None
        self._session_id = 0
        self._logged = str(KazooState.CONNECTED)
        """The state that is known from the log: that it has connected at first is no news."""
        self.vital_path = ""
        """An ephemeral node without which the session counts as over; "": it has none yet."""

    @property
    def over(self) -> bool:
        """A server said that the session is over, or `end` was called."""
        return self._over

    @property
    def connected(self) -> bool:
        """A server answers, as far as is known."""
        return self._connected and not self._over

    @property
    def session_id(self) -> int:
        """As nodes keep it in ephemeralOwner. Only after `open`."""
        return self._session_id

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, in the event loop, whenever `connected` or `over` may have changed."""
        self._listeners.append(listener)

    # ---- its life

    async def open(self) -> None:
        """Connects. Raises Unavailable."""
        self._client.add_listener(self._listen)
        self._client.start_async()
        try:
            await self._until_connected(CONNECT_S_MAX)
            self._session_id = self._client.client_id[0]
        except (Unavailable, OwnershipLost, TypeError) as error:
            await self.close()
            raise Unavailable(f"no ZooKeeper session at {self._settings.hosts}: {error}") from error

    async def close(self) -> None:
        """Ends the session within bounded time; its ephemeral nodes are gone at once if a server can be reached."""
        self.end()
        left = {task for task in (self._stopping, self._doubting) if task is not None}
        await asyncio.wait(left, timeout=STOP_S_MAX)

    def end(self) -> None:
        """The session is over from now on. Its client is stopped behind."""
        self._over = True
        self._state_moved()

    async def reconnected(self, seconds: float = CALL_S_MAX) -> None:
        """Returns when a server answers again. Raises Unavailable, OwnershipLost."""
        await self._until_connected(seconds)

    async def _until_connected(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self._connected and not self._over:
                    await self._moved.wait()
        except TimeoutError:
            raise Unavailable("ZooKeeper can't be reached") from None
        if self._over:
            raise OwnershipLost("the ZooKeeper session is over")

    def _listen(self, state: str) -> None:
        """Runs on kazoo's connection thread: must neither block nor call ZooKeeper."""
        if state == KazooState.LOST:
            self._over = True
        self._connected = state == KazooState.CONNECTED
        self._post(self._told, state)

    def _told(self, state: str) -> None:
        if self._session_id and self._stopping is None and state != self._logged:
            log.info("ZooKeeper connection", state=state.lower(), session=hex(self._session_id))
            self._logged = state
        self._state_moved()

    def _state_moved(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
        if self._over and self._stopping is None:
            self._stopping = self._loop.create_task(asyncio.to_thread(self._stop_client))
            if self._doubting is not None:
                self._doubting.cancel()
        if not self._connected and not self._over and (self._doubting is None or self._doubting.done()):
            self._doubting = self._loop.create_task(self._doubt())
        for listener in self._listeners:
            listener()

    async def _doubt(self) -> None:
        """While there is no connection."""
        while not self._connected:
            await asyncio.sleep(DOUBT_SESSIONS * self._settings.session_timeout_ms / 1000)
            if not self._connected and await self._forgotten():
                log.warning("the ZooKeeper session was forgotten", session=hex(self._session_id))
                self._loop.call_soon(self.end)
                return

    async def _forgotten(self) -> bool:
        """A server answers others, and knows nothing of this session."""
        probe = ZooKeeperSession(self._settings)
        try:
            await probe.open()
            if not self.vital_path:
                return True
            await probe.sync(self.vital_path)
            _, stat = await probe.read(self.vital_path)
            return bool(stat.ephemeralOwner != self._session_id)
        except NoNodeError:
            return True
        except (Unavailable, OwnershipLost):
            return False
        finally:
            await probe.close()

    def _stop_client(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except (KazooException, OSError, AttributeError) as error:
            log.debug("ZooKeeper client did not stop cleanly", error=repr(error))

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """From any thread to the event loop."""
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("the event loop is closed")

    # ---- requests

    async def read(self, path: str, watch: Callable[[], None] | None = None) -> tuple[bytes, Any]:
        """Data and stat of a node. Raises NoNodeError."""
        data, stat = await self._call(lambda client: client.get_async(path, watch=self._watch(watch)))
        return data or b"", stat

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """Names of a node's children. Raises NoNodeError."""
        names = await self._call(lambda client: client.get_children_async(path, watch=self._watch(watch)))
        return sorted(names)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> bool:
        """Whether a node is there."""
        return await self._call(lambda client: client.exists_async(path, watch=self._watch(watch))) is not None

    async def sync(self, path: str) -> None:
        """Later reads see at least what was committed before."""
        await self._call(lambda client: client.sync_async(path))

    async def create(
        self, path: str, data: bytes = b"", ephemeral: bool = False, sequence: bool = False, shared: bool = False
    ) -> str:
        """Creates one node; its path. `shared`: anybody may write below it. Raises NodeExistsError, NoNodeError."""
        acl = OPEN_ACL_UNSAFE if shared else None
        path = await self._call(
            lambda client: client.create_async(path, data, acl=acl, ephemeral=ephemeral, sequence=sequence)
        )
        return path

    async def touch(self, path: str) -> Any:
        """Writes a node, whatever its version; its stat, with the time that the leader gave the write.

        Raises NoNodeError.
        """
        return await self._call(lambda client: client.set_async(path, b""))

    async def multi(self, *ops: Op) -> None:
        """All of the operations or none. Raises Refused, InDoubt."""

        def submit(client: Any) -> Any:
            transaction = client.transaction()
            for op in ops:
                op(transaction)
            return transaction.commit_async()

        results = await self._call(submit)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise Refused(index, result)
        if any(isinstance(result, Exception) for result in results):
            raise Unavailable(f"ZooKeeper rolled back a multi: {results!r}")

    def _watch(self, watch: Callable[[], None] | None) -> Callable[[Any], None] | None:
        """A watch is called once, in the event loop: after a change, or when it is lost with the connection."""
        if watch is None:
            return None
        return lambda event: self._post(watch)

    async def _call(self, submit: Callable[[Any], Any]) -> Any:
        """Sends one request through kazoo and waits for its answer.

        A request that is not sent at once is not sent: kazoo would queue it and send it at any later time.
        """
        if self._over:
            raise OwnershipLost("the ZooKeeper session is over")
        if not self._connected:
            raise Unavailable("ZooKeeper can't be reached")
        future: asyncio.Future[Any] = self._loop.create_future()
        submit(self._client).rawlink(lambda result: self._post(_settle, future, result))
        try:
            async with asyncio.timeout(CALL_S_MAX):
                value = await future
        except REFUSALS:
            raise
        except (TimeoutError, ConnectionLoss, OperationTimeoutError, SessionMovedError) as error:
            raise InDoubt(f"no answer from ZooKeeper: {error!r}") from error
        except SessionExpiredError as error:
            self.end()
            raise OwnershipLost("the ZooKeeper session is over") from error
        except KazooException as error:
            raise Unavailable(f"ZooKeeper refuses: {error!r}") from error
        if self._over:
            raise OwnershipLost("the ZooKeeper session is over")
        return value


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.exception is None:
        future.set_result(result.value)
    else:
        future.set_exception(result.exception)


def _client(settings: ZooKeeperSettings) -> Any:
    secret = settings.auth.get_secret_value()
    return KazooClient(
        hosts=settings.hosts,
        timeout=settings.session_timeout_ms / 1000,
        logger=kazoo_log,
        auth_data=[("digest", secret)] if secret else None,
        default_acl=CREATOR_ALL_ACL if secret else None,
        connection_retry=KazooRetry(
            max_tries=-1, delay=RECONNECT_DELAY_S_MIN, max_delay=RECONNECT_DELAY_S_MAX, ignore_expire=False
        ),
    )
