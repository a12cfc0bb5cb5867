"""What a benchmark says: one JSON line per figure, and whether its bar is met."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """A bound that a figure should keep.

    Attributes:
        field: ``ratio`` or ``value``.
        bound: The bound.
        at_most: The figure may not exceed the bound; else it may not fall below.
    """

    field: str
    bound: float
    at_most: bool = False

    def is_met(self, figure: Figure) -> bool:
        """Tell whether a figure keeps the bound; one that is missing does not."""
        measured: float | None = getattr(figure, self.field)
        if measured is None:
            return False
        return measured <= self.bound if self.at_most else measured >= self.bound

    def __str__(self) -> str:
        """Show field, sense and bound."""
        return f"{self.field} {'≤' if self.at_most else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measured figure.

    Attributes:
        name: Benchmark, with what is measured after a dot where it has several figures.
        broker: ``kafka``, ``embedded`` or ``""`` where none takes part.
        value: Measured value, in ``unit``.
        unit: Its unit.
        against: What it is compared with, or ``""``.
        against_value: That one's value, in ``unit``; None without a comparison.
        bar: The bound to keep; None where it only informs.
        ratio: value / against_value, or the median of the rounds' ratios; None without a comparison.
    """

    name: str
    broker: str
    value: float
    unit: str
    against: str = ""
    against_value: float | None = None
    bar: Bar | None = None
    ratio: float | None = None

    def line(self) -> str:
        """Return the JSON line."""
        return json.dumps(
            {
                "name": self.name,
                "broker": self.broker,
                "value": _rounded(self.value),
                "unit": self.unit,
                "against": self.against,
                "against_value": _rounded(self.against_value),
                "ratio": _rounded(self.ratio),
            },
            ensure_ascii=False,
        )

    def verdict(self) -> str:
        """Return a sentence that says whether the bar is met; empty without one."""
        if self.bar is None:
            return ""
        measured = getattr(self, self.bar.field)
        word = "met" if self.bar.is_met(self) else "MISSED"
        return f"{self.name} on {self.broker or 'no broker'}: {_rounded(measured)}, bar {self.bar}: {word}"


def _rounded(value: float | None) -> float | None:
    """Keep four significant digits of small values and whole numbers of large ones."""
    if value is None:
        return None
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")
