"""A receiver of mails: a real SMTP server whose answers a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any, cast

from aiosmtpd.smtp import SMTP, AuthResult


@dataclass(frozen=True, slots=True)
class ReceivedMail:
    """One mail as it came."""

    sender: str
    recipients: list[str]
    raw: bytes
    login: str
    over_tls: bool

    @property
    def message(self) -> EmailMessage:
        return cast(EmailMessage, message_from_bytes(self.raw, policy=default))


class MailReceiver:
    """Keeps what it gets, and answers with what is next in `answers`, in the end with 250."""

    def __init__(self) -> None:
        self.got: list[ReceivedMail] = []
        self.answers: list[str] = []
        self.unknown: dict[str, str] = {}
        """What is said of recipients that it does not take."""
        self.passwords: dict[str, str] = {}
        self.port = 0

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        """See aiosmtpd."""
        if address in self.unknown:
            return self.unknown[address]
        envelope.rcpt_tos.append(address)
        return "250 fine"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """See aiosmtpd."""
        login = session.auth_data.login.decode() if session.authenticated else ""
        self.got.append(
            ReceivedMail(envelope.mail_from, envelope.rcpt_tos, envelope.original_content, login, server.over_tls)
        )
        return self.answers.pop(0) if self.answers else "250 taken"

    def authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        """See aiosmtpd."""
        good = self.passwords.get(data.login.decode()) == data.password.decode()
        return AuthResult(success=good, handled=False, auth_data=data if good else None)


class _Server(SMTP):  # type: ignore[misc]
    @property
    def over_tls(self) -> bool:
        return self.transport is not None and self.transport.get_extra_info("sslcontext") is not None


@asynccontextmanager
async def receiving_mail(
    port: int = 0, auth: bool = False, tls: Any = None, tls_at_once: bool = False
) -> AsyncIterator[MailReceiver]:
    """Serves at a loopback port. `auth`: takes credentials, without TLS. `tls`: a context for STARTTLS, or for all."""
    receiver = MailReceiver()
    more: dict[str, Any] = {"authenticator": receiver.authenticate, "auth_require_tls": False} if auth else {}

    def serve() -> SMTP:
        return _Server(receiver, hostname="mx.test", tls_context=None if tls_at_once else tls, **more)

    server = await asyncio.get_running_loop().create_server(serve, "127.0.0.1", port, ssl=tls if tls_at_once else None)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
