"""Servers that go away for as long as the promises say, or for as short as a test can bear.

    python -m tests.outages                       every outage in its full length: ZooKeeper 2 min, Cassandra 90 s,
                                                  Kafka 60 s, killed and paused; all of them, back in every order
    python -m tests.outages --only kafka-paused   one of them
    python -m tests.outages --scale 0.1           a tenth of the time

It starts servers of its own. Each outage prints a line of JSON; the exit code is 1 if one broke a promise.
"""
