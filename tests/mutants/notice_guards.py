"""The guards of rules of notices: what could not be told is refused before anything is stored."""

from __future__ import annotations

from .guards import Guard

CHECK, QUEUES = "core/notice_check.py", "service/notice_queues.py"
RULES, API, SERVICE, LANE = (
    "tests/unit/test_notice_check.py",
    "tests/unit/test_api_notices.py",
    "tests/unit/test_service_queues.py",
    "tests/unit/test_lane_notices.py",
)

NOTICE_GUARDS = [
    Guard(
        "a-taker-asks-for-the-queue",
        "a task with a policy of its own would have nothing told of what its queue has told",
        "poller/changes.py",
        "            await self._know(row.namespace_id, row.body.queue)  # a taker may not have met it\n",
        "            pass\n",
        (LANE,),
    ),
    Guard(
        "what-has-expired-waits-for-its-queue",
        "its queue's rules would not be known",
        "poller/dispatcher.py",
        """        if not self._queues.known(*name):
            self._set_aside(name, row, owned)
            return 0
        if 0 < row.body.expires_ms < batch.at_ms:
            batch.expired.append((row, owned))
            self._tell(batch, row, NoticeEvent.EXPIRED)
            return 0
""",
        """        if 0 < row.body.expires_ms < batch.at_ms:
            batch.expired.append((row, owned))
            self._tell(batch, row, NoticeEvent.EXPIRED)
            return 0
        if not self._queues.known(*name):
            self._set_aside(name, row, owned)
            return 0
""",
        (LANE,),
    ),
    Guard(
        "a-queue-is-not-told-of-itself",
        "its workers would get notices of all that they do",
        CHECK,
        "if rule.queue == name:",
        "if False:",
        (RULES,),
    ),
    Guard(
        "events-that-never-are-are-refused",
        "whoever waits for the success of a Kafka queue's task waits for ever",
        CHECK,
        "if queue.tracks_outcomes:",
        "if True:",
        (RULES,),
    ),
    Guard(
        "what-gets-notices-of-a-task-exists",
        "notices of it would be dead letters themselves",
        QUEUES,
        "        if isinstance(target, NotFound):\n            return _missing(at, target)\n"
        "        if not isinstance(target, Queue):\n            return target\n",
        "        pass\n",
        (API,),
    ),
    Guard(
        "what-gets-notices-of-a-queue-exists",
        "notices of its tasks would be dead letters themselves",
        "service/queues.py",
        "await check_targets(self._directory, new.namespace, wanted.policy.notices)",
        "pass",
        (SERVICE,),
    ),
    Guard(
        "a-changed-queue-is-checked-as-a-new-one",
        "what a create refuses could be had by an update",
        "service/queues.py",
        "await check_targets(self._directory, namespace, changed.policy.notices)",
        "pass",
        (API,),
    ),
    Guard(
        "a-key-stands-for-the-rules",
        "another request under the key would seem to have been done",
        "core/idempotency.py",
        "for rule in task.notices:",
        "for rule in ():",
        (RULES,),
    ),
    Guard(
        "only-what-is-named-is-changed",
        "a new retry policy would end all notices",
        "service/queues.py",
        "meant = {field: getattr(policy, field) for field in fields}",
        'meant = {field: getattr(policy, field) for field in ("retry", "notices")}',
        (API,),
    ),
]
