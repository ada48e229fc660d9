"""What the settings of an e-mail queue may be."""

from __future__ import annotations

import re

from .errors import InvalidArgument
from .mail import ADDRESS_LENGTH_MAX, Email, is_address
from .mail_subject import check_subject
from .validation import check_range

RECIPIENTS_MAX = 50
HOST_LENGTH_MAX = 253
KEY_LENGTH_MAX = 100
LOGIN_LENGTH_MAX = 100
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 1_000, 300_000
CONCURRENCY_MAX = 64

_HOST = re.compile(r"[A-Za-z0-9_.:-]+")
"""Names, and addresses of both kinds."""


def check_email(email: Email) -> None:
    """Raises InvalidArgument with the field at fault."""
    if len(email.host) > HOST_LENGTH_MAX or not _HOST.fullmatch(email.host):
        raise InvalidArgument("email.host", "must be the name or the address of a mail server")
    check_range(email.port, 1, 65_535, "email.port")
    _check_address(email.sender, "email.from")
    if len(email.to) > RECIPIENTS_MAX:
        raise InvalidArgument("email.to", f"must be at most {RECIPIENTS_MAX}")
    for address in email.to:
        _check_address(address, "email.to")
    if not email.to and not email.to_key:
        raise InvalidArgument("email.to", "must name somebody, unless email.to_key does")
    if len(email.to_key) > KEY_LENGTH_MAX:
        raise InvalidArgument("email.to_key", f"must be at most {KEY_LENGTH_MAX} characters")
    if len(email.login) > LOGIN_LENGTH_MAX:
        raise InvalidArgument("email.login", f"must be at most {LOGIN_LENGTH_MAX} characters")
    check_subject(email.subject)
    check_range(email.timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX, "email.timeout")
    check_range(email.concurrency, 1, CONCURRENCY_MAX, "email.concurrency")


def _check_address(text: str, field: str) -> None:
    if not is_address(text):
        raise InvalidArgument(field, f"must be an address such as ada@example.org, at most {ADDRESS_LENGTH_MAX} long")
