"""What the settings of a webhook queue may be."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from .errors import InvalidArgument
from .public_address import refusal
from .validation import check_range
from .webhook import Webhook, key_of, port_of

URL_LENGTH_MAX = 2_048
SECRETS_MAX = 5
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 100, 300_000
CONCURRENCY_MAX = 256
TRIES_MAX = 100
DELAY_MS_MAX = 86_400_000
ELAPSED_MS_MAX = 7 * 86_400_000
STATUSES_MAX = 50
NETWORKS_MAX = 50

_URL = re.compile(r"[!-~]+")
_HOST = re.compile(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMBER = re.compile(r"(.*\.)?(\d+|0[xX][0-9A-Fa-f]*)\.?")
"""127.1 or 0x7f000001: systems take such names for addresses."""


def check_webhook(webhook: Webhook) -> None:
    """Raises InvalidArgument with the field at fault; what it says never contains a secret."""
    networks = networks_of(webhook.networks)
    _check_url(webhook.url, networks)
    if len(webhook.secrets) > SECRETS_MAX:
        raise InvalidArgument("webhook.secrets", f"must be at most {SECRETS_MAX}")
    for secret in webhook.secrets:
        key_of(secret)
    retry = webhook.retry
    check_range(webhook.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, "webhook.timeout")
    check_range(webhook.concurrency, 1, CONCURRENCY_MAX, "webhook.concurrency")
    check_range(retry.tries_max, 1, TRIES_MAX, "webhook.tries_max")
    check_range(retry.delay_ms_max, 1, DELAY_MS_MAX, "webhook.delay_max")
    check_range(retry.delay_ms_first, 1, retry.delay_ms_max, "webhook.delay_first")
    check_range(retry.elapsed_ms_max, 0, ELAPSED_MS_MAX, "webhook.elapsed_max")
    if len(webhook.retried_statuses) > STATUSES_MAX:
        raise InvalidArgument("webhook.retried_statuses", f"must be at most {STATUSES_MAX}")
    for status in webhook.retried_statuses:
        check_range(status, 300, 499, "webhook.retried_statuses")


def networks_of(texts: tuple[str, ...]) -> list[IPv4Network | IPv6Network]:
    """Networks in CIDR notation. Raises InvalidArgument."""
    if len(texts) > NETWORKS_MAX:
        raise InvalidArgument("webhook.networks", f"must be at most {NETWORKS_MAX}")
    try:
        return [ip_network(text) for text in texts]
    except ValueError as error:
        raise InvalidArgument("webhook.networks", f"must be networks such as 10.1.0.0/16: {error}") from error


def _check_url(url: str, networks: list[IPv4Network | IPv6Network]) -> None:
    if not url or len(url) > URL_LENGTH_MAX or not _URL.fullmatch(url):
        raise InvalidArgument("webhook.url", f"must be 1 to {URL_LENGTH_MAX} visible ASCII characters")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", port_of(parts)
    except ValueError as error:
        raise InvalidArgument("webhook.url", f"must be a URL: {error}") from error
    if parts.scheme not in ("http", "https"):
        raise InvalidArgument("webhook.url", "must begin with https:// or http://")
    if "@" in parts.netloc or "#" in url or "\\" in url or not 1 <= port <= 65_535:
        raise InvalidArgument("webhook.url", "must have no user, no password, no fragment, and a port of 1 to 65535")
    _check_host(host, networks)


def _check_host(host: str, networks: list[IPv4Network | IPv6Network]) -> None:
    try:
        address = ip_address(host)
    except ValueError:
        if not _HOST.fullmatch(host) or _NUMBER.fullmatch(host):
            raise InvalidArgument("webhook.url", "must have a host name or an address; write IDNs as xn--...") from None
        return
    if why := refusal(address, networks):
        raise InvalidArgument("webhook.url", f"must lead to a public address or one of webhook.networks: {why}")
