"""bucketsched.v1.Email from and to what the core knows."""

from __future__ import annotations

from ..core.durations import duration_ms
from ..core.errors import InvalidArgument
from ..core.mail import Email, Tls
from ..stubs.v1 import queue_pb2 as pb
from .retries import length

_DEFAULT = Email("", "")
_TLS = {
    pb.EMAIL_TLS_UNSPECIFIED: _DEFAULT.tls,
    pb.EMAIL_TLS_STARTTLS: Tls.STARTTLS,
    pb.EMAIL_TLS_TLS: Tls.TLS,
    pb.EMAIL_TLS_NONE: Tls.NONE,
}
_TLS_NUMBERS = {tls: number for number, tls in _TLS.items()}


def email_of(message: pb.Email) -> Email:
    """What was asked for, with defaults for what was left out. Raises InvalidArgument."""
    timeout_ms = _DEFAULT.timeout_ms
    if message.HasField("timeout"):
        timeout_ms = duration_ms(message.timeout.seconds, message.timeout.nanos, "email.timeout")
    tls = _TLS.get(message.tls)
    if tls is None:
        raise InvalidArgument("email.tls", f"must be {', '.join(Tls)}")
    return Email(
        host=message.host,
        sender=getattr(message, "from"),
        to=tuple(message.to),
        to_key=message.to_key,
        subject=message.subject or _DEFAULT.subject,
        port=message.port or _DEFAULT.port,
        tls=tls,
        login=message.login,
        timeout_ms=timeout_ms,
        concurrency=message.concurrency or _DEFAULT.concurrency,
    )


def email_message(email: Email | None) -> pb.Email | None:
    """What is shown of it: a login's name, never what stands behind it."""
    if email is None:
        return None
    message = pb.Email(
        host=email.host,
        to=email.to,
        to_key=email.to_key,
        subject=email.subject,
        port=email.port,
        tls=_TLS_NUMBERS[email.tls],
        login=email.login,
        timeout=length(email.timeout_ms),
        concurrency=email.concurrency,
    )
    setattr(message, "from", email.sender)  # a word that Python keeps to itself
    return message
