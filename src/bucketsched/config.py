"""Settings: defaults, validated once, frozen. Flag > environment > file > default.

Environment: BUCKETSCHED_<SECTION>__<KEY>, e.g. BUCKETSCHED_CASSANDRA__CONTACT_POINTS='["10.0.0.1:9042"]'; a secret can
also be given as a file: BUCKETSCHED_CASSANDRA__PASSWORD_FILE. File: TOML with the same sections, named by --config or
BUCKETSCHED_CONFIG.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from .core.errors import ConfigError

Role = Literal["api", "poller", "coordinator", "deliver"]
ROLES: tuple[Role, ...] = ("api", "poller", "coordinator", "deliver")
MESSAGE_OVERHEAD_BYTES = 4_096
"""What a message has beside payload and metadata, at most."""
RECORD_BYTES_PER_TASK = 64
RECORD_OVERHEAD_BYTES = 192 * 1024
"""Headings of 1,024 ranges, and the reasons of 500 tasks that can't be sent."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,47}$")]


def split_address(value: str) -> tuple[str, int]:
    """Host and port of "host:port". Raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValueError(f"must be host:port with a port of 0 to 65535, is {value!r}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """True for localhost and loopback addresses."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Section(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NodeSettings(Section):
    """Who this process is. Addresses are host:port; port 0 takes a free one."""

    roles: tuple[Role, ...] = ROLES
    grpc_address: str = "127.0.0.1:7400"
    internal_address: str = "127.0.0.1:7401"
    advertise_grpc: str = ""
    """How clients and workers reach grpc_address; empty: as bound."""
    advertise_internal: str = ""
    """How other nodes reach internal_address; empty: as bound."""
    metrics_address: str = "127.0.0.1:7402"
    """Where /metrics (Prometheus) and /healthz are served over HTTP; empty: nowhere."""
    http_address: str = ""
    """Where the api role serves REST, such as 127.0.0.1:8080; empty: nowhere."""
    allow_insecure_bind: bool = False
    """There is no TLS yet: binding to anything but loopback needs this said explicitly."""
    reflection: bool = True
    name: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,62})?$")
    """By which operators know it (`admin nodes`, `admin drain`); keep it over restarts. Empty: host and pid."""
    zone: str = ""
    """Where it runs: ranges are spread over zones by the weights of their nodes."""
    weight: int = Field(1, ge=1, le=100)
    """Its share of the ranges, beside the others' weights."""
    clock_error_ms: int = Field(2, ge=0, le=1000)
    """Bound of the kernel clock's error where the kernel gives none; nothing is dispatched before due + the bound."""
    clock_error_ms_max: int = Field(10, ge=1, le=10_000)
    """A node whose kernel says that its clock is less exact than this gives its ranges to others."""
    clock_offset_ms_max: int = Field(500, ge=20, le=60_000)
    """A node whose kernel clock is off by more, as most witnesses say, gives its ranges to others and takes none."""
    cut_off_s_max: float = Field(3, ge=1, le=600)
    """A node with a lane that can't reach Kafka or Cassandra for so long leaves its ranges to nodes that can."""
    start_s_max: float = Field(60, ge=0, le=3_600)
    """How long a start waits for Cassandra and ZooKeeper, which may be starting, too."""
    shutdown_s_max: float = Field(20, gt=0, le=600)

    @field_validator(
        "grpc_address", "internal_address", "metrics_address", "http_address", "advertise_grpc", "advertise_internal"
    )
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value:
            split_address(value)
        return value

    @field_validator("roles")
    @classmethod
    def _has_roles(cls, value: tuple[Role, ...]) -> tuple[Role, ...]:
        if not value:
            raise ValueError(f"needs at least one of {', '.join(ROLES)}")
        return tuple(role for role in ROLES if role in value)

    @model_validator(mode="after")
    def _binds_safely(self) -> NodeSettings:
        optional = (self.metrics_address, self.http_address)
        for address in (self.grpc_address, self.internal_address, *filter(None, optional)):
            if not self.allow_insecure_bind and not is_loopback(split_address(address)[0]):
                raise ValueError(f"{address} is not a loopback address: set node.allow_insecure_bind to serve there")
        return self


class CassandraSettings(Section):
    """Where the rows are."""

    contact_points: tuple[str, ...] = ("127.0.0.1:9042",)
    keyspace: Name = "bucketsched"
    local_datacenter: str = "datacenter1"
    replication: int = Field(3, ge=1, le=9)
    username: str = ""
    password: SecretStr = SecretStr("")
    request_timeout_ms: int = Field(2_000, ge=100, le=60_000)
    batch_rows_max: int = Field(20, ge=1, le=200)
    """Rows in one unlogged batch."""
    batch_bytes_max: int = Field(40 * 1024, ge=1024, le=1024 * 1024)
    """Below the server's batch_size_fail_threshold (50 KiB by default)."""
    batch_delay_ms_max: float = Field(2, ge=0, le=50)
    """How long a group commit gathers."""
    batches_in_flight_max: int = Field(64, ge=1, le=1024)
    rows_waiting_max: int = Field(50_000, ge=100)

    @field_validator("contact_points")
    @classmethod
    def _are_addresses(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one host:port")
        for item in value:
            split_address(item)
        return value


class ZooKeeperSettings(Section):
    """Where ownership is decided."""

    hosts: str = "127.0.0.1:2181"
    """host:port, separated by commas."""
    root: str = Field("/bucketsched", pattern=r"^(/[A-Za-z0-9_.-]+)+$")
    session_timeout_ms: int = Field(2_000, ge=1_000, le=60_000)
    auth: SecretStr = SecretStr("")
    """user:password for the digest scheme; empty: none."""


class KafkaSettings(Section):
    """Where tasks go, and the journal."""

    bootstrap: str = "127.0.0.1:9092"
    """host:port, separated by commas."""
    replication: int = Field(3, ge=1, le=9)
    min_insync_replicas: int = Field(2, ge=1, le=9)
    partitions: int = Field(8, ge=1, le=1_000)
    """Of a queue's topic, unless the queue says otherwise."""
    transaction_timeout_ms: int = Field(10_000, ge=1_000, le=60_000)
    message_bytes_max: int = Field(1_000_000, ge=10_000, le=64 * 1024 * 1024)
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str = ""
    password: SecretStr = SecretStr("")
    ca_file: str = ""
    journal_retention_ms: int = Field(86_400_000, ge=3_600_000, le=30 * 86_400_000)
    """How long the journal is kept behind the checkpoints, for `admin fsck`: 1 h to 30 days."""

    @model_validator(mode="after")
    def _replicas_suffice(self) -> KafkaSettings:
        if self.min_insync_replicas > self.replication:
            raise ValueError("min_insync_replicas must not exceed replication")
        return self


class LimitSettings(Section):
    """What a task may be. The service refuses more with INVALID_ARGUMENT."""

    payload_bytes_max: int = Field(64 * 1024, ge=0, le=16 * 1024 * 1024)
    metadata_entries_max: int = Field(32, ge=0, le=1_000)
    metadata_bytes_max: int = Field(8 * 1024, ge=0, le=256 * 1024)
    delay_days_max: float = Field(400, gt=0, le=36_500)
    batch_tasks_max: int = Field(1_000, ge=1, le=10_000)
    create_timeout_ms: int = Field(10_000, ge=100, le=120_000)
    """How long a create is tried before it is answered UNAVAILABLE; less where the client's deadline is nearer."""


class PollerSettings(Section):
    """How a lane works."""

    transaction_interval_ms: float = Field(10, ge=0, le=1_000)
    transaction_tasks_max: int = Field(2_000, ge=1, le=20_000)
    transaction_bytes_max: int = Field(4 * 1024 * 1024, ge=64 * 1024, le=64 * 1024 * 1024)
    heap_rows_max: int = Field(100_000, ge=100, le=10_000_000)
    """Rows of one range in memory."""
    heap_bytes_max: int = Field(512 * 1024 * 1024, ge=1024 * 1024, le=64 * 1024**3)
    """Rows of all ranges in memory."""
    page_rows_max: int = Field(1_000, ge=10, le=10_000)
    reads_in_flight_max: int = Field(8, ge=1, le=256)
    mark_interval_ms: int = Field(1_000, ge=10, le=5_000)
    checkpoint_interval_ms: int = Field(5_000, ge=100, le=60_000)
    rescan_interval_ms: int = Field(5_000, ge=100, le=8_000)
    ageing_ms: int = Field(30_000, ge=0, le=3_600_000)
    """A task this much later than one of the next higher priority goes before it."""


class SmtpLogin(Section):
    """Credentials for one mail server."""

    server: str = ""
    """host:port; no other one gets them."""
    username: str = ""
    password: SecretStr = SecretStr("")


class DeliverSettings(Section):
    """How worker, webhook, SQS and e-mail queues are served."""

    lease_s_default: float = Field(60, ge=1, le=43_200)
    offers_in_flight_max: int = Field(10_000, ge=1, le=100_000)
    """Fetched and unacknowledged messages of one queue in one process."""
    webhook_networks: tuple[str, ...] = ()
    """Networks (CIDR) that are not public and to which webhooks go all the same where a queue allows it, too."""

    sqs_endpoints: tuple[str, ...] = ()
    """Endpoints (URLs) that queues may name besides AWS's own: the process's credentials sign what is sent there."""

    smtp_servers: tuple[str, ...] = ()
    """Mail servers (host:port) that e-mail queues may use."""
    smtp_logins: dict[str, SmtpLogin] = Field(default_factory=dict)
    """Credentials by the names that e-mail queues call them by."""

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ip_network(network)
        return value


class LogSettings(Section):
    """Logs go to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Settings(BaseSettings):
    """All settings of a process of a cluster."""

    model_config = SettingsConfigDict(
        env_prefix="BUCKETSCHED_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=True,
    )

    node: NodeSettings = NodeSettings()
    cassandra: CassandraSettings = CassandraSettings()
    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    kafka: KafkaSettings = KafkaSettings()
    limits: LimitSettings = LimitSettings()
    poller: PollerSettings = PollerSettings()
    deliver: DeliverSettings = DeliverSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment first: `load` gives the file as init values and merges the flags itself."""
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = _with_secrets(env_settings.env_vars)
        return env_settings, init_settings


def load(path: str | None = None, flags: dict[str, dict[str, Any]] | None = None) -> Settings:
    """Reads file and environment, lets flags win, validates. Raises ConfigError with one line."""
    path = path or os.environ.get("BUCKETSCHED_CONFIG")
    given = _read(path) if path else {}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        raise _config_error("", error) from error
    except SettingsError as error:
        raise ConfigError(f"environment: {_not_json() or error}") from error
    settings = _with_flags(settings, flags) if flags else settings
    _check_that_tasks_fit(settings)
    return settings


def _check_that_tasks_fit(settings: Settings) -> None:
    """What is accepted must not turn out to be too large when it is due, nor a full transaction's journal record."""
    limits, tasks_max = settings.limits, settings.poller.transaction_tasks_max
    task = limits.payload_bytes_max + limits.metadata_bytes_max + MESSAGE_OVERHEAD_BYTES
    record = 2 * tasks_max * RECORD_BYTES_PER_TASK + RECORD_OVERHEAD_BYTES
    for size, of in (
        (task, f"limits.payload_bytes_max + limits.metadata_bytes_max + {MESSAGE_OVERHEAD_BYTES}"),
        (record, f"the journal's record of poller.transaction_tasks_max = {tasks_max} tasks and as many changes"),
    ):
        if size > settings.kafka.message_bytes_max:
            raise ConfigError(f"setting kafka.message_bytes_max must be at least {size}: {of}, or it can't be sent")


def _not_json() -> str:
    """Names the variable that should hold a list or section in JSON and does not."""
    for section, field in Settings.model_fields.items():
        assert field.annotation is not None
        for key, setting in field.annotation.model_fields.items():
            name = f"BUCKETSCHED_{section}__{key}".upper()
            if "tuple" in str(setting.annotation) and name in os.environ:
                try:
                    json.loads(os.environ[name])
                except ValueError:
                    return f'{name} must be a list in JSON, such as ["{os.environ[name].split(",")[0]}"]'
    return ""


def redacted(settings: Settings) -> dict[str, dict[str, Any]]:
    """Section to key to value, as JSON has them; secrets are stars."""
    return settings.model_dump(mode="json")


def _with_flags(settings: Settings, flags: dict[str, dict[str, Any]]) -> Settings:
    for name in flags:
        if name not in Settings.model_fields:
            raise ConfigError(f"setting {name}: there is no such section; there are {', '.join(Settings.model_fields)}")
    sections = {name: getattr(settings, name) for name in Settings.model_fields}
    for name, values in flags.items():
        section: Section = sections[name]
        try:
            sections[name] = type(section).model_validate(_revealed(section) | values)
        except ValidationError as error:
            raise _config_error(name, error) from error
    return Settings.model_construct(**sections)


def _config_error(section: str, error: ValidationError) -> ConfigError:
    """One line about the first thing that is wrong."""
    first = error.errors()[0]
    parts = [section, *(str(part) for part in first["loc"])]
    where = ".".join(part for part in parts if part)
    what = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        what = "there is no such setting"
        if len(parts) == 1 or not section:
            what += f"; there are sections {', '.join(Settings.model_fields)}"
    if first["type"] == "tuple_type":
        what = f'must be a list such as ["{first["input"]}"]'
    return ConfigError(" ".join(f"setting {where}: {what}".split()))


def _revealed(section: Section) -> dict[str, Any]:
    return {name: getattr(section, name) for name in type(section).model_fields}


def _with_secrets(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """The environment (names in lower case) with secrets in place of the variables that name files with them."""
    found = dict(variables)
    for section, field in Settings.model_fields.items():
        assert field.annotation is not None
        for key, setting in field.annotation.model_fields.items():
            name = f"bucketsched_{section}__{key}"
            path = found.pop(f"{name}_file", None) if setting.annotation is SecretStr else None
            if path and name not in found:
                found[name] = _secret(f"{name}_file".upper(), path)
    return found


def _secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{variable}: can't read {path}: {reason}") from error


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"settings file {path}: {error}") from error
