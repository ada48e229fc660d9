"""The guards of what is told of executions, and of what may be asked for: states, logs, counts, policies, expiry."""

from __future__ import annotations

from .guards import Guard

EXECUTIONS, QUERIES, DIRECTORY = "service/executions.py", "service/queries.py", "poller/queue_directory.py"
VALIDATION, CHECK = "core/validation.py", "core/retry_check.py"
API, ASKED, FOLLOWED, LANE = (
    "tests/unit/test_api_executions.py",
    "tests/unit/test_retry_check.py",
    "tests/unit/test_queue_directory.py",
    "tests/unit/test_lane_outcomes.py",
)

EXECUTION_GUARDS = [
    # ---------------------------------------------------------------- states
    Guard(
        "running-is-the-newest-attempt",
        "an earlier attempt whose end was never told would look as if it were at work",
        EXECUTIONS,
        "(last.generation, last.attempt) == (row.generation, row.attempt) and ",
        "",
        (API,),
    ),
    Guard(
        "what-has-ended-is-not-running",
        "its row says how it ended only when it is marked",
        EXECUTIONS,
        " and last.end is None",
        "",
        (API,),
    ),
    Guard(
        "logs-are-not-read-in-vain",
        "of tasks of Kafka queues there are none, and a listing would read one for each",
        EXECUTIONS,
        "if not _begun(stored) or not await self._tracked(stored):",
        "if not _begun(stored):",
        (API,),
    ),
    Guard(
        "running-ones-are-found-among-the-dispatched",
        "rows know nothing of RUNNING",
        "core/task_query.py",
        "return TaskState.DISPATCHED if self.state is TaskState.RUNNING else self.state",
        "return self.state",
        (API,),
    ),
    Guard(
        "those-at-work-are-not-dispatched",
        "the filters of a listing say what it shows",
        QUERIES,
        "        return [task for task in tasks if query.state in (None, task.state)]",
        "        return tasks",
        (API,),
    ),
    # ---------------------------------------------------------------- bounds
    Guard(
        "pages-of-attempts-are-bounded-in-bytes",
        "clients take messages of 4 MiB",
        EXECUTIONS,
        "            if page_bytes >= PAGE_BYTES_MAX:\n                break\n",
        "",
        (API,),
    ),
    Guard(
        "characters-are-not-bytes",
        "a message would be four times as large as it was taken for",
        EXECUTIONS,
        "sum(len(text) if text.isascii() else len(text.encode()) for text in texts)",
        "sum(map(len, texts))",
        (API,),
    ),
    Guard(
        "counts-are-bounded",
        "a count of fifty million would walk for minutes",
        QUERIES,
        "if count >= COUNTED_MAX or self._clock",
        "if self._clock",
        (API,),
    ),
    Guard(
        "counts-end-in-time",
        "a filter that nothing passes would walk for minutes",
        QUERIES,
        "if count >= COUNTED_MAX or self._clock.monotonic() >= until:",
        "if count >= COUNTED_MAX:",
        (API,),
    ),
    Guard(
        "refreshes-are-bounded",
        "ten thousand queues must not keep the catalog busy",
        DIRECTORY,
        "for _ in range(REFRESH_PAGES_MAX):",
        "while True:",
        (FOLLOWED,),
    ),
    # ---------------------------------------------------------------- policies and expiry
    Guard(
        "changed-policies-are-followed",
        "owners would go by the policy that they have read first",
        DIRECTORY,
        "                    self._found[namespace_id, queue.name] = queue\n",
        "                    pass\n",
        (FOLLOWED,),
    ),
    Guard(
        "pauses-are-no-shorter-than-asked-for",
        "the default would cut a long first pause short",
        CHECK,
        "max(DEFAULT_RETRY.delay_ms_max, initial_ms)",
        "DEFAULT_RETRY.delay_ms_max",
        (ASKED,),
    ),
    Guard(
        "a-multiplier-is-a-number",
        "with NaN there is no next pause",
        CHECK,
        "math.isfinite(policy.multiplier) and 1 <= policy.multiplier <= MULTIPLIER_MAX",
        "not (policy.multiplier < 1 or policy.multiplier > MULTIPLIER_MAX)",
        (ASKED,),
    ),
    Guard(
        "expiry-is-not-before-due",
        "such a task would never go, and nobody be told",
        VALIDATION,
        "if task.start_by_ms < nominal_due_ms and not (",
        "if False and not (",
        (ASKED,),
    ),
    Guard(
        "expired-is-not-never",
        "0 means that a task never expires",
        VALIDATION,
        "return 0 if task.start_by_ms is None else max(1, task.start_by_ms)",
        "return task.start_by_ms or 0",
        (ASKED,),
    ),
    Guard(
        "a-key-keeps-its-expiry",
        "sent again, a task would be of use for longer than the first create said",
        "service/idempotency.py",
        "expiry_ms(task, claim.nominal_due_ms)",
        "row.body.expires_ms",
        (API,),
    ),
    Guard(
        "a-key-means-its-policy",
        "a create with another policy is another task",
        "core/idempotency.py",
        "    yield from _later_parts(task)\n",
        "",
        (ASKED,),
    ),
    Guard(
        "what-waits-is-not-redriven",
        "a redrive that is asked for again would hasten what it has made",
        "poller/changes.py",
        "body == row.body or change.again",
        "body == row.body",
        (LANE,),
    ),
]
