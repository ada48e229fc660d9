"""The circuit breaker."""

from __future__ import annotations

from bucketsched.core.circuit import Circuit, CircuitLimits

LIMITS = CircuitLimits(failures_max=3, pause_s_min=1.0, pause_s_max=5.0)


def failing(circuit: Circuit, times: int, now: float) -> None:
    for _ in range(times):
        circuit.begin()
        circuit.failed(now)


def test_it_opens_with_the_last_of_failures_in_a_row() -> None:
    circuit = Circuit(LIMITS)
    failing(circuit, 2, 10.0)
    assert circuit.wait_s(10.0) == 0
    failing(circuit, 1, 10.0)
    assert circuit.wait_s(10.0) == 1.0
    assert circuit.wait_s(10.4) == 0.6 or abs((circuit.wait_s(10.4) or 0) - 0.6) < 1e-9


def test_a_success_between_begins_the_count_anew() -> None:
    circuit = Circuit(LIMITS)
    failing(circuit, 2, 0.0)
    circuit.begin()
    circuit.succeeded()
    failing(circuit, 2, 0.0)
    assert not circuit.open


def test_then_one_at_a_time_may_try() -> None:
    circuit = Circuit(LIMITS)
    failing(circuit, 3, 0.0)
    assert circuit.wait_s(1.0) == 0
    circuit.begin()
    assert circuit.wait_s(1.0) is None
    circuit.succeeded()
    assert circuit.wait_s(1.0) == 0
    assert not circuit.open
    assert circuit.untroubled


def test_pauses_double_up_to_the_longest() -> None:
    circuit, now = Circuit(LIMITS), 0.0
    failing(circuit, 3, now)
    pauses = []
    for _ in range(5):
        pause_s = circuit.wait_s(now)
        assert pause_s is not None
        pauses.append(pause_s)
        now += pause_s
        failing(circuit, 1, now)
    assert pauses == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_those_that_had_begun_before_do_not_make_the_pause_longer() -> None:
    circuit = Circuit(LIMITS)
    for _ in range(10):
        circuit.begin()
    for _ in range(10):
        circuit.failed(7.0)
    assert circuit.wait_s(7.0) == 1.0


def test_who_learnt_nothing_lets_the_next_one_try() -> None:
    circuit = Circuit(LIMITS)
    failing(circuit, 3, 0.0)
    circuit.begin()
    circuit.abandoned()
    assert circuit.wait_s(1.0) == 0
    assert circuit.open
