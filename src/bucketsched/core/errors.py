"""The error tree.

BucketschedError
├── RequestError                  the caller's fault; has a `field`
│   ├── InvalidArgument
│   ├── NotFound
│   ├── AlreadyExists
│   └── FailedPrecondition
├── Unavailable                   nobody's fault; retry the same request, after `retry_after_ms`
│   └── StorageFull               there is no room for it; retry once somebody has made some
├── ConfigError                   stops the start with one line
└── outcomes of a write, translated at the edge from vendors' errors
    ├── NotWritten                certainly not applied
    │   └── NoRoom                and will not be before somebody makes room
    ├── OwnershipLost             fenced, or a versioned write refused: somebody else may own it now
    └── OutcomeUnknown            may or may not have been applied
"""

from __future__ import annotations


class BucketschedError(Exception):
    """Anything that this package raises on purpose."""


class RequestError(BucketschedError):
    """A request that cannot be served as it is; `field` names the part of it that is at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field
        self.message = message


class InvalidArgument(RequestError):
    """The field's value is not allowed; the message says what is."""


class NotFound(RequestError):
    """What the field names does not exist."""


class AlreadyExists(RequestError):
    """What the field names exists, and differs from what was asked for."""


class FailedPrecondition(RequestError):
    """Not possible in the present state or mode."""


class Unavailable(BucketschedError):
    """The request may or may not have taken effect; the same request can safely be sent again."""

    retry_after_ms: int = 100
    """Sooner is of no use."""


class StorageFull(Unavailable):
    """There is no room to store it, so it has not taken effect. What is stored already goes on."""

    retry_after_ms = 5_000


class ConfigError(BucketschedError):
    """A setting is wrong; the message is one line that names it."""


class NotWritten(BucketschedError):
    """The write was certainly not applied."""


class NoRoom(NotWritten):
    """The disk is full, or the limit of what may be stored is reached."""


class OwnershipLost(BucketschedError):
    """A fenced commit or a versioned write was refused."""


class OutcomeUnknown(BucketschedError):
    """The write may have been applied, or may still be."""
