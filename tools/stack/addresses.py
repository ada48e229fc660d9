"""How to reach three servers, whoever started them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from .errors import StackError


@dataclass(frozen=True)
class Addresses:
    """Each is host:port, as in the settings file that they were read from."""

    cassandra: str
    kafka: str
    zookeeper: str
    settings: Path

    @classmethod
    def read(cls, settings: Path) -> Addresses:
        """Those of a settings file. Raises StackError if it does not name all three."""
        try:
            found = tomllib.loads(settings.read_text())
            return cls(
                cassandra=found["cassandra"]["contact_points"][0],
                kafka=found["kafka"]["bootstrap"],
                zookeeper=found["zookeeper"]["hosts"],
                settings=settings.resolve(),
            )
        except (OSError, tomllib.TOMLDecodeError, LookupError, TypeError) as error:
            raise StackError(f"{settings} does not say how to reach the servers: {error!r}") from error
