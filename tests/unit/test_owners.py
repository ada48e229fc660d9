"""Asking owners, here and over the internal gRPC service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence

import pytest
from service_world import ImpatientClock, until

from bucketsched.adapters import owners_grpc
from bucketsched.adapters.owners_grpc import GrpcOwners
from bucketsched.adapters.system_clock import SystemClock
from bucketsched.api.internal import OwnerServicer
from bucketsched.api.server import GrpcServer
from bucketsched.core import task_id as ids
from bucketsched.core.cluster import ClusterConstants
from bucketsched.core.errors import Unavailable
from bucketsched.core.task import Priority, TaskBody, TaskRow
from bucketsched.ports import CancelResult, HintAnswer, Member, Plan
from bucketsched.service.owners import LocalOwners

CONSTANTS = ClusterConstants(uuid.UUID(int=7), shards=8, ranges=4)
NAMESPACE_ID = b"n" * 16
DUE_MS = 1_764_472_099_123


def row(shard: int = 0, number: int = 0, payload: bytes = b"p") -> TaskRow:
    body = TaskBody("ns", "q", "mail", payload, {"k": "ä"}, Priority.HIGH, DUE_MS - 1, DUE_MS - 2, "a/b")
    return TaskRow(DUE_MS, NAMESPACE_ID, ids.mint(DUE_MS, shard, number), body, 2, 3)


class ScriptedRange:
    """A RangeOwner that gives the answers it was given, the last of each for ever."""

    def __init__(self) -> None:
        self.hints: list[HintAnswer] = [HintAnswer.TAKEN]
        self.admits: list[HintAnswer | Exception] = [HintAnswer.TAKEN]
        self.cancels: list[CancelResult | HintAnswer | Exception] = [CancelResult.CANCELLED]
        self.hinted: list[list[TaskRow]] = []
        self.asked: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def hint(self, rows: Sequence[TaskRow]) -> list[HintAnswer]:
        self.hinted.append(list(rows))
        await self.gate.wait()
        return [_next(self.hints)] * len(rows)

    async def admit(self, row: TaskRow) -> HintAnswer:
        self.asked.append(row.task_id)
        await self.gate.wait()
        return _next(self.admits)

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer:
        assert namespace_id == NAMESPACE_ID
        self.asked.append(task_id)
        await self.gate.wait()
        return _next(self.cancels)


def _next(answers: list) -> object:
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


class FixedMembership:
    """Says who owns what as a test tells it."""

    def __init__(self) -> None:
        self.owners: dict[int, Member] = {}

    def members(self) -> list[Member]:
        return list({member.member_id: member for member in self.owners.values()}.values())

    def owner_of(self, range_id: int) -> Member | None:
        return self.owners.get(range_id)

    def plan(self) -> Plan:
        return Plan(0)


class Cluster:
    """Pollers with real servers on loopback, and an api that asks them."""

    def __init__(self) -> None:
        self.membership = FixedMembership()
        self.ranges: dict[str, ScriptedRange] = {}
        self.servers: dict[str, GrpcServer] = {}
        self.local = ScriptedRange()
        self.owners = GrpcOwners(self.membership, CONSTANTS, SystemClock(), "me", self.local)  # type: ignore[arg-type]

    async def poller(self, name: str, *range_ids: int) -> ScriptedRange:
        owner = self.ranges[name] = ScriptedRange()
        server = self.servers[name] = GrpcServer("127.0.0.1:0", [OwnerServicer(owner).service()])
        address = await server.start()
        for range_id in range_ids:
            self.membership.owners[range_id] = Member(name, ("poller",), 0, address)
        return owner

    async def close(self) -> None:
        await self.owners.close()
        for server in self.servers.values():
            await server.stop(0)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.close()


# ---------------------------------------------------------------- hints


async def test_rows_go_to_the_owners_of_their_ranges_and_arrive_unchanged(cluster: Cluster) -> None:
    a, b = await cluster.poller("a", 0, 1), await cluster.poller("b", 2)
    b.hints = [HintAnswer.NOT_READY]
    rows = [row(shard) for shard in range(8)]
    answers = await cluster.owners.hint(rows)
    taken, not_ready = HintAnswer.TAKEN, HintAnswer.NOT_READY
    assert answers == [taken] * 4 + [not_ready] * 2 + [None] * 2
    assert a.hinted == [rows[:4]]
    assert b.hinted == [rows[4:6]]


async def test_answers_keep_the_order_of_the_rows(cluster: Cluster) -> None:
    await cluster.poller("a", 0)
    (await cluster.poller("b", 1)).hints = [HintAnswer.NOT_OWNER]
    answers = await cluster.owners.hint([row(2), row(0), row(3), row(1)])
    assert answers == [HintAnswer.NOT_OWNER, HintAnswer.TAKEN, HintAnswer.NOT_OWNER, HintAnswer.TAKEN]


async def test_ranges_of_this_process_are_asked_without_a_detour(cluster: Cluster) -> None:
    cluster.membership.owners[0] = Member("me", ("poller",), 0, "127.0.0.1:1")
    assert await cluster.owners.hint([row(0)]) == [HintAnswer.TAKEN]
    assert await cluster.owners.admit(row(0)) is HintAnswer.TAKEN
    assert await cluster.owners.cancel(NAMESPACE_ID, row(0).task_id) is CancelResult.CANCELLED
    assert (len(cluster.local.hinted), len(cluster.local.asked)) == (1, 2)


async def test_an_owner_that_can_not_be_reached_gives_no_answer_and_no_error(cluster: Cluster) -> None:
    await cluster.poller("a", 0)
    await cluster.servers["a"].stop(0)
    cluster.membership.owners[1] = Member("b", ("poller",), 1, "")
    assert await asyncio.wait_for(cluster.owners.hint([row(0), row(2), row(4)]), 10) == [None, None, None]


async def test_hints_to_one_owner_share_rpcs(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    a.gate.clear()
    calls = [asyncio.create_task(cluster.owners.hint([row(0, n)])) for n in range(50)]
    await until(lambda: bool(a.hinted))
    a.gate.set()
    assert await asyncio.gather(*calls) == [[HintAnswer.TAKEN]] * 50
    assert len(a.hinted) <= 3, "one was in flight, the next carried what gathered meanwhile"
    assert sorted(r.task_id for rows in a.hinted for r in rows) == sorted(row(0, n).task_id for n in range(50))


async def test_an_rpc_carries_a_bounded_number_of_rows_and_bytes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners_grpc, "HINT_TIMEOUT_S", 60.0)
    a = await cluster.poller("a", 0)
    rows = [row(0, n) for n in range(2_500)]
    assert await cluster.owners.hint(rows) == [HintAnswer.TAKEN] * 2_500
    assert max(len(batch) for batch in a.hinted) <= owners_grpc.HINT_ROWS_MAX
    a.hinted.clear()
    assert await cluster.owners.hint([row(0, n, b"x" * 1_500_000) for n in range(6)]) == [HintAnswer.TAKEN] * 6
    assert [len(batch) for batch in a.hinted] == [2, 2, 2]


async def test_a_full_line_to_an_owner_answers_at_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_grpc, "ROWS_WAITING_MAX", 3)
    a = await cluster.poller("a", 0)
    a.gate.clear()
    first = asyncio.create_task(cluster.owners.hint([row(0, 0)]))
    await until(lambda: bool(a.hinted))
    second = asyncio.create_task(cluster.owners.hint([row(0, n) for n in range(1, 4)]))
    await asyncio.sleep(0)
    assert await cluster.owners.hint([row(0, 9)]) == [None]
    a.gate.set()
    assert [len(await first), len(await second)] == [1, 3]


# ---------------------------------------------------------------- admissions and cancels


async def test_not_ready_is_asked_again(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    a.admits = [HintAnswer.NOT_READY, HintAnswer.NOT_READY, HintAnswer.NO_ROW]
    a.cancels = [HintAnswer.NOT_READY, CancelResult.ALREADY_DISPATCHED]
    assert await cluster.owners.admit(row(0)) is HintAnswer.NO_ROW
    assert await cluster.owners.cancel(NAMESPACE_ID, row(1).task_id) is CancelResult.ALREADY_DISPATCHED
    assert len(a.asked) == 5


@pytest.mark.parametrize("result", list(CancelResult))
async def test_every_result_of_a_cancel_comes_through(cluster: Cluster, result: CancelResult) -> None:
    a = await cluster.poller("a", 0)
    a.cancels = [result]
    assert await cluster.owners.cancel(NAMESPACE_ID, row(0).task_id) is result


async def test_a_wrong_owner_sends_the_question_on_as_soon_as_the_right_one_is_known(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    b = await cluster.poller("b", 1)
    a.cancels = [HintAnswer.NOT_OWNER]
    waiting = asyncio.create_task(cluster.owners.cancel(NAMESPACE_ID, row(0).task_id))
    await until(lambda: bool(a.asked))
    cluster.membership.owners[0] = cluster.membership.owners[1]
    assert await asyncio.wait_for(waiting, 5) is CancelResult.CANCELLED
    assert b.asked == [row(0).task_id]
    assert len(a.asked) <= 2


async def test_a_dead_owner_is_left_for_its_successor(cluster: Cluster) -> None:
    await cluster.poller("a", 0)
    await cluster.servers["a"].stop(0)
    waiting = asyncio.create_task(cluster.owners.cancel(NAMESPACE_ID, row(0).task_id))
    await asyncio.sleep(0.1)
    await cluster.poller("b", 0)
    assert await asyncio.wait_for(waiting, 5) is CancelResult.CANCELLED


@pytest.mark.parametrize("owned", [True, False])
async def test_without_an_answer_the_question_ends_as_unavailable(
    cluster: Cluster, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners_grpc, "WAIT_S_MAX", 0.4)
    if owned:
        (await cluster.poller("a", 0)).admits = [HintAnswer.NOT_READY]
        cluster.ranges["a"].cancels = [Unavailable("no Kafka")]
    for question in (cluster.owners.admit(row(0)), cluster.owners.cancel(NAMESPACE_ID, row(0).task_id)):
        with pytest.raises(Unavailable, match="range 0"):
            await asyncio.wait_for(question, 5)


async def test_an_owner_that_hangs_is_given_up(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners_grpc, "WAIT_S_MAX", 0.4)
    (await cluster.poller("a", 0)).gate.clear()
    cluster.membership.owners[1] = Member("me", ("poller",), 0, "")
    cluster.local.gate.clear()
    for shard in (0, 2):
        with pytest.raises(Unavailable):
            await asyncio.wait_for(cluster.owners.cancel(NAMESPACE_ID, row(shard).task_id), 5)


async def test_a_cancel_whose_first_answer_was_lost_is_its_own(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    a.cancels = [Unavailable("lost"), CancelResult.ALREADY_CANCELLED]
    assert await cluster.owners.cancel(NAMESPACE_ID, row(0).task_id) is CancelResult.CANCELLED
    a.cancels = [HintAnswer.NOT_READY, CancelResult.ALREADY_CANCELLED]
    assert await cluster.owners.cancel(NAMESPACE_ID, row(0).task_id) is CancelResult.ALREADY_CANCELLED
    a.cancels = [Unavailable("lost"), CancelResult.ALREADY_DISPATCHED]
    assert await cluster.owners.cancel(NAMESPACE_ID, row(0).task_id) is CancelResult.ALREADY_DISPATCHED


async def test_channels_to_members_that_are_gone_are_closed(cluster: Cluster) -> None:
    await cluster.poller("a", 0)
    await cluster.owners.hint([row(0)])
    await cluster.poller("b", 0)
    await cluster.owners.hint([row(0)])
    assert list(cluster.owners._links) == [cluster.membership.owners[0].internal_address]
    await until(lambda: not cluster.owners._closing)


async def test_a_call_under_way_survives_that_its_channel_is_dropped(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    a.gate.clear()
    waiting = asyncio.create_task(cluster.owners.admit(row(0)))
    await until(lambda: bool(a.asked))
    await cluster.poller("b", 0)
    await cluster.owners.hint([row(0)])
    a.gate.set()
    assert await asyncio.wait_for(waiting, 5) is HintAnswer.TAKEN


async def test_malformed_questions_are_refused(cluster: Cluster) -> None:
    a = await cluster.poller("a", 0)
    bad = row(0)
    bad.namespace_id = b"short"
    assert await cluster.owners.hint([bad]) == [None]
    assert not a.hinted


# ---------------------------------------------------------------- owners in this process


async def test_local_owners_wait_until_a_range_is_ready() -> None:
    owner, clock = ScriptedRange(), ImpatientClock()
    owners = LocalOwners(owner, clock)
    owner.admits = [HintAnswer.NOT_READY, HintAnswer.NOT_OWNER, HintAnswer.TAKEN]
    owner.cancels = [HintAnswer.NOT_READY, CancelResult.ALREADY_FAILED]
    owner.hints = [HintAnswer.NOT_READY]
    assert await owners.admit(row()) is HintAnswer.TAKEN
    assert await owners.cancel(NAMESPACE_ID, row().task_id) is CancelResult.ALREADY_FAILED
    assert await owners.hint([row(), row()]) == [HintAnswer.NOT_READY] * 2


async def test_local_owners_give_up_in_the_end() -> None:
    owner, clock = ScriptedRange(), ImpatientClock()
    owner.admits = owner.cancels = [HintAnswer.NOT_READY]
    owners = LocalOwners(owner, clock)
    for question in (owners.admit(row()), owners.cancel(NAMESPACE_ID, row().task_id)):
        with pytest.raises(Unavailable):
            await question
    assert 10 <= clock.monotonic() < 11
