"""Logs: structured, to stderr, for people or for machines."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(level: Literal["debug", "info", "warning", "error"], form: Literal["console", "json"]) -> None:
    """Once, at the start of a process."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(stream=sys.stderr, level=max(_LEVELS[level], logging.WARNING))
    # kazoo and aiokafka warn at every reconnect; what matters of it is logged by the adapters
    for noisy in ("kazoo", "aiokafka", "cassandra"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
