"""What the driver's errors mean at the port."""

from __future__ import annotations

import cassandra
import pytest
from cassandra import protocol
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown

from bucketsched.adapters.cassandra.failures import NoAnswer, NotSent, OneOfSeveral, read_error, write_error
from bucketsched.adapters.cassandra.group_commit import Refused
from bucketsched.core.errors import NotWritten, OutcomeUnknown, Unavailable

UNKNOWN = [
    cassandra.OperationTimedOut({"node": "timeout"}, None),
    cassandra.WriteTimeout("timeout", write_type=0, consistency=6, required_responses=2, received_responses=1),
    cassandra.WriteFailure("failure", write_type=0, consistency=6, required_responses=2, received_responses=1),
    ConnectionShutdown("connection lost"),
    protocol.OverloadedErrorMessage(0x1001, "overloaded", {}),
    protocol.ServerError(0, "bug", {}),
    OSError("whatever else"),
    NoAnswer("within 2 s"),
]
UNAVAILABLE = cassandra.Unavailable("replicas", consistency=6, required_replicas=2, alive_replicas=1)


@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
def test_what_may_have_been_applied_is_unknown(error: Exception) -> None:
    assert isinstance(write_error(error, single=True), OutcomeUnknown)


@pytest.mark.parametrize(
    "error",
    [
        cassandra.InvalidRequest("Batch too large"),
        protocol.SyntaxException(0x2000, "?", {}),
        cassandra.Unauthorized("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_the_server_refused_is_refused(error: Exception) -> None:
    assert isinstance(write_error(error, single=False), Refused)


@pytest.mark.parametrize("error", [NoHostAvailable("no host", {}), NotSent("too many")], ids=["no host", "not sent"])
def test_what_was_sent_to_nobody_is_not_written(error: Exception) -> None:
    found = write_error(error, single=False)
    assert isinstance(found, NotWritten)
    assert not isinstance(found, Refused)


def test_too_few_replicas_is_certain_for_one_partition_only() -> None:
    assert isinstance(write_error(UNAVAILABLE, single=True), NotWritten)
    assert isinstance(write_error(UNAVAILABLE, single=False), OutcomeUnknown)


@pytest.mark.parametrize("error", [NoHostAvailable("no host", {}), UNAVAILABLE], ids=["no host", "too few replicas"])
def test_what_one_node_says_of_a_request_that_two_got_is_no_certainty(error: Exception) -> None:
    """The other one may stand still now, and apply it when it goes on."""
    assert isinstance(write_error(error, single=True), NotWritten)
    assert isinstance(write_error(OneOfSeveral.of(error), single=True), OutcomeUnknown)
    assert isinstance(write_error(OneOfSeveral.of(cassandra.InvalidRequest("too large")), single=True), Refused)


def test_a_failed_read_is_unavailable_in_one_line() -> None:
    error = read_error(cassandra.ReadTimeout("two\nlines", consistency=6))
    assert isinstance(error, Unavailable)
    assert "\n" not in str(error)
