"""Hands mails over by aiosmtplib, to servers that may be used and, with credentials, to those that these are for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from aiosmtplib import (
    SMTP,
    SMTPAuthenticationError,
    SMTPConnectError,
    SMTPException,
    SMTPHeloError,
    SMTPRecipientsRefused,
    SMTPResponseException,
    SMTPServerDisconnected,
    SMTPTimeoutError,
)

from ...core.mail import Email, Tls
from ...core.mail_answer import MailAnswer
from ...core.mail_message import Mail

SAID_LENGTH_MAX = 300
GOODBYE_S_MAX = 2.0
_ABOUT_US = frozenset({530, 534, 535, 538})
"""Codes of the server's wish for credentials, or for others."""


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials, and the only server (host:port) that gets them."""

    server: str
    username: str
    password: str = field(repr=False)


class AiosmtplibSender:
    """Port MailSender. `servers`: those (host:port) that queues may use; None: any, but without TLS loopback only."""

    def __init__(self, servers: Sequence[str] | None, logins: Mapping[str, Login]) -> None:
        self._servers = servers
        self._logins = logins

    async def send(self, mail: Mail, email: Email) -> MailAnswer:
        """See MailSender."""
        if why := self._objection(email):
            return MailAnswer(said=why, trouble="Refused")
        login = self._logins.get(email.login)
        client = _client(email, login)
        try:
            async with asyncio.timeout(email.timeout_ms / 1000):
                await client.connect()
                refused, said = await client.sendmail(mail.sender, list(mail.recipients), mail.content)
        except Exception as error:
            client.close()
            return _answer_of(error)
        except BaseException:
            client.close()
            raise
        await _part(client)
        others = "".join(f"; not to {address}: {answer}" for address, answer in refused.items())
        return MailAnswer(250, (said + others)[:SAID_LENGTH_MAX])

    def _objection(self, email: Email) -> str:
        """Why nothing may be sent by these settings; "": it may."""
        if self._servers is not None and email.server not in self._servers:
            return f"{email.server} is not among the server's deliver.smtp_servers"
        plain = email.tls is Tls.NONE and not email.on_loopback
        if plain and self._servers is None:
            return "without TLS mails go to this machine only"
        if not email.login:
            return ""
        if plain:
            return "credentials are sent over TLS only"
        login = self._logins.get(email.login)
        if login is None or login.server != email.server:
            return f"the server's deliver.smtp_logins has no {email.login!r} for {email.server}"
        return ""


def _client(email: Email, login: Login | None) -> SMTP:
    return SMTP(
        hostname=email.host,
        port=email.port,
        use_tls=email.tls is Tls.TLS,
        start_tls=email.tls is Tls.STARTTLS,
        username=login.username if login else None,
        password=login.password if login else None,
        timeout=email.timeout_ms / 1000,
    )


async def _part(client: SMTP) -> None:
    """Says goodbye. The mail is the server's by now, whatever becomes of that."""
    with suppress(SMTPException, OSError, TimeoutError):
        async with asyncio.timeout(GOODBYE_S_MAX):
            await client.quit()
    client.close()


def _answer_of(error: Exception) -> MailAnswer:
    """What it means that the server has not taken it."""
    said = str(error)[:SAID_LENGTH_MAX]
    if isinstance(error, SMTPRecipientsRefused):
        first = min(error.recipients, key=lambda refused: refused.code)  # one that may pass is tried again for
        return MailAnswer(first.code, first.message[:SAID_LENGTH_MAX])
    if isinstance(error, SMTPAuthenticationError | SMTPHeloError | SMTPConnectError) and hasattr(error, "code"):
        return MailAnswer(int(error.code), said, about_us=True)
    if isinstance(error, SMTPResponseException):
        return MailAnswer(error.code, said, about_us=error.code in _ABOUT_US)
    if isinstance(error, TimeoutError | SMTPTimeoutError):
        return MailAnswer(said=said, trouble="TimedOut", host_failed=True)
    if isinstance(error, SMTPConnectError | SMTPServerDisconnected | OSError):
        return MailAnswer(said=said, trouble="ConnectionFailed", host_failed=True)
    kind = type(error).__name__ if isinstance(error, SMTPException) else f"Broken{type(error).__name__}"
    return MailAnswer(said=said, trouble=kind)
