"""The guards of webhooks."""

from __future__ import annotations

from .guards import Guard

SENDER, FEED_TEST = "tests/unit/test_webhook_sender.py", "tests/unit/test_webhook_feed.py"
HOSTS_TEST, QUEUES = "tests/unit/test_webhook_hosts.py", "tests/unit/test_webhook_queues.py"
ADDRESS, RETRY = "tests/unit/test_public_address.py", "tests/unit/test_retry.py"
RESOLVER, POST = "adapters/webhook/resolver.py", "adapters/webhook/sender.py"
FEED, HOSTS, CIRCUIT = "delivery/webhook_feed.py", "delivery/hosts.py", "core/circuit.py"

WEBHOOK_GUARDS = [
    # ---------------------------------------------------------------- where requests may go
    Guard(
        "names-are-checked",
        "a name may lead to what only the server can reach",
        RESOLVER,
        "        check(found, self._networks)\n",
        "",
        (SENDER,),
    ),
    Guard(
        "every-address-is-checked",
        "the connection may be made to any of them",
        RESOLVER,
        "check(found, self._networks)",
        "check(found[:1], self._networks)",
        (SENDER,),
    ),
    Guard(
        "addresses-in-urls-are-checked",
        "they never get to the resolver",
        POST,
        "                self._check_literal(url)\n",
        "",
        (SENDER,),
    ),
    Guard(
        "redirects-are-not-followed",
        "they lead past the check of the settings, with the payload",
        POST,
        "allow_redirects=False",
        "allow_redirects=True",
        (SENDER,),
    ),
    Guard(
        "proxies-of-the-environment-are-not-used",
        "a proxy connects to whatever it is asked for",
        POST,
        "trust_env=False",
        "trust_env=True",
        (SENDER,),
    ),
    Guard(
        "cookies-are-not-kept",
        "one task's answer must not change another's request",
        POST,
        "            cookie_jar=DummyCookieJar(),\n",
        "",
        (SENDER,),
    ),
    Guard(
        "stricter-rules-close-connections",
        "one that is kept alive would go on for as long as it is used",
        POST,
        "self._session is None or networks != self._rules",
        "self._session is None",
        (SENDER,),
    ),
    Guard(
        "the-server-has-the-last-word",
        "who may create queues would reach the server's own network",
        POST,
        "mine if mine.prefixlen >= theirs.prefixlen else theirs",
        "mine",
        (SENDER,),
    ),
    Guard(
        "wrapped-addresses-are-what-they-wrap",
        "::ffff:127.0.0.1 is loopback",
        "core/public_address.py",
        "    real = meant(address)\n",
        "    real = address\n",
        (ADDRESS,),
    ),
    Guard(
        "numbers-are-no-names",
        "systems take 127.1 for an address",
        "core/webhook_check.py",
        " or _NUMBER.fullmatch(host)",
        "",
        ("tests/unit/test_webhook_check.py",),
    ),
    # ---------------------------------------------------------------- bounds
    Guard(
        "answers-are-bounded",
        "an endless one would hold its place, and its memory",
        POST,
        "        if size > ANSWER_BYTES_MAX:\n            response.close()\n            return\n",
        "",
        (SENDER,),
    ),
    Guard(
        "a-status-stands-when-the-body-does-not-come",
        "what was done would be done again",
        POST,
        "return answer or _answer_of(error)",
        "return _answer_of(error)",
        (SENDER,),
    ),
    Guard(
        "look-ups-are-shared",
        "a name whose servers are silent would take every thread",
        RESOLVER,
        "            self._under_way[key] = looking\n",
        "",
        (SENDER,),
    ),
    Guard(
        "hosts-have-places",
        "one host would take all that the process has",
        HOSTS,
        "            async with host.places:\n                return await self._run(host, request)\n",
        "            return await self._run(host, request)\n",
        (HOSTS_TEST,),
    ),
    Guard(
        "the-process-has-places",
        "each request takes an open file",
        HOSTS,
        "            async with self._places:\n                if",
        "            if True:\n                if",
        (HOSTS_TEST,),
    ),
    Guard(
        "an-open-circuit-holds-back",
        "each task of a dead host would take a place until its time is out",
        CIRCUIT,
        "        if not self.open:\n            return 0.0\n",
        "        return 0.0\n",
        (HOSTS_TEST,),
    ),
    Guard(
        "one-at-a-time-tries-a-dead-host",
        "all that wait would go at once, and time out at once",
        CIRCUIT,
        "return None if self._trying else max(0.0, self._open_until - now)",
        "return max(0.0, self._open_until - now)",
        ("tests/unit/test_circuit.py", HOSTS_TEST),
    ),
    Guard(
        "nobody-waits-for-a-trier-that-was-given-up",
        "the host would never be tried again",
        HOSTS,
        "                host.circuit.abandoned()\n",
        "                pass\n",
        (HOSTS_TEST,),
    ),
    Guard(
        "pauses-do-not-overflow",
        "a power of a million is more than a float holds",
        "core/retry.py",
        "if attempt - 1 >= steps_max:",
        "if False:",
        (RETRY,),
    ),
    # ---------------------------------------------------------------- what becomes of a task
    Guard(
        "retry-after-is-heeded",
        "the receiver has said when",
        FEED,
        "least_ms = retry_after_ms(answer.retry_after, self._clock.now_ms())",
        "least_ms = 0",
        (FEED_TEST,),
    ),
    Guard(
        "a-try-that-breaks-is-given-back",
        "its offer would never end",
        FEED,
        '        except Exception:\n            log.exception("queue %s/%s: posting failed"',
        '        except ArithmeticError:\n            log.exception("queue %s/%s: posting failed"',
        (FEED_TEST,),
    ),
    Guard(
        "secrets-stay-unless-others-are-given",
        "who changes a URL does not know them: they are never shown",
        "service/queues.py",
        "webhook.secrets or stored.webhook.secrets",
        "webhook.secrets",
        (QUEUES,),
    ),
    Guard(
        "secrets-are-not-printed",
        "settings get into logs and errors",
        "core/webhook.py",
        "field(default=(), repr=False)",
        "field(default=())",
        ("tests/unit/test_webhook_check.py",),
    ),
]
