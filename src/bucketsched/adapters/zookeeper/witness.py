"""ZooKeeper's leader as a witness of the time: the mtime that it gives to a write."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from kazoo.exceptions import NodeExistsError, NoNodeError

from ...config import ZooKeeperSettings
from ...core.clock_discipline import NS_PER_MS, Testimony
from ...core.clock_votes import Interval
from ...core.cluster import ClusterConstants
from ...core.errors import OwnershipLost, Unavailable
from .session import ZooKeeperSession
from .tree import Tree, missing

NAME = "zookeeper"


class ZooKeeperWitness:
    """Port TimeWitness. Has a session of its own: it is asked before the process joins, and after it was fenced."""

    def __init__(self, settings: ZooKeeperSettings, constants: ClusterConstants, member_id: str) -> None:
        self._settings = settings
        self._tree = Tree.of(settings, constants)
        self._path = f"{self._tree.clocks}/{quote(member_id, safe='')}"
        self._session: ZooKeeperSession | None = None

    async def testify(self, boot_ns: Callable[[], int]) -> list[Testimony]:
        """One testimony, of whoever leads the ensemble. Raises Unavailable."""
        try:
            session = await self._opened()
            sent_ns = boot_ns()
            stat = await session.touch(self._path)
            received_ns = boot_ns()
        except OwnershipLost as error:
            raise Unavailable(str(error)) from error
        except NoNodeError:
            await self.close()
            raise Unavailable(f"{self._path} has vanished") from None
        said = Interval(stat.mtime * NS_PER_MS, (stat.mtime + 1) * NS_PER_MS)
        return [Testimony(NAME, sent_ns, received_ns, said)]

    async def close(self) -> None:
        """Lets go of the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _opened(self) -> ZooKeeperSession:
        if self._session is not None and not self._session.over:
            return self._session
        await self.close()
        session = ZooKeeperSession(self._settings)
        try:
            await session.open()
            await self._make_node(session)
        except BaseException:  # also where whoever asked has lost patience: its client would go on for ever
            session.end()
            raise
        self._session = session
        return session

    async def _make_node(self, session: ZooKeeperSession) -> None:
        for path, ephemeral in ((self._tree.clocks, False), (self._path, True)):
            try:
                await session.create(path, ephemeral=ephemeral)
            except NodeExistsError:
                pass
            except NoNodeError:
                raise missing(self._tree) from None
