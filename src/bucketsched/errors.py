"""What the SDK raises. All are `BucketschedError`.

InvalidArgument, NotFound, AlreadyExists and FailedPrecondition are `RequestError`s: they name a `field`, and the same
request will not do. Unavailable: the request may or may not have taken effect, and can safely be sent again.
"""

from __future__ import annotations

from .core.errors import (
    AlreadyExists,
    BucketschedError,
    ConfigError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    RequestError,
    Unavailable,
)

__all__ = [
    "AlreadyExists",
    "BucketschedError",
    "ConfigError",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "RequestError",
    "Unavailable",
]
