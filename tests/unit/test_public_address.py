"""Which addresses are public."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketsched.core.public_address import meant, refusal

NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "100.127.255.255", "127.0.0.1", "127.8.8.8",
    "169.254.169.254", "168.63.129.16", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1",
    "192.88.99.1", "198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255",
    "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1",
    "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1%eth0", "fec0::1", "ff02::1",
]  # fmt: skip
PUBLIC = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.32.0.1", "11.0.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_not_public(text: str) -> None:
    assert "is not public" in refusal(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_public(text: str) -> None:
    assert refusal(ip_address(text)) == ""


def test_a_network_that_is_allowed_by_name_need_not_be_public() -> None:
    networks = [ip_network("10.1.0.0/16"), ip_network("fd00::/8")]
    assert refusal(ip_address("10.1.2.3"), networks) == ""
    assert refusal(ip_address("::ffff:10.1.2.3"), networks) == ""
    assert refusal(ip_address("fd00:ec2::254"), networks) == ""
    assert refusal(ip_address("10.2.0.1"), networks)
    assert refusal(ip_address("127.0.0.1"), networks)


@given(st.integers(0, 2**32 - 1))
def test_a_wrapped_address_is_what_it_wraps(number: int) -> None:
    plain = ip_address(number)
    for prefix in ("::ffff:", "64:ff9b::"):
        wrapped = ip_address(f"{prefix}{plain}")
        assert meant(wrapped) == plain
        assert bool(refusal(wrapped)) == bool(refusal(plain))


@given(st.ip_addresses())
def test_what_the_standard_library_calls_private_is_not_public(address: object) -> None:
    address = meant(ip_address(str(address)))
    if address.is_private or address.is_loopback or address.is_link_local or address.is_multicast:
        assert refusal(address)
