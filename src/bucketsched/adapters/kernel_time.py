"""What the kernel says of the time: its clocks, and how exact they are by its own account."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from ..core.clock_discipline import Look

BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine is suspended. (Where there is none, as on macOS, the monotonic clock does.)"""
BRACKET_NS_MAX = 50_000
TRIES = 5
STA_UNSYNC, STA_NANO = 0x0040, 0x2000
TIME_ERROR = 5
NS_PER_US = 1_000


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 168),
    )


def _find_adjtimex() -> Callable[..., int] | None:
    try:
        return ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None


_adjtimex = _find_adjtimex()


def boot_ns() -> int:
    """Nanoseconds since boot, suspension included."""
    return time.clock_gettime_ns(BOOT)


def look() -> Look:
    """Both clocks at one instant, as near as a few readings get."""
    best: tuple[int, int, int] | None = None
    for _ in range(TRIES):
        before, wall, after = boot_ns(), time.time_ns(), boot_ns()
        if best is None or after - before < best[0]:
            best = after - before, (before + after) // 2, wall
        if best[0] <= BRACKET_NS_MAX:
            break
    assert best is not None
    return Look(best[1], best[2], max_error_ns())


def max_error_ns() -> int | None:
    """The kernel's bound of its clock's error; None: it does not know that it is synchronised."""
    if _adjtimex is None:
        return None
    timex = _Timex()
    state = _adjtimex(ctypes.byref(timex))
    if state < 0 or state == TIME_ERROR or timex.status & STA_UNSYNC:
        return None
    return int(timex.maxerror) * NS_PER_US
