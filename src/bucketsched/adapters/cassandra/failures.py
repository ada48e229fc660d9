"""What the driver's errors mean at the port."""

from __future__ import annotations

from ...core.errors import NotWritten, OutcomeUnknown, Unavailable
from .group_commit import Refused


class NoAnswer(Exception):
    """Not within the request's time; what was sent may still be executed."""


class NotSent(Exception):
    """Too many requests have no answer yet; nothing was sent."""


class OneOfSeveral(Exception):
    """What one node said, or nobody, to a request that was sent to more than one."""

    @classmethod
    def of(cls, error: Exception) -> Exception:
        """A refusal of the request itself is the same everywhere; of anything else the others may think differently."""
        return error if isinstance(write_error(error, single=False), Refused) else cls(one_line(error))


def one_line(error: Exception) -> str:
    """One line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def read_error(error: Exception) -> Unavailable:
    """What a failed read means."""
    return Unavailable(f"cassandra: {one_line(error)}")


def write_error(error: Exception, single: bool) -> NotWritten | OutcomeUnknown:
    """What a failed write means. `single`: it touched one partition only.

    Too few replicas alive is found out before the first of them is written to, but per partition: of a batch over
    several, others may have been written.
    """
    import cassandra
    from cassandra import protocol
    from cassandra.cluster import NoHostAvailable

    line = f"cassandra: {one_line(error)}"
    if isinstance(error, cassandra.RequestValidationException | protocol.RequestValidationException):
        return Refused(line)
    if isinstance(error, NoHostAvailable | NotSent) or (isinstance(error, cassandra.Unavailable) and single):
        return NotWritten(line)
    return OutcomeUnknown(line)
