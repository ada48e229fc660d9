"""The settings of an e-mail queue as messages of bucketsched.v1."""

from __future__ import annotations

from ..core.errors import InvalidArgument
from ..core.mail import Tls
from ..stubs.v1 import queue_pb2
from .fields import check_text, length_message, seconds_of
from .mail import Email

_INT32_MAX = 2**31 - 1
_TEXTS = ("host", "to_key", "subject", "login")
_TLS = {
    Tls.STARTTLS: queue_pb2.EMAIL_TLS_STARTTLS,
    Tls.TLS: queue_pb2.EMAIL_TLS_TLS,
    Tls.NONE: queue_pb2.EMAIL_TLS_NONE,
}
_OF_TLS = {number: tls for tls, number in _TLS.items()}


def email_message(email: Email) -> queue_pb2.Email:
    """As it is sent. Raises InvalidArgument for what no message can hold; the rest is up to the server."""
    texts: dict[str, str] = {name: getattr(email, name) for name in _TEXTS}
    _check_texts(email, texts)
    for name in ("port", "concurrency"):
        number = getattr(email, name)
        if not isinstance(number, int) or not 1 <= number <= _INT32_MAX:
            raise InvalidArgument(f"email.{name}", f"must be a number above 0, is {number!r}")
    tls = email.tls.upper() if isinstance(email.tls, str) else ""
    if tls not in set(Tls):
        raise InvalidArgument("email.tls", f"must be {', '.join(Tls)}")
    message = queue_pb2.Email(
        **texts,
        to=email.to,
        port=email.port,
        tls=_TLS[Tls(tls)],
        timeout=length_message("email.timeout", email.timeout),
        concurrency=email.concurrency,
    )
    setattr(message, "from", email.sender)  # a word that Python keeps to itself
    return message


def _check_texts(email: Email, texts: dict[str, str]) -> None:
    if isinstance(email.to, str | bytes):  # it would be taken for its characters
        raise InvalidArgument("email.to", f"must be a list, is {type(email.to).__name__}")
    for name, text in (*texts.items(), ("from", email.sender), *(("to", address) for address in email.to)):
        check_text(f"email.{name}", text)


def email_from_message(message: queue_pb2.Email) -> Email:
    """As the server shows it."""
    return Email(
        host=message.host,
        sender=getattr(message, "from"),
        to=tuple(message.to),
        to_key=message.to_key,
        subject=message.subject,
        port=message.port,
        tls=_OF_TLS[message.tls],
        login=message.login,
        timeout=seconds_of(message.timeout),
        concurrency=message.concurrency,
    )
