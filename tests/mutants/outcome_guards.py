"""The guards of outcomes: one for each attempt, told before it is forgotten, followed by what the policy says."""

from __future__ import annotations

from .guards import Guard

CHANGES, FEED, SUCCESSORS = "poller/changes.py", "delivery/queue_feed.py", "poller/successors.py"
OUTCOMES, NOTICES, HUB = (
    "tests/unit/test_lane_outcomes.py",
    "tests/unit/test_lane_notices.py",
    "tests/unit/test_hub.py",
)
TELLING, WORKER, RETRY = (
    "tests/unit/test_owner_outcomes.py",
    "tests/unit/test_worker.py",
    "tests/unit/test_retry.py",
)

OUTCOME_GUARDS = [
    # ---------------------------------------------------------------- the first one counts
    Guard(
        "an-outcome-has-a-place-of-its-own",
        "else the fact of its dispatch would answer for it",
        CHANGES,
        "report.attempt.clipped(), at_stage(ref, Stage.OUTCOME)",
        "report.attempt.clipped(), ref",
        (OUTCOMES,),
    ),
    Guard(
        "a-stored-outcome-is-an-outcome",
        "what was forgotten here is known from the row",
        CHANGES,
        "row, ended = stored.row, stored.facts.settled and kind_of(stored.facts) is not FactKind.DISPATCHED",
        "row, ended = stored.row, False",
        (OUTCOMES,),
    ),
    Guard(
        "outcomes-are-remembered-as-long-as-dispatches",
        "who knows of the dispatch alone takes a second outcome without a look at the row",
        "poller/owned_range.py",
        "stage_of(ref) is not Stage.DISPATCH or self.covered(",
        "self.covered(",
        (OUTCOMES,),
    ),
    Guard(
        "what-was-not-dispatched-has-no-outcome",
        "a task that waits would be over",
        CHANGES,
        "                    return EndResult.NOT_FOUND\n                row, ended",
        "                    pass\n                row, ended",
        (OUTCOMES,),
    ),
    Guard(
        "a-dispatch-in-doubt-may-have-an-outcome",
        "it would be lost, and a failure never followed by another attempt",
        CHANGES,
        "if stored.row.due_ms <= self._clock.now_ms():",
        "if False:",
        (OUTCOMES,),
    ),
    Guard(
        "a-repeated-report-is-taken-again",
        "whose answer was lost would be told that somebody else came first",
        CHANGES,
        "return EndResult.TAKEN if same else EndResult.ALREADY_ENDED",
        "return EndResult.ALREADY_ENDED",
        (OUTCOMES,),
    ),
    # ---------------------------------------------------------------- retries
    Guard(
        "a-retry-that-is-not-stored-is-known",
        "the store still says that the task is dispatched, and that a cancel comes too late",
        CHANGES,
        "return any(status is not None and status % MARKED in (FactKind.RETRIED, FactKind.MOVED) for status in later)",
        "return False",
        (OUTCOMES,),
    ),
    Guard(
        "an-attempt-before-its-row",
        "its outcome would be of no task",
        CHANGES,
        "                    if owned.status(ref) in DISPATCHED:\n"
        '                        raise Unavailable("the attempt\'s row is yet to be stored")\n',
        "",
        (OUTCOMES,),
    ),
    Guard(
        "a-retry-is-the-next-attempt",
        "two dispatches of one name",
        SUCCESSORS,
        "old.attempt + retried",
        "old.attempt",
        (OUTCOMES,),
    ),
    Guard(
        "a-final-error-is-final",
        "what can't succeed is not tried again",
        CHANGES,
        "if report.final or attempt.error_type in policy.final_errors:",
        "if report.final:",
        (OUTCOMES,),
    ),
    Guard(
        "no-retry-beyond-the-expiry",
        "an attempt that would only expire",
        CHANGES,
        "return None if 0 < row.body.expires_ms < due_ms else due_ms",
        "return due_ms",
        (OUTCOMES,),
    ),
    Guard(
        "expired-rows-do-not-go",
        "it is of no use any more",
        "poller/dispatcher.py",
        "if 0 < row.body.expires_ms < batch.at_ms:",
        "if False:",
        (OUTCOMES,),
    ),
    Guard(
        "a-replay-goes-on-with-retries",
        "a retry that only the journal has would be lost",
        SUCCESSORS,
        "        if o.new_due_ms\n",
        "        if o.new_due_ms and o.kind is not FactKind.RETRIED\n",
        (OUTCOMES,),
    ),
    # ---------------------------------------------------------------- notices
    Guard(
        "a-replay-goes-on-with-notices",
        "a notice that only the journal has would be lost",
        SUCCESSORS,
        "        if o.new_due_ms\n",
        "        if o.new_due_ms and o.kind is not FactKind.SPAWNED\n",
        (NOTICES,),
    ),
    Guard(
        "nothing-is-told-of-notices",
        "each would make another one, for ever",
        "core/notices.py",
        "if not queues or is_notice(row.body):",
        "if not queues:",
        (NOTICES,),
    ),
    # ---------------------------------------------------------------- delivering
    Guard(
        "told-before-it-is-acknowledged",
        "a crash between the two would leave no trace of the outcome",
        FEED,
        "        self._outcomes.ended(report, told)\n",
        "        self._outcomes.ended(report, lambda _: None)\n        self._settle(held)\n",
        (HUB,),
    ),
    Guard(
        "what-is-being-told-is-not-forgotten",
        "after a break it would be offered again",
        FEED,
        "if held.worker is None and not held.ending:",
        "if held.worker is None:",
        (HUB,),
    ),
    Guard(
        "one-end-for-each-lease",
        "a worker that says two things of an attempt",
        FEED,
        "held is not None and not held.ending and held.had_lease(lease_id)",
        "held is not None and held.had_lease(lease_id)",
        (HUB,),
    ),
    Guard(
        "what-was-never-read-does-not-time-out",
        "a worker that does not read would use up attempts",
        FEED,
        "if worker is None or not worker.has_read(held.lease_id):",
        "if worker is None:",
        (HUB,),
    ),
    Guard(
        "a-task-that-kills-its-workers-ends",
        "it would be offered for ever",
        FEED,
        "if held.lost > self._limits.lost_max:",
        "if False:",
        (HUB,),
    ),
    Guard(
        "outcomes-are-told-until-they-are-known",
        "an owner that is away for a moment would lose them",
        "delivery/outcomes.py",
        "        self._waiting.extend(again)\n",
        "",
        (TELLING,),
    ),
    Guard(
        "the-lease-of-what-is-at-work-is-extended",
        "a long task would time out while it runs",
        "client/worker.py",
        "                link.extend(lease_ids, lease)\n",
        "                pass\n",
        (WORKER,),
    ),
]
