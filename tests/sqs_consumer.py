"""Consumes from queues of a server that speaks SQS, as a user's program would."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiobotocore.session import get_session

RECEIVE_S_MAX = 90


class Consumer:
    """Creates queues and receives what is in them."""

    def __init__(self, endpoint: str, client: Any) -> None:
        self.endpoint = endpoint
        self._client = client

    def url_of(self, name: str) -> str:
        """Where a queue is that may not be there yet."""
        return f"{self.endpoint}/000000000000/{name}"

    async def create_queue(self, name: str) -> str:
        """The URL of a new queue; FIFO if its name says so."""
        attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return str((await self._client.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"])

    async def receive(self, url: str, count: int) -> list[dict[str, Any]]:
        """So many messages, in the order in which they came; each is deleted."""
        deadline = time.monotonic() + RECEIVE_S_MAX
        got: list[dict[str, Any]] = []
        while len(got) < count:
            assert time.monotonic() < deadline, f"only {len(got)} of {count} messages came"
            got += await self.receive_now(url, wait_s=1)
        return got

    async def receive_now(self, url: str, wait_s: int = 0) -> list[dict[str, Any]]:
        """What is there."""
        answer = await self._client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s,
            MessageAttributeNames=["All"], AttributeNames=["All"],
        )  # fmt: skip
        messages = answer.get("Messages", [])
        for message in messages:
            await self._client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        return [_plain(message) for message in messages]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    attributes = {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}
    return {
        "body": message["Body"],
        "attributes": attributes,
        "group": message.get("Attributes", {}).get("MessageGroupId", ""),
    }


@asynccontextmanager
async def consuming(endpoint: str) -> AsyncIterator[Consumer]:
    """A consumer of the server's queues."""
    client = get_session().create_client(
        "sqs", "eu-central-1", endpoint_url=endpoint, aws_access_key_id="test", aws_secret_access_key="test-secret"
    )
    async with client as opened:
        yield Consumer(endpoint, opened)
