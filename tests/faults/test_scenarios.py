"""Scenarios break what there is, and heal it in time for something to be due afterwards."""

from __future__ import annotations

import pytest
from tests.faults.cluster import ROLES
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.faults.schedule import Targets

SERVERS = ("cassandra", "cassandra-2", "cassandra-3", "kafka", "kafka-2", "kafka-3", "zookeeper")


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_a_scenario_fits_its_cluster(scenario: Scenario) -> None:
    pollers = tuple(name for name in scenario.nodes if "poller" in ROLES[name])
    faults = scenario.faults(Targets(scenario.nodes, pollers, pollers, SERVERS, ()))
    assert {name for fault in faults for name in fault.target.split(",")} <= {*scenario.nodes, *SERVERS}
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert max(fault.end_s for fault in faults) <= scenario.seconds - 10
