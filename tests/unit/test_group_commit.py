"""The group commit without a server: what travels together, and who is told what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.adapters.cassandra.group_commit import (
    ROW_OVERHEAD_BYTES,
    WAITING_ROW_BYTES,
    Answer,
    GroupCommit,
    Limits,
    Refused,
    Write,
    cut,
)
from bucketsched.core.errors import NotWritten, OutcomeUnknown

LIMITS = Limits(
    batch_rows_max=4, batch_bytes_max=10_000, delay_s_max=0.001, batches_in_flight_max=2, rows_waiting_max=100
)


def write(name: str, key: bytes = b"k", size: int = 100) -> Write:
    return Write(key, None, (name.encode(),), size)


def names(batch: Sequence[Write]) -> list[str]:
    return [item.values[0].decode() for item in batch]


class Server:
    """Answers batches when told to, or at once by `decide`."""

    def __init__(self, decide: Callable[[Sequence[Write]], Answer] | None = None) -> None:
        self.sent: list[list[str]] = []
        self.decide = decide
        self._open: list[tuple[Sequence[Write], Callable[[Answer], None]]] = []

    def send(self, batch: Sequence[Write], done: Callable[[Answer], None]) -> None:
        self.sent.append(names(batch))
        if self.decide is not None:
            asyncio.get_running_loop().call_soon(done, self.decide(batch))
        else:
            self._open.append((batch, done))

    @property
    def in_flight(self) -> int:
        return len(self._open)

    def answer(self, answer: Answer = None) -> None:
        self._open.pop(0)[1](answer)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


def stored(batch: Sequence[Write]) -> Answer:
    return None


def one_group(key: bytes) -> str:
    return "all"


def commit(server: Server, limits: Limits = LIMITS) -> GroupCommit:
    return GroupCommit(server.send, one_group, limits)


class TestCut:
    @given(
        rows=st.lists(st.tuples(st.binary(min_size=1, max_size=1), st.integers(0, 5_000)), max_size=60),
        rows_max=st.integers(1, 20),
        bytes_max=st.integers(1_000, 8_000),
    )
    def test_every_row_once_within_both_caps_and_one_replica_set_a_batch(
        self, rows: list[tuple[bytes, int]], rows_max: int, bytes_max: int
    ) -> None:
        def group_of(key: bytes) -> int:
            return key[0] % 3

        entries = [(write(str(i), key, size), i, 0) for i, (key, size) in enumerate(rows)]
        batches = cut(entries, group_of, rows_max, bytes_max)  # type: ignore[arg-type]
        assert sorted(entry[1] for batch in batches for entry in batch) == list(range(len(rows)))  # type: ignore[type-var]
        for batch in batches:
            assert 1 <= len(batch) <= rows_max
            assert len(batch) == 1 or sum(e[0].size + ROW_OVERHEAD_BYTES for e in batch) <= bytes_max
            assert len({group_of(entry[0].routing_key) for entry in batch}) == 1

    def test_rows_of_one_partition_travel_together(self) -> None:
        entries = [(write(str(i), b"ab"[i % 2 : i % 2 + 1]), None, i) for i in range(8)]
        batches = cut(entries, one_group, 4, 10_000)  # type: ignore[arg-type]
        assert [{entry[0].routing_key for entry in batch} for batch in batches] == [{b"a"}, {b"b"}]


class TestAnswers:
    async def test_each_row_gets_its_own(self) -> None:
        def decide(batch: Sequence[Write]) -> Answer:
            return OutcomeUnknown("?") if batch[0].routing_key == b"b" else None

        group = GroupCommit(Server(decide).send, bytes, LIMITS)
        answers = await group.write([write("1", b"a"), write("2", b"b"), write("3", b"a")])
        assert [type(answer) for answer in answers] == [type(None), OutcomeUnknown, type(None)]

    async def test_callers_share_batches_and_keep_their_answers_apart(self) -> None:
        server = Server(stored)
        group = commit(server)
        answers = await asyncio.gather(*(group.write([write(str(i))]) for i in range(8)))
        assert answers == [[None]] * 8
        assert len(server.sent) == 2

    async def test_nothing_to_write(self) -> None:
        assert await commit(Server()).write([]) == []

    async def test_a_refused_batch_is_halved_down_to_the_row_at_fault(self) -> None:
        def decide(batch: Sequence[Write]) -> Answer:
            return Refused("too large") if "3" in names(batch) else None

        server = Server(decide)
        limits = Limits(16, 100_000, 0, 4, 100)
        answers = await commit(server, limits).write([write(str(i)) for i in range(16)])
        assert [i for i, answer in enumerate(answers) if answer is not None] == [3]
        assert isinstance(answers[3], NotWritten)
        assert len(server.sent) <= 1 + 2 * 4, "halving needs the logarithm of the batch"

    async def test_only_a_refused_batch_is_halved(self) -> None:
        server = Server(lambda batch: NotWritten("no replica"))
        answers = await commit(server).write([write(str(i)) for i in range(4)])
        assert len(server.sent) == 1
        assert all(isinstance(answer, NotWritten) for answer in answers)


class TestFlow:
    async def test_rows_are_gathered_for_a_moment_only(self) -> None:
        server = Server(stored)
        assert await asyncio.wait_for(commit(server).write([write("1")]), 5) == [None]

    async def test_what_is_enough_does_not_wait(self) -> None:
        server = Server(stored)
        limits = Limits(4, 10_000, 3_600, 100, 1_000)
        answers = await asyncio.wait_for(commit(server, limits).write([write(str(i)) for i in range(32)]), 5)
        assert answers == [None] * 32

    async def test_batches_in_flight_are_bounded_and_the_rest_gathers(self) -> None:
        server = Server()
        group = commit(server)
        first = asyncio.create_task(group.write([write(f"a{i}") for i in range(8)]))
        await server.until(lambda: server.in_flight == 2)
        others = [asyncio.create_task(group.write([write(f"b{i}")])) for i in range(3)]
        await asyncio.sleep(0.02)
        assert server.in_flight == 2
        server.answer()
        await server.until(lambda: server.in_flight == 2)
        assert server.sent[2] == ["b0", "b1", "b2"], "what came meanwhile goes as one batch"
        server.answer()
        server.answer()
        assert await first == [None] * 8
        assert await asyncio.gather(*others) == [[None]] * 3

    async def test_rows_waiting_are_bounded_first_come_first_served(self) -> None:
        server = Server()
        group = commit(server, Limits(4, 10_000, 0, 1, 8))
        calls = [asyncio.create_task(group.write([write(f"{n}-{i}") for i in range(4)])) for n in range(4)]
        await server.until(lambda: server.in_flight == 1)
        for n in range(4):
            await server.until(lambda: server.in_flight == 1)
            assert server.sent[-1] == [f"{n}-{i}" for i in range(4)]
            assert sum(call.done() for call in calls) == n
            server.answer()
            await calls[n]

    async def test_large_rows_count_for_more(self) -> None:
        server = Server()
        group = commit(server, Limits(4, 10_000, 0, 9, 8))
        calls = [asyncio.create_task(group.write([write(str(i), size=3 * WAITING_ROW_BYTES)])) for i in range(4)]
        await server.until(lambda: server.in_flight == 2)
        await asyncio.sleep(0.01)
        assert server.sent == [["0"], ["1"]], "two of weight four fill eight"
        server.answer()
        server.answer()
        await server.until(lambda: server.in_flight == 2)
        server.answer()
        server.answer()
        assert await asyncio.gather(*calls) == [[None]] * 4

    async def test_a_call_over_the_bound_enters_alone(self) -> None:
        server = Server(stored)
        group = commit(server, Limits(4, 10_000, 0, 1, 8))
        answers = await asyncio.gather(
            group.write([write("s")]), group.write([write(str(i)) for i in range(30)]), group.write([write("t")])
        )
        assert [len(answer) for answer in answers] == [1, 30, 1]

    async def test_a_cancelled_caller_does_not_disturb_its_neighbours(self) -> None:
        server = Server()
        group = commit(server)
        one, two = (asyncio.create_task(group.write([write(name)])) for name in "12")
        await server.until(lambda: server.in_flight == 1)
        assert server.sent == [["1", "2"]]
        one.cancel()
        await asyncio.sleep(0)
        server.answer()
        assert await two == [None]
        with pytest.raises(asyncio.CancelledError):
            await one

    @pytest.mark.parametrize("granted", [False, True])
    async def test_a_caller_that_is_cancelled_in_the_line_gives_up_its_room(self, granted: bool) -> None:
        server = Server()
        group = commit(server, Limits(4, 10_000, 0, 1, 4))
        first = asyncio.create_task(group.write([write(f"a{i}") for i in range(4)]))
        await server.until(lambda: server.in_flight == 1)
        second = asyncio.create_task(group.write([write(f"b{i}") for i in range(4)]))
        third = asyncio.create_task(group.write([write("c")]))
        await asyncio.sleep(0.01)
        if granted:
            server.answer()  # the second's turn has come, but it has not run yet
            second.cancel()
        else:
            second.cancel()
            await asyncio.sleep(0)
            server.answer()
        await server.until(lambda: server.in_flight == 1)
        assert server.sent[-1] == ["c"]
        server.answer()
        assert await first == [None] * 4
        assert await third == [None]
