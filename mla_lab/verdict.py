"""A check states a claim, computes both sides, and returns a verdict against a bound that comes from the data."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .arrays import Backend
from .config import MLAConfig
from .recipe import RIGHT, Recipe


@dataclass(frozen=True)
class Setting:
    """What a check runs on: where, on which dimensions, and with which conventions under test.

    The oracle inside a check always follows the right conventions; ``recipe`` governs the implementation under test.
    """

    backend: Backend
    config: MLAConfig
    model: str = "DeepSeek-V3"
    recipe: Recipe = RIGHT


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check.

    Parameters
    ----------
    claim : str
        One falsifiable sentence.
    saw, expected : object
        What was computed, and what the claim says it is. Raw numbers, for the JSON report.
    bound : float or None
        Largest admissible distance between the two; None where they must be equal exactly.
    ok : bool
        Whether the claim holds.
    note : str
        A remark for a person: unit, baseline, which bound decided.
    """

    claim: str
    saw: object
    expected: object
    bound: float | None
    ok: bool
    note: str = ""

    def __str__(self) -> str:
        """The same text on every backend, thread count and machine: never a raw float of rounding size."""
        relation = "exactly equal" if self.bound is None else "inside the bound"
        if not self.ok:
            relation = "not equal" if self.bound is None else "outside the bound"
        return f"{'holds' if self.ok else 'FAILS'}  {self.claim} ({relation})"


@dataclass(frozen=True)
class Check:
    """A claim that can fail: ``run(setting)`` gives its `Verdict`."""

    id: str
    claim: str
    run: Callable[[Setting], Verdict] = field(repr=False)

    @property
    def case(self) -> int:
        return int(self.id.split(".")[0])


def exactly(claim: str, saw: object, expected: object, note: str = "") -> Verdict:
    """A verdict on an equality that has no rounding in it."""
    return Verdict(claim, saw, expected, None, saw == expected, note)
