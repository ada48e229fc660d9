"""How a lane works, and how much of everything it may have. Validated in `config.PollerSettings`."""

from __future__ import annotations

from dataclasses import dataclass

REMEMBER_MS = 30_000
"""How long a settled row is remembered after its due time, and how far `low_due` trails: the window of the rescan."""
RECENT_MS = 15_000
"""A checkpoint that is no older tells by its `low_due`, which trails its writing by REMEMBER_MS, up to when its range
was dispatched in time; but for LIKELY_LATE_MS. What nevertheless was not, the scan finds."""
LIKELY_LATE_MS = 2_000
HINT_TRUST_MS = 20_000
"""A hint of a row that was due longer ago is not answered from memory: an heir would not look so far back for it. It is
read, and a committed record answers for it."""
LOAD_FIRST_MS = 5_000
"""What is due within this is urgent: the loader may take twice its budget for it."""
LOAD_AT_ONCE_MS = 1_000
"""A partition with unread rows due within this is read up to LOAD_FIRST_MS first, and to its bucket's end later."""
RESCAN_AHEAD_MS = 10_000
PRELOAD_AHEAD_MS = 10_000
"""How far ahead a range is read that is not owned yet. Ready is what is read half as far."""
REOPEN_MS = 3_600_000
"""How far back buckets are opened again that were closed while the clock was ahead, for about as long."""
ADMISSION_S_MAX = 2.0
"""How long an admission waits for the record that proves it."""
HAND_OVER_S_MAX = 2.0
"""How long a hand-over waits for the store before the range goes on being served."""
FAILURES_PER_TRANSACTION_MAX = 500
RECORD_BODIES_BYTES_MAX = 256 * 1024
"""Changed tasks' bodies in one journal record, which has to fit into a Kafka message. A larger one goes alone."""
REASON_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Milliseconds, rows and bytes; see config.PollerSettings for each."""

    transaction_interval_ms: float = 10
    transaction_tasks_max: int = 2_000
    transaction_bytes_max: int = 4 * 1024 * 1024
    heap_rows_max: int = 100_000
    heap_bytes_max: int = 512 * 1024 * 1024
    page_rows_max: int = 1_000
    reads_in_flight_max: int = 8
    mark_interval_ms: int = 1_000
    checkpoint_interval_ms: int = 5_000
    rescan_interval_ms: int = 5_000
    ageing_ms: int = 30_000
    mutations_waiting_max: int = 100_000
    marks_waiting_max: int = 1_000_000
    """Unwritten marks at which dispatch waits for the store: beyond it memory would grow without a bound."""
