"""The composition root: builds a process out of adapters, services and roles, runs it, and takes it down in order.

    embedded   everything in one process on SQLite           `bucketsched dev`
    node       any of the roles of a cluster                 `bucketsched node`
    migration  what a cluster needs before its first start   `bucketsched admin migrate`

Each mode is imported when it is asked for: embedded mode never loads a vendor's library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..config import Settings
    from .migration import Migrated


def run_dev(data_dir: str, grpc_address: str, ready: Callable[[str], None] | None = None) -> int:
    """Runs embedded mode until SIGINT or SIGTERM. `ready` gets the address as bound. The exit code.

    Raises ConfigError.
    """
    from .embedded import Embedded
    from .process import run

    return run(Embedded(data_dir, grpc_address, ready))


def run_node(settings: Settings, ready: Callable[[str], None] | None = None) -> int:
    """Runs the roles of `settings.node` until SIGINT or SIGTERM. The exit code. Raises ConfigError."""
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
