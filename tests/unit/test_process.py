"""The frame of a process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bucketsched.app.process import COLLECTOR_THRESHOLDS, run


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    """Other tests have the collector that they had."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Brief:
    """Works for no time, fails, and notes what the collector was set to."""

    def __init__(self) -> None:
        self.thresholds: tuple[int, int, int] | None = None
        self.stopped = False

    async def start(self) -> None:
        self.thresholds = gc.get_threshold()

    async def work(self) -> None:
        raise RuntimeError("a part failed")

    async def stop(self) -> None:
        self.stopped = True


def test_a_failure_ends_the_process_in_order_with_code_1() -> None:
    brief = Brief()
    assert run(brief) == 1
    assert brief.stopped


def test_the_collector_is_calm_while_a_process_works() -> None:
    brief = Brief()
    run(brief)
    assert brief.thresholds == COLLECTOR_THRESHOLDS
