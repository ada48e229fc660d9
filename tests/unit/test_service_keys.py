"""Creates with an idempotency key: the same task however often, whenever, and whatever came between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from service_world import NOW_MS, ServiceWorld

from bucketsched.core import task_id as ids
from bucketsched.core.durations import DAY_MS
from bucketsched.core.errors import AlreadyExists, InvalidArgument, NotWritten, Unavailable
from bucketsched.core.idempotency import digest
from bucketsched.core.task import FactKind, Mark, Priority
from bucketsched.core.validation import NewTask
from bucketsched.service.tasks import Created, CreateResult, CreateUnavailable

TASK = NewTask("t", payload=b"x", metadata={"a": "b", "c": "d"}, delay_ms=3_600_000, idempotency_key="order-7")


@pytest.fixture
async def world() -> AsyncIterator[ServiceWorld]:
    world = await ServiceWorld().prepare()
    yield world
    await world.tasks.close()


async def create(world: ServiceWorld, task: NewTask = TASK) -> CreateResult:
    return (await world.tasks.create_many([task]))[0]


async def test_the_same_create_is_the_same_task_at_the_same_time(world: ServiceWorld) -> None:
    first = await create(world)
    assert isinstance(first, Created)
    world.clock.advance_ms(DAY_MS)
    assert await create(world) == first, "a delay is resolved once"
    (stored,) = [await world.tasks.get("default", ids.text(first.task_id))]
    assert (stored.row.body.idempotency_key, stored.row.body.created_ms) == ("order-7", NOW_MS)


async def test_an_id_that_comes_with_it_is_only_a_proposal(world: ServiceWorld) -> None:
    first = await create(world)
    assert isinstance(first, Created)
    other = ids.text(ids.mint(world.clock.now_ms() + 3_600_000, 3, 99))
    assert await create(world, replace(TASK, task_id=other)) == first


@pytest.mark.parametrize(
    "other",
    [
        {"payload": b"y"},
        {"type": "u"},
        {"metadata": {"a": "b"}},
        {"metadata": {"a": "bc", "d": ""}},
        {"priority": Priority.HIGH},
        {"content_type": "text/plain"},
        {"delay_ms": 3_600_001},
        {"delay_ms": None},
        {"delay_ms": None, "due_ms": NOW_MS + 3_600_000},
    ],
)
async def test_another_create_under_the_same_key_is_refused(world: ServiceWorld, other: dict[str, object]) -> None:
    first = await create(world)
    assert isinstance(first, Created)
    refused = await create(world, replace(TASK, **other))  # type: ignore[arg-type]
    assert isinstance(refused, AlreadyExists)
    assert refused.field == "idempotency_key"
    assert ids.text(first.task_id) in refused.message


def test_the_order_of_metadata_says_nothing() -> None:
    assert digest(TASK) == digest(replace(TASK, metadata={"c": "d", "a": "b"}))


@pytest.mark.parametrize("kind", [FactKind.DISPATCHED, FactKind.CANCELLED, FactKind.MOVED])
async def test_it_holds_after_the_task_is_over(world: ServiceWorld, kind: FactKind) -> None:
    first = await create(world)
    assert isinstance(first, Created)
    stored = await world.tasks.get("default", ids.text(first.task_id))
    await world.store.mark([Mark(stored.row.ref, kind, stored.row.due_ms + 5)])
    world.clock.advance_ms(DAY_MS)
    assert await create(world) == first


async def test_a_claim_whose_create_came_to_nothing_is_made_good(world: ServiceWorld) -> None:
    world.store.fail_next("insert", NotWritten("no"), times=1_000)
    failed = await create(world)
    assert isinstance(failed, CreateUnavailable)
    world.store.recover("insert")
    world.clock.advance_ms(60_000)
    made = await create(world)
    assert made == Created(failed.task_id, NOW_MS + 3_600_000)
    stored = await world.tasks.get("default", ids.text(failed.task_id))
    assert (stored.row.body.payload, stored.row.body.created_ms) == (b"x", NOW_MS)


async def test_twice_in_one_batch_is_one_task(world: ServiceWorld) -> None:
    one, two, other = await world.tasks.create_many([TASK, TASK, replace(TASK, idempotency_key="order-8")])
    assert isinstance(one, Created)
    assert one == two
    assert isinstance(other, Created)
    assert other != one


async def test_without_the_keys_nothing_is_created(world: ServiceWorld) -> None:
    world.keys.fail_next("claim", Unavailable("gone"))
    assert isinstance(await create(world), CreateUnavailable)
    assert world.store.calls["insert"] == 0


@pytest.mark.parametrize("key", ["a" * 201, "a\nb", "\x00"])
async def test_what_is_no_key_is_refused(world: ServiceWorld, key: str) -> None:
    refused = await create(world, replace(TASK, idempotency_key=key))
    assert isinstance(refused, InvalidArgument)
    assert refused.field == "idempotency_key"
