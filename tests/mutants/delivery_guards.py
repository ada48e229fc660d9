"""The guards of delivery and of the SDK."""

from __future__ import annotations

from .guards import Guard

HUB, SERVICE = "tests/unit/test_hub.py", "tests/unit/test_worker_service.py"
CLIENT, WORKER = "tests/unit/test_client.py", "tests/unit/test_worker.py"
FEED, BATCHER, LINK = "delivery/queue_feed.py", "client/create_batcher.py", "client/worker_link.py"

DELIVERY_GUARDS = [
    # ---------------------------------------------------------------- leases
    Guard(
        "a-late-ack-settles-nothing-that-another-has",
        "the other may fail, and then nobody would do it",
        FEED,
        " and held.worker in (None, worker)",
        "",
        (HUB,),
    ),
    Guard(
        "only-what-was-offered-can-be-acknowledged",
        "a wrong number must not make a message vanish that nobody has seen",
        FEED,
        "held.had_lease(lease_id) and ",
        "",
        (HUB,),
    ),
    Guard(
        "a-late-nack-takes-nothing-away",
        "the message would be at work twice",
        FEED,
        " and held.worker is worker and held.lease_id == lease_id:\n                self._give_back",
        ":\n                self._give_back",
        (HUB,),
    ),
    Guard(
        "timers-of-former-leases-mean-nothing",
        "a lease ends by its own time only",
        FEED,
        "held is not None and held.stamp == timer[1]",
        "held is not None",
        (HUB,),
    ),
    Guard(
        "a-worker-leaves-its-tasks-behind",
        "what a lost worker had is offered again at once, not when the lease is over",
        FEED,
        "                self._give_back(held, 0)\n        self.changed()\n",
        "                pass\n        self.changed()\n",
        (HUB,),
    ),
    Guard(
        "a-detached-stream-is-detached",
        "the same for a connection that breaks",
        "api/worker.py",
        "                attachment.detach()",
        "                pass",
        (SERVICE,),
    ),
    Guard(
        "draining-offers-nothing",
        "who shuts down must not begin anything",
        FEED,
        "if not self._ready or self._draining:",
        "if not self._ready:",
        (HUB,),
    ),
    # ---------------------------------------------------------------- subscriptions
    Guard(
        "unreadable-messages-are-acknowledged",
        "one of them would hold up its partition for good",
        FEED,
        "            self._acknowledge(delivery.token, None)\n            return\n",
        "            return\n",
        (HUB,),
    ),
    Guard(
        "what-is-done-is-done-after-a-break",
        "an ack that could not be stored is stored with the next subscription",
        FEED,
        "        elif held.key in self._done:\n            self._acknowledge(delivery.token, held.key)\n",
        "",
        (HUB,),
    ),
    Guard(
        "a-queue-in-one-process-is-bounded",
        "memory",
        FEED,
        "self._limits.offers_in_flight_max - len(self._held) - len(self._acks)",
        "self._limits.offers_in_flight_max",
        (HUB,),
    ),
    # ---------------------------------------------------------------- the worker
    Guard(
        "one-attempt-runs-once-at-a-time",
        "a lease that ends while the handler runs makes the server offer it again",
        "client/worker.py",
        "            if known is not None:",
        "            if False:",
        (WORKER,),
    ),
    Guard(
        "done-is-remembered",
        "an attempt whose ack was lost is acknowledged again, not run again",
        "client/worker.py",
        "            elif key in self._done:\n                link.ack(offer.lease_id)\n",
        "",
        (WORKER,),
    ),
    Guard(
        "concurrency-is-kept",
        "every server offers at least one",
        "client/worker.py",
        "self._backlog and self._active < self._concurrency",
        "self._backlog",
        (WORKER,),
    ),
    Guard(
        "leave-when-all-is-acknowledged",
        "an end of the stream before the acks makes others do it again",
        LINK,
        "not (self._open or self._acks or self._said)",
        "not (self._acks or self._said)",
        (WORKER,),
    ),
    Guard(
        "leaving-takes-no-more",
        "offers that cross with the goodbye would wait for their leases",
        LINK,
        "        if self._pausing:\n            hello.max_in_flight = 0\n",
        "",
        (WORKER,),
    ),
    # ---------------------------------------------------------------- the client
    Guard(
        "ids-are-of-the-present-at-least",
        "a home in a closed bucket is a needless detour",
        "client/request.py",
        "max(due_ms, now_ns // NS_PER_MS)",
        "due_ms",
        (CLIENT,),
    ),
    Guard(
        "due-times-are-rounded-up",
        "rounded down is early",
        "client/request.py",
        "return -(-ns // NS_PER_MS)",
        "return ns // NS_PER_MS",
        (CLIENT,),
    ),
    Guard(
        "delays-follow-the-servers-clock",
        "a client whose clock is wrong would miss its due time by as much",
        "client/client.py",
        " + server.clock_offset_ms * request.NS_PER_MS",
        "",
        (CLIENT,),
    ),
    Guard(
        "waiting-creates-are-bounded",
        "memory",
        BATCHER,
        "if self._at_the_door or self._full():",
        "if False:",
        (CLIENT,),
    ),
]
