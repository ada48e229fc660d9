"""Idempotency keys in this process's memory: for simulations and tests."""

from __future__ import annotations

from ...core.idempotency import Claim
from .store import Faults


class MemoryKeyStore(Faults):
    """Implements KeyStore. Nothing expires."""

    def __init__(self) -> None:
        super().__init__()
        self._claims: dict[tuple[bytes, str], Claim] = {}

    async def claim(self, namespace_id: bytes, key: str, claim: Claim, expires_ms: int) -> Claim:
        """See KeyStore."""
        fault = await self._enter("claim")
        standing = self._claims.setdefault((namespace_id, key), claim)
        self._leave(fault)
        return standing
