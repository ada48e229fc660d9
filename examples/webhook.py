"""Tasks posted to a URL: a receiver that checks the signature, does each task once, and asks to be tried again.

bucketsched dev                  # in another terminal
python examples/webhook.py
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections import Counter

from aiohttp import web

from bucketsched import Client, QueueKind, Webhook

ORDERS = 3
OLDEST_S = 300
"""A signature is good for so long: what is older may be a request that somebody has recorded."""


def signed_by_us(headers: dict[str, str], body: bytes, secret: str) -> bool:
    """As Standard Webhooks has it: HMAC-SHA256 of id, timestamp and body, one of those that the header names."""
    sent_at = int(headers["webhook-timestamp"])
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{sent_at}.".encode() + body
    wanted = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    given = headers.get("webhook-signature", "").split(" ")
    return abs(time.time() - sent_at) < OLDEST_S and any(hmac.compare_digest(one, wanted) for one in given)


class Receiver:
    """In real life, a handler of your web framework; what is done is remembered in your database."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.tries: Counter[str] = Counter()
        self.done: set[str] = set()
        self.all_done = asyncio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        """2xx: done. 4xx: never try that again. 5xx, or none: try again."""
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        if not signed_by_us(headers, body, self.secret):
            return web.Response(status=401)
        key = headers["idempotency-key"]
        self.tries[key] += 1
        if self.tries[key] == 1 and body == b"order 2":
            return web.Response(status=503, headers={"Retry-After": "1"})
        if key not in self.done:
            self.done.add(key)
            print(f"{body.decode()}, signed by us, at the try {self.tries[key]}")
        if len(self.done) == ORDERS:
            self.all_done.set()
        return web.Response(status=204)


async def serve(receiver: Receiver) -> tuple[web.AppRunner, str]:
    """A web server on a free port, and the URL of its hook."""
    application = web.Application()
    application.router.add_post("/hook", receiver.receive)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}/hook"


async def main(target: str) -> None:
    """Has a few orders posted to itself, and ends when all are done."""
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    receiver = Receiver(secret)
    runner, url = await serve(receiver)
    webhook = Webhook(url, secrets=[secret], networks=["127.0.0.0/8"])  # a URL that is public needs no networks
    async with Client(target) as client:
        queue = f"orders-{secrets.token_hex(4)}"
        await client.create_queue(queue, QueueKind.WEBHOOK, webhook=webhook)
        for number in range(1, ORDERS + 1):
            await client.create("order.remind", f"order {number}".encode(), queue=queue, delay=0.3 * number)
        await receiver.all_done.wait()
        await asyncio.sleep(0.2)  # the last answer is on its way
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="127.0.0.1:7400", help="host:port of a server [%(default)s]")
    asyncio.run(main(parser.parse_args().target))
