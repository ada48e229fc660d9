"""Settings and the limits that are made from them agree, and nothing that is accepted is too large to be sent."""

from __future__ import annotations

import dataclasses

import pytest

from bucketsched.app.node import limits_of
from bucketsched.config import PollerSettings, Settings, load
from bucketsched.core.errors import ConfigError
from bucketsched.core.validation import Limits
from bucketsched.poller.limits import LaneLimits


def test_the_pollers_defaults_are_the_settings_defaults() -> None:
    defaults = dataclasses.asdict(LaneLimits())
    assert PollerSettings().model_dump().items() <= defaults.items()


def test_the_services_defaults_are_the_settings_defaults() -> None:
    assert limits_of(Settings()) == Limits()


def test_a_task_that_is_accepted_fits_into_a_message() -> None:
    with pytest.raises(ConfigError, match="message_bytes_max must be at least"):
        load(None, {"limits": {"payload_bytes_max": 1_000_000}})
    load(None, {"limits": {"payload_bytes_max": 1_000_000}, "kafka": {"message_bytes_max": 1_100_000}})
