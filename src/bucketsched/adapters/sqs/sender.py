"""Sends by aiobotocore: each request once, as what is tried again is decided by the owner of a task.

Credentials come from where AWS's own tools look for them: the process's environment, its files, its machine's role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...core.sqs import Sqs
from ...core.sqs_answer import Sent, SqsAnswer
from ...core.sqs_message import SqsMessage

if TYPE_CHECKING:
    from aiobotocore.session import AioSession

SAID_LENGTH_MAX = 300
CONNECTIONS_MAX = 64
_HEAVY_DATA = ("endpoints", "partitions")
_Place = tuple[str, str, int]


class AiobotocoreSender:
    """Port SqsSender. `endpoints`: those besides AWS's own that the server allows; None: any.

    The process's credentials sign whatever is sent, so it is not for a queue alone to say where that goes.
    """

    def __init__(self, endpoints: Sequence[str] | None) -> None:
        self._endpoints = endpoints
        self._session: AioSession | None = None
        self._client: Any = None
        self._place: _Place | None = None
        self._opening = asyncio.Lock()

    async def send(self, messages: Sequence[SqsMessage], sqs: Sqs) -> SqsAnswer:
        """See SqsSender."""
        if sqs.endpoint_url and self._endpoints is not None and sqs.endpoint_url not in self._endpoints:
            said = f"{sqs.endpoint_url} is not among the server's deliver.sqs_endpoints"
            return SqsAnswer.failed(len(messages), "EndpointRefused", said)
        client = await self._client_for(sqs)
        try:
            async with asyncio.timeout(sqs.timeout_ms / 1000):
                answer = await client.send_message_batch(
                    QueueUrl=sqs.queue_url, Entries=[_entry(i, message) for i, message in enumerate(messages)]
                )
        except TimeoutError:
            return SqsAnswer.failed(len(messages), "TimedOut", "", host_failed=True)
        except Exception as error:
            return _answer_of(error, len(messages))
        return SqsAnswer(tuple(_sent(answer, str(i)) for i in range(len(messages))))

    async def close(self) -> None:
        """See SqsSender."""
        async with self._opening:
            await self._close()

    async def _client_for(self, sqs: Sqs) -> Any:
        """The client for the settings; one for others is closed."""
        place = (sqs.region, sqs.endpoint_url, sqs.timeout_ms)
        async with self._opening:
            if place != self._place:
                await self._close()
                if self._session is None:
                    self._session = await asyncio.to_thread(_loaded_session)
                self._client = await _open(self._session, sqs)
                self._place = place
        return self._client

    async def _close(self) -> None:
        client, self._client, self._place = self._client, None, None
        if client is not None:
            await client.close()


def _loaded_session() -> AioSession:
    """A session with SQS's model. Reads megabytes of Python and JSON: not for the thread of an event loop."""
    from aiobotocore.session import get_session

    session = get_session()
    loader = session.get_component("data_loader")
    loader.load_service_model("sqs", "service-2")
    for name in _HEAVY_DATA:
        loader.load_data(name)
    return session


async def _open(session: AioSession, sqs: Sqs) -> Any:
    from aiobotocore.config import AioConfig

    config = AioConfig(
        retries={"total_max_attempts": 1},
        connect_timeout=sqs.timeout_ms / 1000,
        read_timeout=sqs.timeout_ms / 1000,
        max_pool_connections=CONNECTIONS_MAX,
        tcp_keepalive=True,
    )
    context = session.create_client("sqs", sqs.region, endpoint_url=sqs.endpoint_url or None, config=config)
    return await context.__aenter__()  # closed by `close`, as what it serves outlives this call


def _entry(number: int, message: SqsMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "Id": str(number),
        "MessageBody": message.body,
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value} for name, value in message.attributes.items()
        },
    }
    if message.group:
        entry |= {"MessageGroupId": message.group, "MessageDeduplicationId": message.deduplication}
    return entry


def _sent(answer: dict[str, Any], entry_id: str) -> Sent:
    for sent in answer.get("Successful", ()):
        if sent["Id"] == entry_id:
            return Sent(said=sent["MessageId"])
    for failed in answer.get("Failed", ()):
        if failed["Id"] == entry_id:
            return Sent(failed.get("Code") or "Failed", str(failed.get("Message", ""))[:SAID_LENGTH_MAX])
    return Sent("Unanswered", "the answer does not speak of this message")


def _answer_of(error: Exception, count: int) -> SqsAnswer:
    """What it means for the messages that there was no answer, or an error for all of them."""
    from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

    said = str(error)[:SAID_LENGTH_MAX]
    if isinstance(error, ClientError):
        return SqsAnswer.failed(count, str(error.response.get("Error", {}).get("Code") or "Unknown"), said)
    if isinstance(error, ConnectionError | HTTPClientError | OSError):
        return SqsAnswer.failed(count, "ConnectionFailed", said, host_failed=True)
    return SqsAnswer.failed(count, type(error).__name__, said)
