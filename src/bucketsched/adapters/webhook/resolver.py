"""Looks up names for one queue's connections, and refuses those that lead where nobody may be sent.

aiohttp connects to exactly the addresses that it gets here, so what was checked is what is connected to, whatever the
name means a moment later.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

from aiohttp.abc import AbstractResolver, ResolveResult

from ...core.public_address import Address, Network, meant, refusal

LOOKUPS_MAX = 32
"""At once, in threads of their own: one that hangs holds up only its own name."""
ADDRESSES_MAX = 16
"""Of one name that are tried."""
LookUp = Callable[[str, int], Sequence[str]]


class AddressRefused(OSError):
    """The name, or address, leads where nobody may be sent."""


def system_lookup(host: str, port: int) -> list[str]:
    """All addresses of a name, as the system has them. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Lookups:
    """Shared by all queues of a process. Who asks for a name that is being looked up gets the same answer."""

    def __init__(self, look_up: LookUp = system_lookup) -> None:
        self._look_up = look_up
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="webhook-dns")
        self._under_way: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Raises OSError."""
        key = (host, port)
        looking = self._under_way.get(key)
        if looking is None:
            looking = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, host, port)
            self._under_way[key] = looking
            looking.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(looking)

    def _ended(self, key: tuple[str, int], looking: asyncio.Future[Sequence[str]]) -> None:
        """An error is taken note of here: all who waited may be gone."""
        self._under_way.pop(key, None)
        if not looking.cancelled():
            looking.exception()

    def close(self) -> None:
        """Waits for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def check(addresses: Sequence[Address], networks: Sequence[Network]) -> None:
    """Raises AddressRefused if one of them must not be connected to: then the name is not to be trusted at all."""
    for address in addresses:
        if why := refusal(address, networks):
            raise AddressRefused(why)


class GuardedResolver(AbstractResolver):
    """Gives a connector addresses that it may connect to. `networks`: those that need not be public."""

    def __init__(self, lookups: Lookups, networks: Sequence[Network]) -> None:
        self._lookups = lookups
        self._networks = networks

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises OSError: not found, or refused."""
        found = [ip_address(text) for text in await self._lookups.addresses(host, port)]
        check(found, self._networks)
        if not found:
            raise OSError(f"{host} has no address")
        return [_result(host, port, meant(address)) for address in found[:ADDRESSES_MAX]]

    async def close(self) -> None:
        """The lookups are shared, and stay."""


def _result(host: str, port: int, address: Address) -> ResolveResult:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=str(address), port=port, family=family, proto=0, flags=flags)
