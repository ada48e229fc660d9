"""How wrong the kernel's clock may be, from what the kernel says about it (adjtimex).

The kernel lets its `maxerror` grow by 500 ppm until the time daemon sets it anew: after half an hour between two polls
it says a second, of a clock that is right to a millisecond. So what the daemon has set counts, and grows by what a
disciplined clock really drifts. Before a daemon was seen setting it, the kernel's figure is not known to be either.
"""

from __future__ import annotations

DISCIPLINED_PPM = 2
"""How fast a clock drifts, at most, whose frequency a daemon corrects."""


class KernelBound:
    """Follows `maxerror` over time. Nanoseconds."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._set: tuple[int, int] | None = None

    def observe(self, max_error_ns: int | None, boot_ns: int) -> None:
        """What the kernel says now; None: it is not synchronised."""
        if max_error_ns is None:
            self._set = None
        elif self._last_ns is not None and max_error_ns < self._last_ns:
            self._set = (max_error_ns, boot_ns)
        self._last_ns = max_error_ns

    def error_ns(self, boot_ns: int) -> int | None:
        """The bound now; None: not known (yet)."""
        if self._set is None:
            return None
        error_ns, since_ns = self._set
        return error_ns + (boot_ns - since_ns) * DISCIPLINED_PPM // 1_000_000
