"""The blocking client: the same calls as the asyncio one, from threads, and its ends."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_server import FakeServer

from bucketsched import Client, CreatedTask, NewTask, SyncClient
from bucketsched.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable
from bucketsched.stubs.v1 import task_pb2


class Background:
    """A fake server in an event loop of another thread."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._do(self.server.start())

    def close(self) -> None:
        self._do(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background()
    yield background
    background.close()


@pytest.fixture
def client(background: Background) -> Iterator[SyncClient]:
    with SyncClient(background.server.address) as client:
        yield client


def public(kind: type) -> dict[str, inspect.Signature]:
    """Methods and their parameters."""
    return {
        name: inspect.signature(value).replace(return_annotation=None)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_it_has_every_call_of_the_asyncio_client() -> None:
    assert public(SyncClient) == public(Client)
    assert inspect.signature(SyncClient) == inspect.signature(Client)


def test_create_get_and_cancel(background: Background, client: SyncClient) -> None:
    created = client.create("t", b"x", delay=60, metadata={"a": "b"})
    found = client.get(created.id)
    assert (found.id, found.payload, found.metadata) == (created.id, b"x", {"a": "b"})
    background.server.cancel_outcome = task_pb2.CANCEL_OUTCOME_CANCELLED
    assert client.cancel(created.id).cancelled


def test_errors_are_those_of_the_asyncio_client(client: SyncClient) -> None:
    with pytest.raises(NotFound):
        client.get("missing")
    with pytest.raises(InvalidArgument, match="delay"):
        client.create("t", delay=-1)
    client.create_queue("q")
    with pytest.raises(AlreadyExists):
        client.create_queue("q", partitions=7)


def test_creates_of_many_threads_are_sent_together(background: Background, client: SyncClient) -> None:
    client.create("t")
    began = len(background.server.batches)
    with ThreadPoolExecutor(32) as threads:
        ids = list(threads.map(lambda _: client.create("t").id, range(320)))
    assert len(set(ids)) == 320
    assert len(background.server.batches) - began < 320


def test_many_at_once(client: SyncClient) -> None:
    results = client.create_many(NewTask("t", b"%d" % number) for number in range(5))
    assert all(isinstance(result, CreatedTask) for result in results)


def test_after_its_end_it_says_so(background: Background) -> None:
    client = SyncClient(background.server.address)
    client.create("t")
    client.close()
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.create("t")
    assert not [thread for thread in threading.enumerate() if thread.name == "bucketsched-client"]


def test_a_server_that_is_not_there(background: Background) -> None:
    with SyncClient("127.0.0.1:1", timeout=0.2) as client, pytest.raises(Unavailable):
        client.create("t")


def _create(client: SyncClient, told: multiprocessing.Queue[str]) -> None:
    try:
        client.get("t")
    except Unavailable as error:
        told.put(str(error))


def test_it_is_not_for_two_processes() -> None:
    client = SyncClient("127.0.0.1:1")
    told: multiprocessing.Queue[str] = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=_create, args=(client, told))
    child.start()
    assert "fork" in told.get(timeout=30)
    child.join(30)
    client.close()
