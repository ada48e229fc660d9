"""Named places at which a test may kill the process or fail a call.

Production installs nothing, and `reach` is then one comparison. A test process sets BUCKETSCHED_FAILPOINT, and the
application installs a hook (`app.install_failpoint`).
"""

from __future__ import annotations

from collections.abc import Callable

NAMES = frozenset(
    {
        "dispatch.produced",  # records sent, transaction not yet ended
        "dispatch.committed",  # transaction ended, nothing marked
        "dispatch.marked",  # marks stored
        "takeover.leased",
        "takeover.checkpoint-read",
        "takeover.fenced",
        "takeover.replayed",
        "takeover.checkpoint-written",
        "takeover.cleared",
        "takeover.loaded",  # a page of rows taken in, nothing of it dispatched
        "preload.checkpoint-read",
        "preload.loaded",  # ready to take the range, which is still another's
        "hand-over.stored",  # progress stored, still dispatching
        "hand-over.stopped",  # nothing of the range is under way any more
        "hand-over.released",
        "close.read",
        "close.journaled",
        "create.stored",  # rows stored, owner not yet told
        "move.row-written",
        "mail.answered",  # the mail server has answered, nobody was told
        "sqs.answered",  # SQS has answered, nobody was told
        "webhook.answered",  # the receiver has answered, nobody was told
        "plan.computed",  # coordinator: plan computed, not yet written
    }
)

_hook: Callable[[str], None] | None = None


def install(hook: Callable[[str], None] | None) -> None:
    """Calls `hook` with the name of every failpoint that is reached; None removes it."""
    global _hook
    _hook = hook


def reach(name: str) -> None:
    """Marks a place in the code that a test may want to stop at."""
    if _hook is not None:
        assert name in NAMES, name
        _hook(name)
