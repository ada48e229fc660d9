"""What aiobotocore makes of answers, errors and silence: said of each message, and each request made once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from tests.webhook_receiver import Received, Receiver, never, receiving

from bucketsched.adapters.sqs.sender import AiobotocoreSender
from bucketsched.core.sqs import Sqs
from bucketsched.core.sqs_answer import Sent
from bucketsched.core.sqs_message import SqsMessage

MESSAGES = [SqsMessage("a", {"ce_id": "1"}), SqsMessage("b", {}, "group", "once")]


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
async def sender() -> AsyncIterator[AiobotocoreSender]:
    sender = AiobotocoreSender(None)
    yield sender
    await sender.close()


def settings(receiver: Receiver) -> Sqs:
    endpoint = f"http://127.0.0.1:{receiver.port}"
    return Sqs(f"{endpoint}/1/jobs.fifo", "eu-central-1", endpoint, timeout_ms=20_000)


def answered(body: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(body), status=status, content_type="application/x-amz-json-1.0")


async def test_each_message_has_its_own_end(receiver: Receiver, sender: AiobotocoreSender) -> None:
    failed = {"Id": "0", "SenderFault": False, "Code": "InternalError", "Message": "sorry"}
    receiver.answers = [
        answered({"Successful": [{"Id": "1", "MessageId": "m", "MD5OfMessageBody": "x"}], "Failed": [failed]})
    ]
    answer = await sender.send(MESSAGES, settings(receiver))
    assert answer.sent == (Sent("InternalError", "sorry"), Sent(said="m"))
    assert (answer.host_failed, answer.whole) == (False, False)
    [got] = receiver.got
    asked = json.loads(got.body)
    assert asked["QueueUrl"] == settings(receiver).queue_url
    assert asked["Entries"] == [
        {"Id": "0", "MessageBody": "a", "MessageAttributes": {"ce_id": {"DataType": "String", "StringValue": "1"}}},
        {"Id": "1", "MessageBody": "b", "MessageAttributes": {}, "MessageGroupId": "group",
         "MessageDeduplicationId": "once"},
    ]  # fmt: skip
    assert "test-secret" not in str(got.headers)


async def test_a_message_that_the_answer_forgets_is_not_taken_for_sent(
    receiver: Receiver, sender: AiobotocoreSender
) -> None:
    receiver.answers = [answered({"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "x"}]})]
    answer = await sender.send(MESSAGES, settings(receiver))
    assert [sent.code for sent in answer.sent] == ["", "Unanswered"]


@pytest.mark.parametrize(
    ("status", "code", "final"),
    [
        (400, "QueueDoesNotExist", False),
        (403, "AccessDenied", False),
        (400, "RequestThrottled", False),
        (500, "InternalFailure", False),
        (503, "ServiceUnavailable", False),
        (400, "InvalidMessageContents", True),
        (400, "BatchRequestTooLong", True),
    ],
)
async def test_an_error_is_said_of_every_message_and_not_tried_again_here(
    receiver: Receiver, sender: AiobotocoreSender, status: int, code: str, final: bool
) -> None:
    receiver.answers = [answered({"__type": f"com.amazonaws.sqs#{code}", "message": "why"}, status)]
    answer = await sender.send(MESSAGES, settings(receiver))
    assert len(receiver.got) == 1
    assert (answer.whole, answer.host_failed) == (True, False)
    assert {sent.final for sent in answer.sent} == {final}
    assert all(code in str(sent) or "NonExistentQueue" in str(sent) for sent in answer.sent), answer
    assert "why" in answer.sent[0].said


async def test_silence_is_the_hosts_fault(receiver: Receiver, sender: AiobotocoreSender) -> None:
    await sender.send(MESSAGES[:1], settings(receiver))  # loads the model, which takes its time
    receiver.answers = [never]
    answer = await sender.send(MESSAGES, replace(settings(receiver), timeout_ms=500))
    assert answer.host_failed
    assert {sent.code for sent in answer.sent} <= {"TimedOut", "ConnectionFailed"}


async def test_nobody_there_is_the_hosts_fault(receiver: Receiver, sender: AiobotocoreSender) -> None:
    sqs = replace(settings(receiver), endpoint_url="http://127.0.0.1:1")
    answer = await sender.send(MESSAGES, sqs)
    assert (answer.host_failed, {sent.code for sent in answer.sent}) == (True, {"ConnectionFailed"})
    assert not answer.sent[0].final


async def test_an_endpoint_that_the_server_does_not_allow_is_not_connected_to(receiver: Receiver) -> None:
    for endpoints, asked in (((), 0), (("http://elsewhere",), 0), ((settings(receiver).endpoint_url,), 1)):
        sender = AiobotocoreSender(endpoints)
        answer = await sender.send(MESSAGES, settings(receiver))
        assert len(receiver.got) == asked
        assert (answer.sent[0].code == "EndpointRefused") == (not asked)
        assert not answer.sent[0].final
        await sender.close()


async def test_no_credentials_is_a_failed_attempt(
    receiver: Receiver, sender: AiobotocoreSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    answer = await sender.send(MESSAGES, settings(receiver))
    assert {(sent.code, sent.final) for sent in answer.sent} == {("NoCredentialsError", False)}
    assert receiver.got == []


async def test_many_at_once_share_a_client(receiver: Receiver, sender: AiobotocoreSender) -> None:
    async def slow(got: Received) -> web.Response:
        await asyncio.sleep(0.05)
        return answered({"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": "x"}]})

    receiver.answers = [slow] * 20
    answers = await asyncio.gather(*(sender.send(MESSAGES[:1], settings(receiver)) for _ in range(20)))
    assert {answer.sent for answer in answers} == {(Sent(said="m"),)}
    assert len({got.peer for got in receiver.got}) <= 20
