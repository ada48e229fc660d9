"""docker-compose.yml as a document: what it names exists, what it publishes stays on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bucketsched.config import ROLES, Settings, load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ("cassandra", "zookeeper", "kafka")
NODES = [name for name in SERVICES if name not in SERVERS]
PINNED = re.compile(r"^[a-z0-9./-]+:\d+\.\d+(\.\d+)?[a-z0-9.-]*$")


def environment(name: str) -> dict[str, str]:
    found: dict[str, str] = SERVICES[name].get("environment", {})
    return found


@pytest.mark.parametrize("name", SERVERS)
def test_images_are_pinned(name: str) -> None:
    assert PINNED.match(SERVICES[name]["image"])


@pytest.mark.parametrize("name", NODES)
def test_our_image_is_built_from_this_source(name: str) -> None:
    build = SERVICES[name]["build"]
    dockerfile = ROOT / build["context"] / build["dockerfile"]
    bases = re.findall(r"(?m)^FROM (\S+)", dockerfile.read_text())
    assert bases
    assert all(PINNED.match(base) for base in bases)


def test_our_image_is_not_root() -> None:
    users = re.findall(r"(?m)^USER (\S+)", (ROOT / "deploy" / "Dockerfile").read_text())
    assert users
    assert users[-1] not in ("0", "root")


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_no_port_is_published_twice() -> None:
    ports = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))


def has_healthcheck(service: dict[str, Any]) -> bool:
    """Its own, or that of our image."""
    own = service.get("healthcheck", {})
    return not own.get("disable") if own else "build" in service


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_wait_for_a_condition_that_can_come(name: str) -> None:
    depends = SERVICES[name].get("depends_on", {})
    assert isinstance(depends, dict), "a bare list waits for nothing"
    for other, how in depends.items():
        if how["condition"] == "service_healthy":
            assert has_healthcheck(SERVICES[other]), other
        else:
            assert how["condition"] == "service_completed_successfully"
            assert SERVICES[other]["restart"].startswith("on-failure"), f"{other} would never be completed"


@pytest.mark.parametrize("name", NODES)
def test_nodes_start_after_the_servers_and_the_migration(name: str) -> None:
    expected = set(SERVERS) if name == "migrate" else {*SERVERS, "migrate"}
    assert set(SERVICES[name]["depends_on"]) == expected


@pytest.mark.parametrize("name", NODES)
def test_environment_names_real_settings(name: str) -> None:
    ours = [key for key in environment(name) if key.startswith("BUCKETSCHED_")]
    assert ours
    for key in ours:
        section, _, setting = key.removeprefix("BUCKETSCHED_").lower().partition("__")
        kind = Settings.model_fields[section].annotation
        assert kind is not None
        assert setting in kind.model_fields, key


@pytest.mark.parametrize("name", NODES)
def test_environment_makes_valid_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environment(name).items():
        assert isinstance(value, str), f"{key} must be quoted"
        monkeypatch.setenv(key, value)
    settings = load()
    assert list(settings.cassandra.contact_points) == json.loads(
        environment(name)["BUCKETSCHED_CASSANDRA__CONTACT_POINTS"]
    )
    assert settings.kafka.bootstrap in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert settings.cassandra.replication == settings.kafka.replication == 1, "there is one node of each"


@pytest.mark.parametrize("name", [name for name in NODES if name != "migrate"])
def test_others_can_reach_every_node(name: str) -> None:
    """A bound 0.0.0.0 is no address to give to others."""
    assert environment(name)["BUCKETSCHED_NODE__ADVERTISE_INTERNAL"] == f"{name}:7401"
    advertised = environment(name)["BUCKETSCHED_NODE__ADVERTISE_GRPC"]
    published = [f"127.0.0.1:{port.split(':')[1]}" for port in SERVICES[name].get("ports", [])]
    assert advertised in [f"{name}:7400", *published]


def test_every_role_runs_somewhere() -> None:
    roles = {role for name in NODES for role in SERVICES[name]["command"][-1].split(",") if role in ROLES}
    assert roles == set(ROLES)


@pytest.mark.parametrize("name", SERVICES)
def test_named_volumes_exist(name: str) -> None:
    for volume in SERVICES[name].get("volumes", []):
        assert volume.split(":")[0] in COMPOSE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_memory_is_bounded(name: str) -> None:
    assert "mem_limit" in SERVICES[name]


def test_cassandra_acknowledges_what_is_on_disk() -> None:
    command = SERVICES["cassandra"]["command"][0]
    assert "commitlog_sync: group" in command
    assert "commitlog_sync_group_window: 2ms" in command
    assert "/^commitlog_sync/d" in command, "group refuses to start beside the image's commitlog_sync_period"
