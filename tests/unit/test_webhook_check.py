"""What the settings of a webhook may be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bucketsched.core.errors import InvalidArgument
from bucketsched.core.retry import RetryPolicy
from bucketsched.core.webhook import Webhook
from bucketsched.core.webhook_check import check_webhook
from bucketsched.encoding.webhook import decode_webhook, encode_webhook
from bucketsched.errors import Unavailable

SECRET = "whsec_" + "A" * 32
WEBHOOK = Webhook("https://example.org/hooks?x=1", (SECRET,), networks=("10.1.0.0/16",))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org", "http://example.org:8080/a/b?c=d", "https://sub.example-1.org./", "http://localhost/",
        "https://93.184.215.14/x", "https://[2606:4700::1111]:8443/x", "http://10.1.2.3/", "https://xn--bcher-kva.de/",
    ],
)  # fmt: skip
def test_urls(url: str) -> None:
    check_webhook(replace(WEBHOOK, url=url))


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "https://", "https:///x", "https://u:p@example.org/",
        "https://example.org/#a", "https://example.org:0/", "https://example.org:99999/", "https://exa mple.org/",
        "https://bücher.de/", "https://example.org/\r\nX: y", "https://" + "a" * 3_000, "https://127.0.0.1/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest", "http://127.1/",
        "http://2130706433/", "http://0x7f.1/", "http://0x7f000001/", "http://017700000001/", "http://1.2.3/",
        "https://example.org\\@evil.org/", "https://[fe80::1%25eth0]/", "https://exa%6dple.org/", "https://[::1/",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_webhook(replace(WEBHOOK, url=url))
    assert caught.value.field == "webhook.url"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("webhook.secrets", {"secrets": (SECRET,) * 6}),
        ("webhook.secrets", {"secrets": ("A" * 32,)}),
        ("webhook.secrets", {"secrets": ("whsec_" + "A" * 28,)}),
        ("webhook.secrets", {"secrets": ("whsec_" + "A" * 92,)}),
        ("webhook.secrets", {"secrets": ("whsec_" + "?" * 32,)}),
        ("webhook.timeout", {"timeout_ms": 99}),
        ("webhook.timeout", {"timeout_ms": 300_001}),
        ("webhook.concurrency", {"concurrency": 0}),
        ("webhook.concurrency", {"concurrency": 257}),
        ("webhook.tries_max", {"retry": RetryPolicy(tries_max=0)}),
        ("webhook.delay_first", {"retry": RetryPolicy(delay_ms_first=0)}),
        ("webhook.delay_first", {"retry": RetryPolicy(delay_ms_first=2, delay_ms_max=1)}),
        ("webhook.delay_max", {"retry": RetryPolicy(delay_ms_max=10**12)}),
        ("webhook.elapsed_max", {"retry": RetryPolicy(elapsed_ms_max=-1)}),
        ("webhook.retried_statuses", {"retried_statuses": (200,)}),
        ("webhook.retried_statuses", {"retried_statuses": (500,)}),
        ("webhook.networks", {"networks": ("10.1.2.3/16",)}),
        ("webhook.networks", {"networks": ("nowhere",)}),
        ("webhook.networks", {"networks": ("10.0.0.0/8",) * 51}),
    ],
)
def test_what_is_not_possible_is_named(field: str, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_webhook(replace(WEBHOOK, **changes))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_secrets_are_not_shown() -> None:
    assert SECRET not in repr(WEBHOOK)
    with pytest.raises(InvalidArgument) as caught:
        check_webhook(replace(WEBHOOK, secrets=("whsec_tooshort",)))
    assert "tooshort" not in str(caught.value)


def test_they_are_stored_and_read_back_unchanged() -> None:
    webhook = replace(WEBHOOK, retry=RetryPolicy(3, 4, 5, 6), retried_statuses=(404, 410), timeout_ms=7)
    assert decode_webhook(encode_webhook(webhook)) == webhook
    assert decode_webhook(encode_webhook(None)) is None
    assert decode_webhook(None) is None


@pytest.mark.parametrize("stored", ["{", '{"url": "x", "retry": {}, "new": 1}', '{"url": "x"}', "[]"])
def test_what_a_newer_version_has_stored_says_so_and_nothing_else(stored: str) -> None:
    with pytest.raises(Unavailable, match="upgrade") as caught:
        decode_webhook(stored)
    assert stored not in str(caught.value)
