"""Which addresses a server may connect to on behalf of others: public ones, and networks that were allowed by name.

A table of our own, after IANA's registries of special-purpose addresses: the standard library's `is_global` differs
from one patch release to the next, and calls some addresses global that lead into a provider's own network.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NOT_PUBLIC_V4 = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's metadata",
    "169.254.0.0/16": "link-local, or a cloud's metadata",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "anycast sinks",
    "192.52.193.0/24": "anycast relays",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "anycast sinks",
    "198.18.0.0/15": "benchmarks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, or broadcast",
}
_PUBLIC_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = {
    "2001::/23": "protocol assignments, or Teredo",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "anycast sinks",
    "3fff::/20": "documentation",
}
_V4 = [(IPv4Network(network), what) for network, what in _NOT_PUBLIC_V4.items()]
_V6 = [(IPv6Network(network), what) for network, what in _NOT_PUBLIC_V6.items()]
_NAT64 = ip_network("64:ff9b::/96")


def meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 address only wraps (IPv4-mapped, or by NAT64's well-known prefix), or itself."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def refusal(address: Address, allowed: Iterable[Network] = ()) -> str:
    """Why nobody may be connected to this address; "": one may. `allowed`: networks that need not be public."""
    real = meant(address)
    if any(real in network for network in allowed if network.version == real.version):
        return ""
    what = _what_is_not_public(real)
    return f"{address} is not public ({what})" if what else ""


def _what_is_not_public(address: Address) -> str:
    """What it is for; "" for public addresses."""
    if isinstance(address, IPv4Address):
        return next((what for network, what in _V4 if address in network), "")
    if address.scope_id is not None or address not in _PUBLIC_V6:
        return "of this host, link or site"
    return next((what for network, what in _V6 if address in network), "")
