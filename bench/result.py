"""One measured thing: its figures, its target and whether that was reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Result:
    """`value` is compared with `target`: at least, or with `at_most` less than it. `sound`: it may be compared."""

    measure: str
    value_name: str
    value: float
    target: float
    at_most: bool = False
    sound: bool = True
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def reached(self) -> bool:
        """The target was reached, in a measurement without fault."""
        return self.sound and (self.value < self.target if self.at_most else self.value >= self.target)

    @property
    def target_text(self) -> str:
        """The target for people."""
        return f"{self.value_name} {'<' if self.at_most else '>='} {self.target:g}"

    def line(self) -> dict[str, Any]:
        """For machines."""
        return {
            "measure": self.measure,
            self.value_name: self.value,
            "target": self.target_text,
            "reached": self.reached,
            **self.figures,
        }


def median(values: Iterable[float], digits: int = 0) -> float:
    """Rounded to what the measurement can tell."""
    return round(statistics.median(values), digits)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Of the ratios of each round of the one to the round of the other beside it: both had the same machine."""
    return median((a / b for a, b in zip(ours, theirs, strict=True)), 2)
