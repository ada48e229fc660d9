"""Settings and the limits that are made from them agree, and nothing that is accepted is too large to be sent."""

from __future__ import annotations

import dataclasses

import pytest

from bucketsched.app.node import limits_of
from bucketsched.config import RECORD_BYTES_PER_TASK, RECORD_OVERHEAD_BYTES, PollerSettings, Settings, load
from bucketsched.core.errors import ConfigError
from bucketsched.core.journal_record import JournalRecord, Other, Section, encode
from bucketsched.core.task import FactKind
from bucketsched.core.validation import Limits
from bucketsched.poller.limits import REASON_CHARACTERS_MAX, LaneLimits


def test_the_pollers_defaults_are_the_settings_defaults() -> None:
    defaults = dataclasses.asdict(LaneLimits())
    assert PollerSettings().model_dump().items() <= defaults.items()


def test_the_services_defaults_are_the_settings_defaults() -> None:
    assert limits_of(Settings()) == Limits()


def test_a_task_that_is_accepted_fits_into_a_message() -> None:
    with pytest.raises(ConfigError, match="message_bytes_max must be at least"):
        load(None, {"limits": {"payload_bytes_max": 1_000_000}})
    load(None, {"limits": {"payload_bytes_max": 1_000_000}, "kafka": {"message_bytes_max": 1_100_000}})


def test_the_record_of_a_full_transaction_fits_into_a_message() -> None:
    with pytest.raises(ConfigError, match="transaction_tasks_max = 20000"):
        load(None, {"poller": {"transaction_tasks_max": 20_000}})
    worst = JournalRecord(1023, bytes(16), 0, [Section(r, 1) for r in range(1_024)])
    worst.sections[0].dispatched = [bytes(48)] * 2_000
    worst.sections[0].others = [Other(FactKind.MOVED, bytes(48), new_due_ms=1) for _ in range(2_000)]
    worst.sections[0].others += [Other(FactKind.FAILED, bytes(48), reason="x" * REASON_CHARACTERS_MAX)] * 500
    settings = load(None, {"poller": {"transaction_tasks_max": 2_000}})
    assert len(encode(worst)) <= 2 * 2_000 * RECORD_BYTES_PER_TASK + RECORD_OVERHEAD_BYTES
    assert len(encode(worst)) <= settings.kafka.message_bytes_max
