"""A witness that nobody waits for any more leaves nothing behind."""

from __future__ import annotations

import asyncio
import threading
from uuid import uuid4

import pytest
from tests.nodes import until

from bucketsched.adapters import kernel_time
from bucketsched.adapters.zookeeper.witness import ZooKeeperWitness
from bucketsched.config import ZooKeeperSettings
from bucketsched.core.cluster import ClusterConstants

NOBODY = "127.0.0.1:1"


def clients() -> list[str]:
    """Threads that are not the event loop's own."""
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]


async def test_a_question_that_is_given_up_leaves_no_client_behind() -> None:
    witness = ZooKeeperWitness(ZooKeeperSettings(hosts=NOBODY), ClusterConstants(uuid4()), "m")
    before = clients()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(witness.testify(kernel_time.boot_ns), 0.3)
    await until(lambda: len(clients()) <= len(before), "every client is stopped")
    await witness.close()
