"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lane_world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A prepared world without processes."""
    world = await World().prepare()
    yield world
    await world.close()
