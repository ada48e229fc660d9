"""Creating and showing namespaces."""

from __future__ import annotations

import uuid

from ..core.catalog import Namespace
from ..core.validation import check_name
from ..ports import Catalog, Clock


class NamespaceService:
    """The use cases of namespaces."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock

    async def create(self, name: str) -> Namespace:
        """The namespace of this name, made if it does not exist. Raises InvalidArgument or Unavailable."""
        check_name(name, "name")
        return await self._catalog.create_namespace(Namespace(name, uuid.uuid4().bytes, self._clock.now_ms()))

    async def list(self) -> list[Namespace]:
        """All of them, by name. Raises Unavailable."""
        return sorted(await self._catalog.list_namespaces(), key=lambda namespace: namespace.name)
