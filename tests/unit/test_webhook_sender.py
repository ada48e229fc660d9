"""Posting by aiohttp, to a real server: bounded in time and size, and only where it may go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from threading import Event

import pytest
from aiohttp import web
from tests.webhook_receiver import Received, Receiver, never, receiving

from bucketsched.adapters.webhook.resolver import LOOKUPS_MAX, Lookups, system_lookup
from bucketsched.adapters.webhook.sender import ANSWER_BYTES_MAX, AiohttpSender
from bucketsched.core.public_address import Network
from bucketsched.core.webhook import Webhook
from bucketsched.core.webhook_answer import Answer, Trouble
from bucketsched.core.webhook_request import WebhookRequest

ANYWHERE: list[Network] = [ip_network("0.0.0.0/0"), ip_network("::/0")]
LOOPBACK = ("127.0.0.0/8",)


class Names:
    """A name service that a test fills: each look-up takes the next answer, the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def sender() -> AsyncIterator[AiohttpSender]:
    lookups = Lookups()
    sender = AiohttpSender(lookups, ANYWHERE)
    yield sender
    await sender.close()
    lookups.close()


async def post(sender: AiohttpSender, url: str, networks: tuple[str, ...] = LOOPBACK, **settings: int) -> Answer:
    webhook = replace(Webhook(url, networks=networks, timeout_ms=10_000), **settings)  # type: ignore[arg-type]
    return await sender.post(WebhookRequest(url, {"webhook-id": "a/0/1", "content-type": "x/y"}, b"\0body"), webhook)


async def with_names(names: Names, url: str, networks: tuple[str, ...] = LOOPBACK) -> Answer:
    lookups = Lookups(names)
    sender = AiohttpSender(lookups, ANYWHERE)
    try:
        return await post(sender, url, networks)
    finally:
        await sender.close()
        lookups.close()


async def test_what_is_given_is_posted(receiver: Receiver, sender: AiohttpSender) -> None:
    assert await post(sender, receiver.url + "?a=%2F&b=c%20d") == Answer(204)
    [got] = receiver.got
    assert (got.path, got.body, got.headers["webhook-id"]) == ("/hook?a=%2F&b=c%20d", b"\0body", "a/0/1")
    assert (got.request.method, got.headers["Content-Type"]) == ("POST", "x/y")


async def test_a_connection_is_used_again(receiver: Receiver, sender: AiohttpSender) -> None:
    receiver.answers = [web.Response(status=500, body=b"x" * 1_000)]
    assert [(await post(sender, receiver.url)).status for _ in range(3)] == [500, 204, 204]
    assert len({got.peer for got in receiver.got}) == 1


async def test_what_the_answer_asks_for_is_kept(receiver: Receiver, sender: AiohttpSender) -> None:
    receiver.answers = [web.Response(status=429, headers={"Retry-After": "7"})]
    assert await post(sender, receiver.url) == Answer(429, "7")


async def test_no_redirect_is_followed(receiver: Receiver, sender: AiohttpSender) -> None:
    receiver.answers = [web.Response(status=status, headers={"Location": receiver.url}) for status in (302, 307, 308)]
    assert [(await post(sender, receiver.url)).status for _ in range(3)] == [302, 307, 308]
    assert len(receiver.got) == 3


async def test_no_answer_ends_in_time(receiver: Receiver, sender: AiohttpSender) -> None:
    receiver.answers = [never]
    assert (await post(sender, receiver.url, timeout_ms=300)).trouble is Trouble.TIMEOUT
    assert len(receiver.got) == 1


async def test_a_body_that_never_ends_does_not_undo_a_status(receiver: Receiver, sender: AiohttpSender) -> None:
    async def dripping(got: Received) -> web.StreamResponse:
        response = web.StreamResponse(status=200)
        await response.prepare(got.request)
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.02)

    receiver.answers = [dripping]
    assert await post(sender, receiver.url, timeout_ms=500) == Answer(200)


async def test_of_a_large_answer_no_more_is_read_than_the_limit(receiver: Receiver, sender: AiohttpSender) -> None:
    sent = 0

    async def endless(got: Received) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=200)
        await response.prepare(got.request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    receiver.answers = [endless]
    async with asyncio.timeout(5):
        assert await post(sender, receiver.url, timeout_ms=60_000) == Answer(200)
    assert sent < ANSWER_BYTES_MAX + 16 * 1024 * 1024  # what lies in the buffers of both ends
    assert await post(sender, receiver.url) == Answer(204)
    assert receiver.got[0].peer != receiver.got[1].peer


async def test_headers_without_end_are_an_error(sender: AiohttpSender) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000)
        await writer.drain()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    answer = await post(sender, f"http://127.0.0.1:{port}/?token=hidden")
    assert answer.trouble is Trouble.PROTOCOL
    assert 10 < len(answer.detail) <= 200
    assert "hidden" not in answer.detail
    server.close()


async def test_a_closed_port_is_a_failed_connection(sender: AiohttpSender) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        answer = await post(sender, f"http://127.0.0.1:{probe.getsockname()[1]}/")
    assert answer.trouble is Trouble.CONNECTION


async def test_no_proxy_of_the_environment_is_used(
    receiver: Receiver, sender: AiohttpSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await post(sender, receiver.url) == Answer(204)


async def test_no_cookie_is_sent_back(receiver: Receiver) -> None:
    lookups = Lookups(Names(["127.0.0.1"]))
    sender = AiohttpSender(lookups, ANYWHERE)
    receiver.answers = [web.Response(status=200, headers={"Set-Cookie": "a=b"})]
    for _ in range(2):
        await post(sender, f"http://shop.example.org:{receiver.port}/")
    assert "Cookie" not in receiver.got[1].headers
    await sender.close()
    lookups.close()


# ---------------------------------------------------------------- where it may go


async def test_an_address_that_is_not_public_is_refused(receiver: Receiver, sender: AiohttpSender) -> None:
    for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"):
        answer = await post(sender, f"http://{host}:{receiver.port}/", networks=())
        assert answer.trouble is Trouble.REFUSED, host
    assert receiver.got == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "017700000001"])
async def test_addresses_written_in_other_ways_get_nowhere(
    receiver: Receiver, sender: AiohttpSender, host: str
) -> None:
    answer = await post(sender, f"http://{host}:{receiver.port}/", networks=())
    assert answer.trouble is not Trouble.NONE
    assert receiver.got == []


async def test_a_name_that_leads_to_such_an_address_is_refused(receiver: Receiver, sender: AiohttpSender) -> None:
    assert (await post(sender, f"http://localhost:{receiver.port}/", networks=())).trouble is Trouble.REFUSED
    assert receiver.got == []


async def test_one_address_that_is_not_public_spoils_the_name(receiver: Receiver) -> None:
    names = Names(["93.184.215.14", "169.254.169.254"])
    answer = await with_names(names, f"http://example.org:{receiver.port}/")
    assert (answer.trouble, "169.254.169.254" in answer.detail) == (Trouble.REFUSED, True)


async def test_a_name_is_looked_up_once_and_that_address_is_connected_to(receiver: Receiver) -> None:
    """A name service that gives another answer the second time gets no second time."""
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    assert await with_names(names, f"http://rebound.example.org:{receiver.port}/") == Answer(204)
    assert names.asked == ["rebound.example.org"]
    assert receiver.got[0].headers["Host"] == f"rebound.example.org:{receiver.port}"


async def test_each_new_connection_looks_it_up_anew(receiver: Receiver) -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    lookups = Lookups(names)
    sender = AiohttpSender(lookups, ANYWHERE)
    receiver.answers = [web.Response(status=200, headers={"Connection": "close"})]
    url = f"http://rebound.example.org:{receiver.port}/"
    assert (await post(sender, url)).status == 200
    assert (await post(sender, url)).trouble is Trouble.REFUSED
    await sender.close()
    lookups.close()


async def test_a_wrapped_address_is_connected_to_as_what_it_is(receiver: Receiver) -> None:
    answer = await with_names(Names(["::ffff:127.0.0.1"]), f"http://example.org:{receiver.port}/")
    assert answer == Answer(204)


async def test_rules_that_become_stricter_hold_for_open_connections_too(
    receiver: Receiver, sender: AiohttpSender
) -> None:
    url = f"http://localhost:{receiver.port}/"
    assert await post(sender, url, ("127.0.0.0/8", "::1/128")) == Answer(204)
    assert (await post(sender, url, ())).trouble is Trouble.REFUSED
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("server", "queue", "allowed"),
    [
        ([], ("127.0.0.0/8",), False),
        (["10.0.0.0/8"], ("127.0.0.0/8",), False),
        (["127.0.0.0/8"], (), False),
        (["127.0.0.0/8"], ("127.0.0.1/32",), True),
        (["127.0.0.1/32"], ("0.0.0.0/0",), True),
        (["127.0.0.2/32"], ("0.0.0.0/0",), False),
        (["::/0"], ("127.0.0.0/8",), False),
    ],
)
async def test_a_queue_allows_no_more_than_the_server(
    receiver: Receiver, server: list[str], queue: tuple[str, ...], allowed: bool
) -> None:
    lookups = Lookups()
    sender = AiohttpSender(lookups, [ip_network(network) for network in server])
    answer = await post(sender, receiver.url, queue)
    assert (answer.trouble is Trouble.NONE) == allowed
    await sender.close()
    lookups.close()


async def test_a_name_without_address_is_a_failed_connection() -> None:
    assert (await with_names(Names([]), "http://example.org/")).trouble is Trouble.CONNECTION


async def test_names_that_hang_hold_up_no_other_and_are_asked_once(receiver: Receiver) -> None:
    release = Event()
    asked: list[str] = []

    def look_up(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        if host == "dead.example.org":
            release.wait(30)
        return ["127.0.0.1"]

    lookups = Lookups(look_up)
    sender = AiohttpSender(lookups, ANYWHERE)
    dead = [post(sender, f"http://dead.example.org:{receiver.port}/", timeout_ms=500) for _ in range(LOOKUPS_MAX + 8)]
    slow = asyncio.gather(*dead)
    await asyncio.sleep(0)
    assert await post(sender, f"http://live.example.org:{receiver.port}/", timeout_ms=10_000) == Answer(204)
    assert {answer.trouble for answer in await slow} == {Trouble.TIMEOUT}
    assert asked.count("dead.example.org") == 1
    release.set()
    await sender.close()
    lookups.close()


def test_the_system_knows_loopback() -> None:
    assert set(system_lookup("localhost", 80)) & {"127.0.0.1", "::1"}
