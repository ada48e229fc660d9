"""What the SDK raises. All are `BucketschedError`.

InvalidArgument, NotFound, AlreadyExists and FailedPrecondition are `RequestError`s: they name a `field`, and the same
request will not do. Unavailable: the request may or may not have taken effect, and can safely be sent again.
CreateUnavailable is that of a create, with the id under which it is the same task. StorageFull: an Unavailable that
lasts until somebody makes room where the tasks are kept; a create says it by CreateUnavailable's `cause`.
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
    StorageFull,
    Unavailable,
)

__all__ = [
    "AlreadyExists",
    "BucketschedError",
    "ConfigError",
    "CreateUnavailable",
    "FailedPrecondition",
    "InvalidArgument",
    "NotFound",
    "RequestError",
    "StorageFull",
    "Unavailable",
]


class CreateUnavailable(Unavailable):
    """The task may or may not have been created. Create it again with this `task_id` to have it once, not twice."""

    def __init__(self, task_id: str, reason: str, cause: Unavailable | None = None) -> None:
        super().__init__(f"{reason} (task_id {task_id})")
        self.task_id = task_id
        self.cause = cause
