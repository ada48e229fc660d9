"""The owners of ranges in other processes, asked over the internal gRPC service.

Who owns a range is known from ZooKeeper's watches and may be out of date: a wrong owner says so, and the question is
asked again. Hints to one owner share RPCs: one is in flight, the next carries what gathered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

import grpc.aio

from ..core import task_id as ids
from ..core.cluster import ClusterConstants
from ..core.errors import Unavailable
from ..core.execution import AttemptReport, EndResult
from ..core.task import TaskRow
from ..core.task_change import TaskChange
from ..encoding.answers import ANSWERS_BACK, CANCEL_RESULTS_BACK, CHANGE_RESULTS_BACK, END_RESULTS_BACK
from ..encoding.attempts import report_message
from ..encoding.changes import change_request
from ..encoding.rows import row_from_message, row_message
from ..ports import CancelResult, Changed, Clock, HintAnswer, Member, Membership, RangeOwner
from ..service.owners import finish_here
from ..stubs.internal.v1 import owner_pb2 as pb
from ..stubs.internal.v1 import owner_pb2_grpc

WAIT_S_MAX = 5.0
"""How long a cancel or an admission is tried."""
RPC_TIMEOUT_S = 2.0
HINT_TIMEOUT_S = 1.0
READY_TIMEOUT_S = 1.0
PAUSE_S = 0.05
MOVE_WAIT_S = 0.1
"""How long a new owner is waited for after the known one said that it is not."""
MOVE_CHECK_S = 0.01
HINT_ROWS_MAX = 1_000
HINT_BYTES_MAX = 4 * 1024 * 1024
ROWS_WAITING_MAX = 20_000
"""Rows whose hints wait for one owner; beyond, they are answered at once as not reached."""
LINKS_MAX = 1_024

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.use_local_subchannel_pool", 1),
)
_UNANSWERED = (None, HintAnswer.NOT_OWNER, HintAnswer.NOT_READY)

Answers = list[HintAnswer | None]
Reply = CancelResult | Changed | HintAnswer


class _Owner(Protocol):
    """A RangeOwner here or elsewhere; None, or Unavailable raised: it was not reached, or did not answer."""

    async def admit(self, row: TaskRow) -> HintAnswer | None: ...

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer | None: ...

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer | None: ...


class _Link:
    """The way to one other process."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub = owner_pb2_grpc.OwnerServiceStub(self._channel)
        self._waiting: list[tuple[Sequence[TaskRow], asyncio.Future[Answers]]] = []
        self._rows_waiting = 0
        self._sender: asyncio.Task[None] | None = None

    async def hint(self, rows: Sequence[TaskRow]) -> Answers:
        """One answer a row; None where the process was not reached."""
        if self._rows_waiting and self._rows_waiting + len(rows) > ROWS_WAITING_MAX:
            return [None] * len(rows)
        loop = asyncio.get_running_loop()
        parts = [(part, loop.create_future()) for part in _parts(rows)]
        self._waiting += parts
        self._rows_waiting += len(rows)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        return [answer for _, future in parts for answer in await future]

    async def admit(self, row: TaskRow) -> HintAnswer | None:
        try:
            response = await self._stub.Admit(pb.AdmitRequest(row=row_message(row)), timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        return ANSWERS_BACK.get(response.answer)

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult | HintAnswer | None:
        request = pb.CancelRequest(namespace_id=namespace_id, task_id=task_id)
        try:
            response = await self._stub.Cancel(request, timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        return CANCEL_RESULTS_BACK.get(response.result) or ANSWERS_BACK.get(response.answer)

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed | HintAnswer | None:
        try:
            request = change_request(namespace_id, task_id, change)
            response = await self._stub.Change(request, timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        result = CHANGE_RESULTS_BACK.get(response.result)
        if result is None:
            return ANSWERS_BACK.get(response.answer)
        return Changed(result, row_from_message(response.row) if response.HasField("row") else None)

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """One answer a report; None: not known."""
        request = pb.FinishRequest(reports=[report_message(report) for report in reports])
        try:
            response = await self._stub.Finish(request, timeout=RPC_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return [None] * len(reports)
        if len(response.answers) != len(reports):
            return [None] * len(reports)
        return [END_RESULTS_BACK.get(answer.result) for answer in response.answers]

    async def close(self) -> None:
        """Answers what waits with None; calls under way end first (a call cut off would look like a cancellation)."""
        _resolve(self._waiting, None)
        self._waiting.clear()
        self._rows_waiting = 0
        await self._channel.close(RPC_TIMEOUT_S + 0.5)

    async def _send(self) -> None:
        while self._waiting:
            batch = self._next_batch()
            answers: Answers | None = None
            try:
                answers = await self._hint_once([row for rows, _ in batch for row in rows])
            finally:
                _resolve(batch, answers)

    def _next_batch(self) -> list[tuple[Sequence[TaskRow], asyncio.Future[Answers]]]:
        """Takes as many of the waiting parts as fit into one RPC, at least one."""
        count, rows, size = 0, 0, 0
        for part, _ in self._waiting:
            rows += len(part)
            size += sum(_size(row) for row in part)
            if count and (rows > HINT_ROWS_MAX or size > HINT_BYTES_MAX):
                break
            count += 1
        batch = self._waiting[:count]
        del self._waiting[:count]
        self._rows_waiting -= sum(len(part) for part, _ in batch)
        return batch

    async def _hint_once(self, rows: list[TaskRow]) -> Answers | None:
        request = pb.HintRequest(rows=[row_message(row) for row in rows])
        try:
            response = await self._stub.Hint(request, timeout=HINT_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return None
        if len(response.answers) != len(rows):
            return None
        return [ANSWERS_BACK.get(answer) for answer in response.answers]


class GrpcOwners:
    """Implements `ports.Owners` for a cluster. Ranges of this very process are asked without a detour."""

    def __init__(
        self,
        membership: Membership,
        constants: ClusterConstants,
        clock: Clock,
        member_id: str,
        local: RangeOwner | None = None,
    ) -> None:
        self._membership = membership
        self._constants = constants
        self._clock = clock
        self._member_id = member_id
        self._local = local
        self._links: dict[str, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def hint(self, rows: Sequence[TaskRow]) -> Answers:
        """One answer a row; None where its owner was not reached. Never raises."""
        answers: Answers = [None] * len(rows)
        shared = self._shares([row.task_id for row in rows])
        shares = [self._hint_share(member, share, rows, answers) for member, share in shared]
        await asyncio.gather(*shares)
        return answers

    async def admit(self, row: TaskRow) -> HintAnswer:
        """TAKEN or NO_ROW. Raises Unavailable where no owner says so in time."""
        answer = await self._until_answered(row.task_id, lambda owner: owner.admit(row))
        assert isinstance(answer, HintAnswer), answer
        return answer

    async def cancel(self, namespace_id: bytes, task_id: bytes) -> CancelResult:
        """Raises Unavailable where no owner answers in time: the same call may be made again.

        Where an answer got lost, this call itself may be the one that cancelled before: that is CANCELLED.
        """
        unanswered = 0

        async def ask(owner: _Owner) -> Reply | None:
            nonlocal unanswered
            unanswered += 1
            answer = await owner.cancel(namespace_id, task_id)
            unanswered -= answer is not None
            return answer

        result = await self._until_answered(task_id, ask)
        assert isinstance(result, CancelResult), result
        return CancelResult.CANCELLED if unanswered and result is CancelResult.ALREADY_CANCELLED else result

    async def change(self, namespace_id: bytes, task_id: bytes, change: TaskChange) -> Changed:
        """Raises Unavailable where no owner answers in time: the same call may be made again."""
        changed = await self._until_answered(task_id, lambda owner: owner.change(namespace_id, task_id, change))
        assert isinstance(changed, Changed), changed
        return changed

    async def finish(self, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        """See ports.Owners."""
        answers: list[EndResult | None] = [None] * len(reports)

        async def finish_share(member: Member, share: list[int]) -> None:
            for at, answer in zip(share, await self._finish(member, [reports[at] for at in share]), strict=True):
                answers[at] = answer

        shared = self._shares([report.attempt.task_id for report in reports])
        await asyncio.gather(*(finish_share(*each) for each in shared))
        return answers

    async def _finish(self, member: Member, reports: Sequence[AttemptReport]) -> list[EndResult | None]:
        if self._local is not None and member.member_id == self._member_id:
            return await finish_here(self._local, reports, RPC_TIMEOUT_S)
        link = self._link(member)
        return await link.finish(reports) if link else [None] * len(reports)

    async def close(self) -> None:
        """Closes all channels."""
        links = list(self._links.values())
        self._links.clear()
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _range_of(self, task_id: bytes) -> int:
        return self._constants.range_of(ids.shard_in(task_id))

    def _shares(self, task_ids: Sequence[bytes]) -> list[tuple[Member, list[int]]]:
        """Which of these (by index) are whose. Those of ranges without an owner are left out."""
        owners: dict[int, Member | None] = {}
        shares: dict[str, tuple[Member, list[int]]] = {}
        for at, task_id in enumerate(task_ids):
            range_id = self._range_of(task_id)
            if range_id not in owners:
                owners[range_id] = self._membership.owner_of(range_id)
            if (member := owners[range_id]) is not None:
                shares.setdefault(member.member_id, (member, []))[1].append(at)
        return list(shares.values())

    async def _hint_share(self, member: Member, share: list[int], rows: Sequence[TaskRow], answers: Answers) -> None:
        of_member = [rows[at] for at in share]
        for at, answer in zip(share, await self._hint_member(member, of_member), strict=True):
            answers[at] = answer

    async def _hint_member(self, member: Member, rows: Sequence[TaskRow]) -> Answers:
        if self._local is not None and member.member_id == self._member_id:
            try:
                return list(await self._local.hint(rows))
            except Unavailable:
                return [None] * len(rows)
        link = self._link(member)
        return await link.hint(rows) if link else [None] * len(rows)

    async def _until_answered(self, task_id: bytes, ask: Callable[[_Owner], Awaitable[Reply | None]]) -> Reply:
        """Asks the owner of the task, whoever that is at the time, until it answers."""
        deadline = self._clock.monotonic() + WAIT_S_MAX
        range_id = self._range_of(task_id)
        while (remaining_s := deadline - self._clock.monotonic()) > 0:
            member = self._membership.owner_of(range_id)
            answer = await self._ask(member, ask, remaining_s)
            if answer not in _UNANSWERED:
                assert answer is not None
                return answer
            if answer is HintAnswer.NOT_OWNER:
                await self._moved(range_id, member)
            else:
                await self._clock.sleep(PAUSE_S)
        raise Unavailable(f"the owner of range {range_id} can't be reached; try again")

    async def _ask(
        self, member: Member | None, ask: Callable[[_Owner], Awaitable[Reply | None]], timeout_s: float
    ) -> Reply | None:
        owner: _Owner | None = None
        if member is not None:
            here = member.member_id == self._member_id
            owner = self._local if here and self._local is not None else self._link(member)
        if owner is None:
            return HintAnswer.NOT_OWNER
        try:
            return await asyncio.wait_for(ask(owner), min(timeout_s, RPC_TIMEOUT_S))
        except (TimeoutError, Unavailable):
            return None

    async def _moved(self, range_id: int, former: Member | None) -> None:
        """Returns once the range is known to have another owner, at the latest after MOVE_WAIT_S."""
        deadline = self._clock.monotonic() + MOVE_WAIT_S
        while self._clock.monotonic() < deadline:
            await self._clock.sleep(MOVE_CHECK_S)
            if self._membership.owner_of(range_id) not in (None, former):
                return

    def _link(self, member: Member) -> _Link | None:
        address = member.internal_address
        if not address:
            return None
        link = self._links.get(address)
        if link is None:
            self._drop_links_of_the_gone()
            link = self._links[address] = _Link(address)
        return link

    def _drop_links_of_the_gone(self) -> None:
        """Closes the channels to processes that are no members any more, and the oldest where there are too many."""
        living = {member.internal_address for member in self._membership.members()}
        gone = [address for address in self._links if address not in living]
        staying = [address for address in self._links if address in living]
        gone += staying[: max(0, len(staying) + 1 - LINKS_MAX)]
        for address in gone:
            task = asyncio.create_task(self._links.pop(address).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


class GrpcReadyCalls:
    """Implements `ports.ReadyCalls`."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def ready(self, owner: Member, range_ids: Sequence[int], lane: int) -> bool:
        """See ReadyCalls."""
        address = owner.internal_address
        if address not in self._channels:
            if len(self._channels) >= LINKS_MAX:
                await self._channels.pop(next(iter(self._channels))).close()
            self._channels[address] = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        stub = owner_pb2_grpc.OwnerServiceStub(self._channels[address])
        try:
            await stub.Ready(pb.ReadyRequest(range_ids=range_ids, lane=lane), timeout=READY_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
        return True

    async def close(self) -> None:
        """Closes all channels."""
        channels = list(self._channels.values())
        self._channels.clear()
        await asyncio.gather(*(channel.close() for channel in channels))


def _size(row: TaskRow) -> int:
    """Bytes of a row on the wire, about."""
    body = row.body
    return 256 + len(body.payload) + sum(4 * (len(key) + len(value)) for key, value in body.metadata.items())


def _parts(rows: Sequence[TaskRow]) -> Iterator[Sequence[TaskRow]]:
    """Cuts rows into parts that fit into one RPC each, unless a single row does not."""
    start, size = 0, 0
    for at, row in enumerate(rows):
        size += _size(row)
        if at > start and (size > HINT_BYTES_MAX or at - start == HINT_ROWS_MAX):
            yield rows[start:at]
            start, size = at, _size(row)
    if start < len(rows):
        yield rows[start:]


def _resolve(parts: Sequence[tuple[Sequence[TaskRow], asyncio.Future[Answers]]], answers: Answers | None) -> None:
    """Gives each part its share of the answers; None: none of them was answered."""
    at = 0
    for rows, future in parts:
        share: Answers = [None] * len(rows) if answers is None else answers[at : at + len(rows)]
        at += len(rows)
        if not future.done():
            future.set_result(share)
