"""The guards of ownership: leases, slots, election, planning. Those of ZooKeeper need a server."""

from __future__ import annotations

from .guards import Guard

LEASES, MEMBERSHIP = "tests/conformance/test_leases.py", "tests/conformance/test_membership.py"
PLANS, REAL = "tests/conformance/test_plan_store.py", "tests/integration/test_zookeeper_leases.py"
PLANNING, FOLLOWING = "tests/unit/test_coordinator.py", "tests/unit/test_coordinator_follower.py"
ZK = "adapters/zookeeper"

OWNERSHIP_GUARDS = [
    # ---------------------------------------------------------------- leases
    Guard(
        "a-change-proves-the-slot",
        "who has lost its lane owns nothing, whatever its leases say",
        f"{ZK}/leases.py",
        "self._session.multi(slot, check(self._tree.holder(self._slot.lane)), *ops)",
        "self._session.multi(check(self._tree.top), check(self._tree.top), *ops)",
        (REAL,),
    ),
    Guard(
        "a-slot-has-a-version",
        "another holder of the slot must not pass for this one",
        f"{ZK}/leases.py",
        "self._session.multi(slot, check(self._tree.holder(self._slot.lane)), *ops)",
        "self._session.multi(check(self._tree.top), check(self._tree.holder(self._slot.lane)), *ops)",
        (REAL,),
    ),
    Guard(
        "an-unwanted-lease-is-dropped",
        "a request that was given up is carried out all the same, and its lease would keep everybody out",
        f"{ZK}/leases.py",
        "                self._forsake(range_id, wanted)",
        "                pass",
        (REAL,),
    ),
    Guard(
        "a-lost-answer-is-read-back",
        "the lease was taken: taking it again makes the own lane a predecessor",
        f"{ZK}/leases.py",
        "if wanted is not None and node.record == wanted and owner == self._session.session_id:",
        "if False:",
        (REAL,),
    ),
    Guard(
        "a-lease-is-of-one-epoch",
        "an older lease of the same lane is over",
        f"{ZK}/leases.py",
        "node.record.epoch == lease.epoch and ",
        "",
        (LEASES,),
    ),
    Guard(
        "all-unfenced-lanes-are-kept",
        "a taker that dies half-way has fenced nobody",
        f"{ZK}/records.py",
        "(*self.predecessors, self.lane) if doubtful",
        "(self.lane,) if doubtful",
        (LEASES,),
    ),
    Guard(
        "a-restored-tree-fences-the-checkpoints-lane",
        "its owner may go on without knowing",
        f"{ZK}/tree.py",
        "released=checkpoint.lane < 0)",
        "released=True)",
        (LEASES,),
    ),
    # ---------------------------------------------------------------- sessions
    Guard(
        "a-session-is-one-session",
        "kazoo would go on with another",
        f"{ZK}/session.py",
        "        if state == KazooState.LOST:\n            self._over = True\n",
        "",
        (REAL,),
    ),
    Guard(
        "nothing-is-sent-later",
        "kazoo queues requests while it is not connected",
        f"{ZK}/session.py",
        '        if not self._connected:\n            raise Unavailable("ZooKeeper can\'t be reached")\n        future',
        "        future",
        (REAL,),
    ),
    Guard(
        "a-taken-slot-ends-the-session",
        "an operator or a taker may remove it",
        f"{ZK}/view.py",
        "if not await self._session.exists(self._tree.holder(self._lane), self._watches[key]):",
        "if False:",
        (REAL,),
    ),
    Guard(
        "an-owner-is-a-session",
        "a process that joined again is not the owner that it was",
        f"{ZK}/view.py",
        "self.members.get(record.session)",
        "next((m for m in self.members.values() if m.lane == record.lane), None)",
        (MEMBERSHIP,),
    ),
    # ---------------------------------------------------------------- the plan
    Guard(
        "only-the-elected-one-writes",
        "a coordinator that was replaced while it computed",
        f"{ZK}/plan_store.py",
        "check(self._node), ",
        "check(self._tree.top), ",
        (REAL,),
    ),
    Guard(
        "a-written-plan-is-read-back",
        "its answer was lost",
        f"{ZK}/plan_store.py",
        "if await self._holds(session, data, plan.version + 1):",
        "if False:",
        (REAL,),
    ),
    Guard(
        "candidates-watch-the-one-ahead",
        "the next is elected at once",
        f"{ZK}/plan_store.py",
        "candidates[own[0] - 1]",
        "candidates[own[0]]",
        (PLANS,),
    ),
    Guard(
        "without-lanes-the-plan-stays",
        "an empty plan would move everything when they come back",
        "coordinator/planning.py",
        "if wanted and wanted != plan",
        "if wanted != plan",
        (PLANNING,),
    ),
    Guard(
        "holders-keep-what-no-plan-names",
        "a lost plan must not move ranges",
        "coordinator/planning.py",
        "**_held(ranges, weights), ",
        "",
        (PLANNING,),
    ),
    Guard(
        "known-lanes-do-not-wait-for-new-ones",
        "ranges of a dead lane are given away at once",
        "coordinator/planning.py",
        " or lane in planned}",
        "}",
        (PLANNING,),
    ),
    Guard(
        "a-change-frees-held-ranges",
        "a take-over begins when the lease is free, not at the next look",
        "coordinator/follower.py",
        "                self._not_before.pop(range_id, None)\n            self._held.clear()",
        "                pass\n            self._held.clear()",
        (FOLLOWING,),
    ),
    Guard(
        "what-no-plan-names-is-kept",
        "an unreadable plan must not stop anybody",
        "coordinator/follower.py",
        "if r in assignment and r not in given",
        "if r not in given",
        (FOLLOWING,),
    ),
    Guard(
        "stickiness",
        "a new lane takes from all, and nobody else takes",
        "core/assignment.py",
        "(held[lane] <= targets[lane], -remainder[lane], lane)",
        "(-remainder[lane], lane)",
        ("tests/unit/test_assignment.py",),
    ),
]
