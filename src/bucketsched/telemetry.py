"""Logs: structured, to stderr, for people or for machines.

All of them take the same way: what the code says through structlog, what libraries and the SDK say through `logging`,
warnings, and errors that nobody caught.

What is said again and again, such as that a server can't be reached, is marked by `recurring=True` at its source. It is
logged the first time, then at growing intervals, with how often it was said meanwhile.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
RECURRING_S_MIN, RECURRING_S_MAX = 1.0, 60.0
"""The first and the longest interval between two lines of one kind."""
FORGOTTEN_S = 2 * RECURRING_S_MAX
"""What was not said for so long is new again."""
KINDS_MAX = 1_000
MARK = "recurring"


@dataclass(slots=True)
class _Told:
    """When a line may be logged again, and what was left out since the last one."""

    next_at: float
    interval_s: float
    said_at: float
    left_out: int = 0


class Recurring:
    """A processor: drops events marked as recurring that come too soon; `repeated` says how many were dropped.

    Events are of one kind if they have the same text and the same `recurring`, which may be a name instead of True.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._told: dict[tuple[str, object], _Told] = {}

    def __call__(self, _: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Raises DropEvent."""
        mark = event.pop(MARK, None)
        if not mark:
            return event
        now, key = self._monotonic(), (str(event.get("event")), mark)
        told = self._told.get(key)
        if told is None or now - told.said_at > FORGOTTEN_S:
            self._first(key, now)
            return event
        told.said_at = now
        if now < told.next_at:
            told.left_out += 1
            raise structlog.DropEvent
        event["repeated"] = told.left_out + 1
        told.left_out, told.interval_s = 0, min(2 * told.interval_s, RECURRING_S_MAX)
        told.next_at = now + told.interval_s
        return event

    def _first(self, key: tuple[str, object], now: float) -> None:
        if len(self._told) >= KINDS_MAX:
            self._told.clear()
        self._told[key] = _Told(now + RECURRING_S_MIN, RECURRING_S_MIN, now)


def configure(level: Literal["debug", "info", "warning", "error"], form: Literal["console", "json"]) -> None:
    """Once, at the start of a process."""
    common: list[structlog.typing.Processor] = [
        Recurring(),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(default=str)
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    _configure_logging(LEVELS[level], common, renderer)


def _configure_logging(
    level: int, common: list[structlog.typing.Processor], renderer: structlog.typing.Processor
) -> None:
    """What comes by the standard library's `logging` looks the same. Libraries are heard from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *common[1:]],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    recurring = common[0]
    handler.addFilter(lambda record: _passes(record, recurring))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(level, logging.WARNING))
    logging.getLogger("bucketsched").setLevel(level)
    logging.captureWarnings(True)
    # kazoo and aiokafka warn at every reconnect; what matters of it is logged by the adapters
    for noisy in ("kazoo", "aiokafka", "cassandra"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)


def _passes(record: logging.LogRecord, recurring: structlog.typing.Processor) -> bool:
    """Leaves out what recurs; a formatter could not."""
    mark = getattr(record, MARK, None)
    if not mark:
        return True
    try:
        told = recurring(None, "", {"event": record.msg, MARK: mark})
    except structlog.DropEvent:
        return False
    delattr(record, MARK)
    if isinstance(told, dict) and "repeated" in told:
        record.repeated = told["repeated"]
    return True
