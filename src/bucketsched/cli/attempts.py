"""Attempts as they are shown."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from .output import instant

if TYPE_CHECKING:
    from ..client import Attempt

COLUMNS = ("generation", "attempt", "started", "ended", "outcome", "worker", "error", "result", "retry_due")
TEXT_MAX = 200
"""Characters of an error or a result that a table shows."""


def described_attempt(found: Attempt) -> dict[str, Any]:
    """All of it."""
    return {
        "generation": found.generation,
        "attempt": found.attempt,
        "started": instant(found.started),
        "ended": instant(found.ended),
        "outcome": found.outcome and str(found.outcome),
        "worker": found.worker,
        "error_type": found.error_type,
        "error_message": found.error_message,
        "error_trace": found.error_trace,
        "retry_due": instant(found.retry_due),
        **_result(found.result),
    }


def row_of(found: Attempt) -> dict[str, Any]:
    """A line of a table."""
    described = described_attempt(found)
    error = ": ".join(part for part in (found.error_type, found.error_message) if part)
    result = described.get("result", described.get("result_base64"))
    return described | {"error": _shortened(error), "result": _shortened(result or "")}


def summary(attempts: tuple[Attempt, ...]) -> str | None:
    """How they ended, in a line."""
    return ", ".join(f"{each.generation}/{each.attempt} {each.outcome or 'not ended'}" for each in attempts) or None


def _result(result: bytes) -> dict[str, str]:
    """As text where it is text, else in base64."""
    try:
        return {"result": result.decode()}
    except UnicodeDecodeError:
        return {"result_base64": base64.b64encode(result).decode()}


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}…"
