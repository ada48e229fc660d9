"""Posts by aiohttp: no redirects, no proxies, no cookies, a bounded answer, and only where the resolver lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from ipaddress import ip_address

from aiohttp import (
    ClientConnectionError,
    ClientConnectorDNSError,
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
)
from yarl import URL

from ...core.public_address import Network
from ...core.webhook import Webhook
from ...core.webhook_answer import Answer, Trouble
from ...core.webhook_check import networks_of
from ...core.webhook_request import WebhookRequest
from .resolver import AddressRefused, GuardedResolver, Lookups, check

ANSWER_BYTES_MAX = 64 * 1024
"""More of an answer's body is not read: the connection is closed instead."""
HEADER_BYTES_MAX = 8 * 1024
KEEP_ALIVE_S = 4.0
"""Shorter than servers keep theirs (5 s is common): who posts on one that is just being closed has to try again."""
DETAIL_LENGTH_MAX = 200
_NO_TIMEOUT = ClientTimeout(total=None, connect=None, sock_read=None, sock_connect=None)


class AiohttpSender:
    """Port Sender. Each queue has one, so no connection is used that was opened by another's rules.

    `operator_networks`: what the server allows; a queue's own networks count only as far as they lie within.
    """

    def __init__(self, lookups: Lookups, operator_networks: Sequence[Network]) -> None:
        self._lookups = lookups
        self._operator_networks = operator_networks
        self._session: ClientSession | None = None
        self._allowed: Sequence[Network] = ()
        self._rules: tuple[str, ...] = ()

    async def post(self, request: WebhookRequest, webhook: Webhook) -> Answer:
        """See Sender."""
        answer: Answer | None = None
        try:
            async with asyncio.timeout(webhook.timeout_ms / 1000):
                session = await self._session_for(webhook.networks)
                url = URL(request.url, encoded=True)
                self._check_literal(url)
                async with session.post(
                    url, data=request.body, headers=request.headers, allow_redirects=False, timeout=_NO_TIMEOUT
                ) as response:
                    answer = Answer(response.status, response.headers.get("Retry-After", ""))
                    await _read_away(response)
        except (TimeoutError, ClientError, OSError, ValueError) as error:
            return answer or _answer_of(error)
        return answer

    async def _session_for(self, networks: tuple[str, ...]) -> ClientSession:
        """A session by these rules; connections of other rules are closed."""
        if self._session is None or networks != self._rules:
            former = self._session
            self._rules, self._allowed = networks, self._common(networks)
            self._session = self._open()
            if former is not None:
                await former.close()
        return self._session

    def _common(self, networks: tuple[str, ...]) -> list[Network]:
        """The parts of the queue's networks that the server allows."""
        return [
            mine if mine.prefixlen >= theirs.prefixlen else theirs
            for mine in networks_of(networks)
            for theirs in self._operator_networks
            if mine.version == theirs.version and mine.overlaps(theirs)
        ]

    def _open(self) -> ClientSession:
        connector = TCPConnector(
            resolver=GuardedResolver(self._lookups, self._allowed),
            use_dns_cache=False,
            limit=0,  # how many at once is decided by delivery
            keepalive_timeout=KEEP_ALIVE_S,
        )
        return ClientSession(
            connector=connector,
            cookie_jar=DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            headers={"User-Agent": f"bucketsched/{version('bucketsched')}"},
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
        )

    def _check_literal(self, url: URL) -> None:
        """Addresses in a URL never get to the resolver."""
        with suppress(ValueError):
            check([ip_address(url.host or "")], self._allowed)

    async def close(self) -> None:
        """See Sender."""
        if self._session is not None:
            await self._session.close()


async def _read_away(response: ClientResponse) -> None:
    """Reads what is left, so that the connection can be used again, unless it is too much."""
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            response.close()
            return


def _answer_of(error: Exception) -> Answer:
    """What it means that there was no answer."""
    cause = error.os_error if isinstance(error, ClientConnectorDNSError) else error
    if isinstance(cause, AddressRefused):
        return Answer(trouble=Trouble.REFUSED, detail=str(cause))
    if isinstance(error, TimeoutError):
        return Answer(trouble=Trouble.TIMEOUT)
    if isinstance(error, ClientConnectionError | OSError):
        return Answer(trouble=Trouble.CONNECTION, detail=f"{type(error).__name__}: {error}"[:DETAIL_LENGTH_MAX])
    said = getattr(error, "message", "")  # all of the error would show the URL, which may have a secret in it
    return Answer(trouble=Trouble.PROTOCOL, detail=f"{type(error).__name__}: {said}"[:DETAIL_LENGTH_MAX])
