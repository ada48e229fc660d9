"""The composition root: builds a process out of adapters, services and roles, runs it, and takes it down in order.

    embedded   everything in one process on SQLite           `bucketsched dev`
    node       any of the roles of a cluster                 `bucketsched node`
    migration  what a cluster needs before its first start   `bucketsched admin migrate`
    ownership  who has which ranges, and orders for that `bucketsched admin nodes`, `drain`, `rebalance` ...
    recovery   what was lost, and what to do about it        `bucketsched admin range accept-loss`, `admin fsck`

Each mode is imported when it is asked for: embedded mode never loads a vendor's library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..config import Settings
    from ..recovery.loss import Finding
    from .migration import Migrated
    from .ownership import Ownership
    from .recovery import Checked

Result = TypeVar("Result")


def run_dev(
    data_dir: str,
    grpc_address: str,
    metrics_address: str = "",
    reserve_mib: int = 64,
    max_mib: int = 0,
    ready: Callable[[str, str], None] | None = None,
    http_address: str | None = "",
) -> int:
    """Runs embedded mode until SIGINT or SIGTERM. `ready` gets the addresses as bound, gRPC and HTTP. The exit code.

    `reserve_mib`: what creates leave free for what is stored; `max_mib`: of the database, 0: as the disk allows;
    `http_address` None: the default one, unless it is taken.
    Raises ConfigError.
    """
    from ..adapters.sqlite.room import MIB, RoomLimits
    from .embedded import Embedded
    from .process import run

    room = RoomLimits(reserve_mib * MIB, max_mib * MIB)
    return run(Embedded(data_dir, grpc_address, metrics_address, ready, room, http_address))


def run_node(settings: Settings, ready: Callable[[str, str], None] | None = None) -> int:
    """Runs the roles of `settings.node` until SIGINT or SIGTERM. `ready` gets the addresses as bound, gRPC and HTTP.

    The exit code. Raises ConfigError.
    """
    from .node import Node
    from .process import run

    return run(Node(settings, ready))


def migrate(settings: Settings, **constants: Any) -> Migrated:
    """Makes or upgrades what the cluster of `settings` needs; safe to repeat and to run at many places at once.

    `constants`: those of core.cluster.ClusterConstants that are not the default's. Raises ConfigError, Unavailable.
    """
    import asyncio

    from .migration import migrate_cluster

    return asyncio.run(migrate_cluster(settings, constants))


def review_losses(
    settings: Settings, range_ids: Sequence[int], since_ms: int | None, accept: bool, say: Callable[[str], None]
) -> list[Finding]:
    """What is wrong with ranges that stand still; with `accept` they go on. `say` gets lines about the progress.

    Raises RequestError where nothing is wrong with one, ConfigError, Unavailable.
    """
    import asyncio

    from . import recovery

    return asyncio.run(recovery.review_losses(settings, range_ids, since_ms, accept, say))


def in_ownership(
    settings: Settings, work: Callable[[Ownership], Awaitable[Result]], say: Callable[[str], None]
) -> Result:
    """What `work` makes of the cluster's ownership. `say` gets lines about the progress.

    Raises RequestError, ConfigError, Unavailable.
    """
    import asyncio

    from .ownership import ownership

    async def connected() -> Result:
        async with ownership(settings, say) as opened:
            return await work(opened)

    try:
        return asyncio.run(connected())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # a signal has cancelled what was waited for


def fsck(
    settings: Settings,
    from_ms: int,
    to_ms: int | None,
    range_ids: Sequence[int] | None,
    repair: bool,
    say: Callable[[str], None],
) -> Checked:
    """Compares rows with the journal; with `repair` does about differences what can be done.

    Raises RequestError, ConfigError, Unavailable.
    """
    import asyncio

    from . import recovery

    return asyncio.run(recovery.check(settings, from_ms, to_ms, range_ids, repair, say))
