"""What aiosmtplib makes of a real server's words, and which servers get mails and credentials at all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mail_receiver import MailReceiver, receiving_mail

from bucketsched.adapters.smtp.sender import AiosmtplibSender, Login
from bucketsched.core.mail import Email, Tls
from bucketsched.core.mail_message import Mail

MAIL = Mail("s@example.org", ("a@example.org", "b@example.org"), b"Subject: x\r\n\r\nhello\r\n")
CERTIFICATE = Path(__file__).parents[1] / "mail_certificate.pem"
ANY = AiosmtplibSender(None, {})


@pytest.fixture
async def receiver() -> AsyncIterator[MailReceiver]:
    async with receiving_mail() as receiver:
        yield receiver


def settings(receiver: MailReceiver) -> Email:
    return Email("127.0.0.1", MAIL.sender, MAIL.recipients, port=receiver.port, tls=Tls.NONE)


async def test_a_mail_is_handed_over_as_it_is(receiver: MailReceiver) -> None:
    answer = await ANY.send(MAIL, settings(receiver))
    assert (answer.sent, answer.code, answer.final) == (True, 250, False)
    [got] = receiver.got
    assert (got.sender, got.recipients, got.raw) == (MAIL.sender, list(MAIL.recipients), MAIL.content)


@pytest.mark.parametrize(("said", "final"), [("451 later", False), ("452 full", False), ("552 large", True)])
async def test_what_the_server_says_decides(receiver: MailReceiver, said: str, final: bool) -> None:
    receiver.answers = [said]
    answer = await ANY.send(MAIL, settings(receiver))
    assert (answer.sent, answer.final, answer.host_failed) == (False, final, False)
    assert str(answer.code) in said
    assert said[4:] in str(answer)


async def test_recipients_that_are_refused(receiver: MailReceiver) -> None:
    receiver.unknown = {"a@example.org": "550 unknown"}
    answer = await ANY.send(MAIL, settings(receiver))
    assert answer.sent, "one of them has it"
    assert "a@example.org" in answer.said
    receiver.unknown["b@example.org"] = "450 busy"
    assert not (await ANY.send(MAIL, settings(receiver))).final, "one of them may get it later"
    receiver.unknown["b@example.org"] = "550 unknown"
    assert (await ANY.send(MAIL, settings(receiver))).final
    assert len(receiver.got) == 1


async def test_nobody_there_and_silence_are_the_hosts_fault(receiver: MailReceiver) -> None:
    answer = await ANY.send(MAIL, replace(settings(receiver), port=1))
    assert (answer.trouble, answer.host_failed, answer.final) == ("ConnectionFailed", True, False)
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    answer = await ANY.send(MAIL, replace(settings(receiver), port=port, timeout_ms=300))
    assert (answer.trouble, answer.host_failed) == ("TimedOut", True)
    silent.close()


async def test_a_server_without_tls_gets_nothing_where_tls_is_asked_for(receiver: MailReceiver) -> None:
    answer = await ANY.send(MAIL, replace(settings(receiver), tls=Tls.STARTTLS))
    assert not answer.sent
    assert not answer.final
    assert receiver.got == []


@pytest.mark.parametrize(
    ("servers", "host", "tls", "why"),
    [
        ((), "127.0.0.1", Tls.NONE, "smtp_servers"),
        (("127.0.0.1:1",), "127.0.0.1", Tls.NONE, "smtp_servers"),
        (None, "mx.invalid", Tls.NONE, "without TLS"),
    ],
)
async def test_what_may_not_be_used_is_not_connected_to(
    receiver: MailReceiver, servers: tuple[str, ...] | None, host: str, tls: Tls, why: str
) -> None:
    answer = await AiosmtplibSender(servers, {}).send(MAIL, replace(settings(receiver), host=host, tls=tls))
    assert (answer.trouble, answer.final, answer.host_failed) == ("Refused", False, False)
    assert why in answer.said
    assert receiver.got == []


async def test_a_server_that_settings_name_may_be_used(receiver: MailReceiver) -> None:
    email = settings(receiver)
    assert (await AiosmtplibSender((email.server,), {}).send(MAIL, email)).sent


async def test_credentials_go_to_their_server_only() -> None:
    async with receiving_mail(auth=True) as receiver:
        receiver.passwords = {"ada": "secret"}
        email = replace(settings(receiver), login="ses")
        good = Login(email.server, "ada", "secret")
        assert (await AiosmtplibSender(None, {"ses": good}).send(MAIL, email)).sent
        assert [got.login for got in receiver.got] == ["ada"]
        for logins in ({}, {"ses": replace(good, server="elsewhere:25")}):
            answer = await AiosmtplibSender(None, logins).send(MAIL, email)
            assert (answer.trouble, "smtp_logins" in answer.said) == ("Refused", True)
        answer = await AiosmtplibSender(None, {"ses": replace(good, password="wrong")}).send(MAIL, email)
        assert (answer.code, answer.final) == (535, False), "operators can set it right"
        assert "secret" not in repr(good)
        assert len(receiver.got) == 1


async def test_credentials_do_not_go_without_tls_to_another_machine() -> None:
    email = Email("mx.invalid", "a@b", ("c@d",), tls=Tls.NONE, login="ses")
    sender = AiosmtplibSender((email.server,), {"ses": Login(email.server, "ada", "secret")})
    answer = await sender.send(MAIL, email)
    assert (answer.trouble, answer.said) == ("Refused", "credentials are sent over TLS only")


@pytest.mark.parametrize("tls", [Tls.STARTTLS, Tls.TLS])
async def test_mails_and_credentials_go_over_tls_to_a_server_that_proves_itself(
    monkeypatch: pytest.MonkeyPatch, tls: Tls
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with receiving_mail(auth=True, tls=context, tls_at_once=tls is Tls.TLS) as receiver:
        receiver.passwords = {"ada": "secret"}
        email = replace(settings(receiver), tls=tls, login="mx")
        sender = AiosmtplibSender((email.server,), {"mx": Login(email.server, "ada", "secret")})
        answer = await sender.send(MAIL, email)
        assert (answer.sent, answer.final, receiver.got) == (False, False, []), "nobody vouches for its certificate"
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        answer = await sender.send(MAIL, email)
        assert answer.sent, answer
        assert [(got.login, got.over_tls) for got in receiver.got] == [("ada", True)]
