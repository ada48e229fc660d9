"""Leases in a real ZooKeeper, behind a proxy that can be cut, for the suites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cluster_harness import constants
from kazoo.client import KazooClient

from bucketsched.adapters.zookeeper.membership import ZooKeeperMembership
from bucketsched.adapters.zookeeper.plan_store import ZooKeeperPlanStore
from bucketsched.adapters.zookeeper.session import ZooKeeperSession
from bucketsched.adapters.zookeeper.tree import create_tree
from bucketsched.config import ZooKeeperSettings
from bucketsched.core.checkpoint import Checkpoint
from zookeeper_proxy import ZooKeeperProxy, zookeeper_proxy


class ZooKeeperCluster:
    def __init__(self, proxy: ZooKeeperProxy, hosts: str, server: str, root: str) -> None:
        self.constants = constants()
        self.settings = ZooKeeperSettings(hosts=hosts, root=root)
        self.proxy = proxy
        self.server = server
        self.opened: list[Any] = []

    def membership(self) -> ZooKeeperMembership:
        self.opened.append(ZooKeeperMembership(self.settings, self.constants))
        return self.opened[-1]

    def plan_store(self, member_id: str = "") -> ZooKeeperPlanStore:
        self.opened.append(ZooKeeperPlanStore(self.settings, self.constants, member_id))
        return self.opened[-1]

    async def raise_epochs(self, checkpoints: dict[int, Checkpoint]) -> None:
        await create_tree(self.settings, self.constants, checkpoints)

    async def expire(self, membership: ZooKeeperMembership) -> None:
        await self._expire(membership._session)

    async def expire_candidate(self, store: ZooKeeperPlanStore) -> None:
        await self._expire(store._session)

    async def _expire(self, session: ZooKeeperSession | None) -> None:
        """A second connection with the session's id and password closes it, as the server does at its time-out."""
        assert session is not None
        await asyncio.to_thread(self._close_session, session._client.client_id)

    def _close_session(self, client_id: tuple[int, bytes]) -> None:
        other = KazooClient(self.server, client_id=client_id)
        other.start()
        other.stop()
        other.close()

    async def cut(self) -> None:
        self.proxy.cut()

    async def restore(self) -> None:
        self.proxy.restore()

    async def close(self) -> None:
        self.proxy.restore()
        await asyncio.gather(*(one.leave() if hasattr(one, "leave") else one.resign() for one in self.opened))
        await asyncio.to_thread(self._remove_tree)

    def _remove_tree(self) -> None:
        client = KazooClient(self.server)
        client.start()
        client.delete(self.settings.root, recursive=True)
        client.stop()
        client.close()


@asynccontextmanager
async def open_cluster(request: pytest.FixtureRequest) -> AsyncIterator[ZooKeeperCluster]:
    server = request.getfixturevalue("stack").zookeeper
    async with zookeeper_proxy(server) as (proxy, hosts):
        cluster = ZooKeeperCluster(proxy, hosts, server, request.getfixturevalue("zk_root"))
        await create_tree(cluster.settings, cluster.constants, {})
        try:
            yield cluster
        finally:
            await cluster.close()
