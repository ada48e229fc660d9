"""Runs every suite against every adapter of its port.

An adapter is made known by a module `factories_<family>_<adapter>.py` beside this file, with NAME, MARKS and what the
family asks for (for stores: store_adapters.py).
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from store_adapters import StoresUnderTest

from bucketsched.ports import Catalog, CheckpointStore, KeyStore, TaskStore


def adapters(family: str) -> list[Any]:
    """One pytest param for each factory module of a family, its value the module."""
    files = sorted(Path(__file__).parent.glob(f"factories_{family}_*.py"))
    modules = [importlib.import_module(file.stem) for file in files]
    return [pytest.param(module, id=module.NAME, marks=module.MARKS) for module in modules]


@pytest.fixture(params=adapters("store"))
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[StoresUnderTest]:
    """The stores of one adapter."""
    async with request.param.open_stores(request) as opened:
        yield opened


@pytest.fixture
def tasks(stores: StoresUnderTest) -> TaskStore:
    return stores.tasks


@pytest.fixture
def checkpoints(stores: StoresUnderTest) -> CheckpointStore:
    return stores.checkpoints


@pytest.fixture
def keys(stores: StoresUnderTest) -> KeyStore:
    return stores.keys


@pytest.fixture
def catalog(stores: StoresUnderTest) -> Catalog:
    return stores.catalog
