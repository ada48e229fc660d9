"""Connections to servers."""

from __future__ import annotations

import asyncio
import json
from ipaddress import ip_address

import grpc

from ..core.errors import InvalidArgument

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
KEEPALIVE_MS = 20_000
KEEPALIVE_TIMEOUT_MS = 5_000
RECONNECT_MS_MIN = 100
RECONNECT_MS_MAX = 2_000

WEB_SCHEMES = ("http://", "https://", "grpc://")
_ROUND_ROBIN = json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})
_OPTIONS: list[tuple[str, str | int]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
    ("grpc.enable_retries", 0),  # retries are ours: bounded in time, and with the same task ids
    ("grpc.service_config", _ROUND_ROBIN),
    ("grpc.use_local_subchannel_pool", 1),
]


async def open_channel(target: str) -> grpc.aio.Channel:
    """A channel to "host:port", to several (separated by commas), or to any target that gRPC knows (dns:///...).

    Several are used in turn, and those that don't answer are left out. Raises InvalidArgument.
    """
    return grpc.aio.insecure_channel(await _uri(target), options=_OPTIONS)


async def _uri(target: str) -> str:
    addresses = [address.strip() for address in target.split(",") if address.strip()]
    if not addresses:
        raise InvalidArgument("target", "must be host:port, or several separated by commas")
    if len(addresses) == 1:
        if addresses[0].startswith(WEB_SCHEMES):
            raise InvalidArgument("target", f"must be host:port without a scheme, is {addresses[0]!r}")
        return addresses[0]
    hosts = [_split(address) for address in addresses]
    resolved = [await _resolve(host, port) for host, port in hosts]
    families = {ip_address(host).version for host, _ in resolved}
    if families == {4}:
        return "ipv4:" + ",".join(f"{host}:{port}" for host, port in resolved)
    if families == {6}:
        return "ipv6:" + ",".join(f"[{host}]:{port}" for host, port in resolved)
    raise InvalidArgument("target", "must not mix IPv4 and IPv6 addresses")


def _split(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and 0 < int(port) < 65_536):
        raise InvalidArgument("target", f"must be host:port, is {address!r}")
    return host.strip("[]"), int(port)


async def _resolve(host: str, port: int) -> tuple[str, int]:
    """gRPC takes several addresses only as numbers, so names are looked up here, once."""
    try:
        return str(ip_address(host)), port
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
    except OSError as error:
        raise InvalidArgument("target", f"can't resolve {host!r}: {error.strerror}") from error
    ordered = sorted(found, key=lambda entry: entry[0].value)  # IPv4 first
    return str(ordered[0][4][0]), port
