"""Clusters of real processes for the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.nodes import Cluster
from tools.stack import Addresses

_living: list[Cluster] = []


@pytest.fixture(scope="module")
def make_cluster(stack: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Makes migrated clusters, which are closed at the end of the module. Keywords: constants of the cluster."""
    made: list[Cluster] = []

    def make(**constants: int) -> Cluster:
        made.append(Cluster(stack, tmp_path_factory.mktemp("cluster"), **constants))
        _living.append(made[-1])
        return made[-1]

    yield make
    for cluster in made:
        _living.remove(cluster)
        cluster.close()


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """What the processes logged during a test is printed behind it: pytest shows it where the test failed."""
    yield
    for cluster in _living:
        cluster.show_logs()
