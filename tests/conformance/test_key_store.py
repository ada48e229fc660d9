"""What every KeyStore promises."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest
from store_adapters import WallClock, namespace_id

from bucketsched.core.idempotency import Claim
from bucketsched.ports import KeyStore

CLAIM = Claim(b"t" * 16, 2**41, 2**41 - 5, 7, bytes(range(32)))


def expires_ms() -> int:
    return WallClock().now_ms() + 86_400_000


async def test_the_first_claim_of_a_key_stands(keys: KeyStore) -> None:
    namespace = namespace_id()
    assert await keys.claim(namespace, "key", CLAIM, expires_ms()) == CLAIM
    other = replace(CLAIM, task_id=b"o" * 16, digest=b"other")
    assert await keys.claim(namespace, "key", other, expires_ms()) == CLAIM
    assert await keys.claim(namespace, "key", CLAIM, expires_ms()) == CLAIM


async def test_keys_are_of_a_namespace(keys: KeyStore) -> None:
    one, two = namespace_id(), namespace_id()
    other = replace(CLAIM, task_id=b"o" * 16)
    assert await keys.claim(one, "key", CLAIM, expires_ms()) == CLAIM
    assert await keys.claim(two, "key", other, expires_ms()) == other
    assert await keys.claim(one, "Key", other, expires_ms()) == other


@pytest.mark.parametrize("key", ["ü €", "a" * 200, "a/b?c='d'", " "])
async def test_any_text_is_a_key(keys: KeyStore, key: str) -> None:
    namespace = namespace_id()
    assert await keys.claim(namespace, key, CLAIM, expires_ms()) == CLAIM
    assert await keys.claim(namespace, key, replace(CLAIM, created_ms=8), expires_ms()) == CLAIM


async def test_of_many_who_claim_a_key_at_once_one_does(keys: KeyStore) -> None:
    namespace = namespace_id()
    claims = [replace(CLAIM, task_id=secrets.token_bytes(16)) for _ in range(8)]
    standing = await asyncio.gather(*(keys.claim(namespace, "key", claim, expires_ms()) for claim in claims))
    assert len(set(standing)) == 1
    assert standing[0] in claims
