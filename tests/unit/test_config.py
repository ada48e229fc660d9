"""Settings: which source wins, and what is said of wrong ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bucketsched import config
from bucketsched.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("BUCKETSCHED_"):
            monkeypatch.delenv(name)


def settings_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return str(path)


def test_defaults_are_valid() -> None:
    settings = config.load()
    assert settings.node.roles == config.ROLES
    assert settings.limits.payload_bytes_max == 65_536


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = settings_file(tmp_path, "[node]\nweight = 2\nzone = 'file'\n[poller]\nageing_ms = 5\n")
    assert config.load(path).node.weight == 2
    monkeypatch.setenv("BUCKETSCHED_NODE__WEIGHT", "3")
    settings = config.load(path)
    assert (settings.node.weight, settings.node.zone, settings.poller.ageing_ms) == (3, "file", 5)
    settings = config.load(path, {"node": {"weight": 4}})
    assert (settings.node.weight, settings.node.zone, settings.node.reflection) == (4, "file", True)
    monkeypatch.setenv("BUCKETSCHED_CONFIG", path)
    assert config.load().poller.ageing_ms == 5


def test_flags_are_validated_with_the_rest(tmp_path: Path) -> None:
    path = settings_file(tmp_path, "[kafka]\nreplication = 1\nmin_insync_replicas = 1\n")
    with pytest.raises(ConfigError, match="kafka: min_insync_replicas must not exceed replication"):
        config.load(path, {"kafka": {"min_insync_replicas": 2}})


def test_settings_are_frozen() -> None:
    settings = config.load(None, {"node": {"weight": 4}})
    with pytest.raises(Exception, match="frozen"):
        settings.node.weight = 5  # type: ignore[misc]
    with pytest.raises(Exception, match="frozen"):
        settings.node = config.NodeSettings()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("flags", "where"),
    [
        ({"poller": {"x": 1}}, "setting poller.x: there is no such setting"),
        ({"nowhere": {"x": 1}}, "setting nowhere: there is no such section"),
        ({"node": {"weight": "heavy"}}, "setting node.weight: "),
        ({"node": {"grpc_address": "7400"}}, "setting node.grpc_address: must be host:port"),
        ({"node": {"grpc_address": "0.0.0.0:7400"}}, "setting node: 0.0.0.0:7400 is not a loopback address"),
        ({"node": {"http_address": "8080"}}, "setting node.http_address: must be host:port"),
        ({"node": {"http_address": "0.0.0.0:8080"}}, "setting node: 0.0.0.0:8080 is not a loopback address"),
        ({"node": {"roles": []}}, "setting node.roles: needs at least one of"),
        ({"cassandra": {"keyspace": "a-b"}}, "setting cassandra.keyspace: "),
        ({"cassandra": {"contact_points": ["x"]}}, "setting cassandra.contact_points: "),
        ({"kafka": {"replication": 1}}, "setting kafka: min_insync_replicas"),
    ],
)
def test_errors_name_the_setting(flags: dict[str, dict[str, Any]], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(None, flags)
    assert str(caught.value).startswith(where)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[node]\nweight = 0\n", "setting node.weight: "),
        ("[node]\nno = 0\n", "setting node.no: there is no such setting"),
        ("[nowhere]\nx = 0\n", "setting nowhere: there is no such setting"),
        ("node = 5\n", "setting node: "),
        ("node", "settings file "),
    ],
)
def test_errors_in_files_name_the_setting(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(settings_file(tmp_path, text))
    assert str(caught.value).startswith(where)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(ConfigError, match="settings file"):
            config.load(str(path))
    (tmp_path / "latin.toml").write_bytes(b"zone = '\xe9'")
    with pytest.raises(ConfigError, match="settings file"):
        config.load(str(tmp_path / "latin.toml"))


def test_errors_in_the_environment_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETSCHED_POLLER__X", "1")
    with pytest.raises(ConfigError, match=r"setting poller\.x"):
        config.load()
    monkeypatch.delenv("BUCKETSCHED_POLLER__X")
    monkeypatch.setenv("BUCKETSCHED_CASSANDRA__CONTACT_POINTS", "10.0.0.1:9042")
    with pytest.raises(ConfigError, match=r"environment: BUCKETSCHED_CASSANDRA__CONTACT_POINTS must be a list in JSON"):
        config.load()


def test_secrets_come_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("hunter2\n")
    monkeypatch.setenv("BUCKETSCHED_CASSANDRA__PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("BUCKETSCHED_KAFKA__CA_FILE", "/etc/ca.pem")  # a setting whose name only looks like that
    settings = config.load()
    assert settings.cassandra.password.get_secret_value() == "hunter2"
    assert settings.kafka.ca_file == "/etc/ca.pem"


def test_a_secret_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETSCHED_KAFKA__PASSWORD_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="BUCKETSCHED_KAFKA__PASSWORD_FILE: can't read"):
        config.load()


def test_secrets_are_hidden() -> None:
    settings = config.load(None, {"kafka": {"password": "hunter2"}, "zookeeper": {"auth": "me:hunter2"}})
    assert settings.kafka.password.get_secret_value() == "hunter2"
    assert "hunter2" not in str(config.redacted(settings)) + repr(settings)


def test_importing_it_is_light() -> None:
    code = "import sys, bucketsched.config; print([m for m in ('grpc', 'cassandra', 'aiokafka') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
