"""A check states a claim, computes both sides, and returns a verdict against a bound that comes from the data."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .arrays import Backend
from .config import MLAConfig
from .recipe import RIGHT, Recipe


@dataclass(frozen=True, eq=False)
class Given:
    """Weights of a layer that were read and not drawn, under Hugging Face's names, and where they were read.

    Two of them are equal only if they are one object, so that results can be cached by them.
    """

    arrays: Mapping[str, Any] = field(repr=False)
    where: str


@dataclass(frozen=True)
class Setting:
    """What a check runs on: where, on which dimensions, and with which conventions under test.

    The oracle inside a check always follows the right conventions; ``recipe`` governs the implementation under test.
    ``state`` holds the weights of a real layer of these dimensions; without it, weights are drawn.
    """

    backend: Backend
    config: MLAConfig
    model: str = "DeepSeek-V3"
    recipe: Recipe = RIGHT
    state: Given | None = None


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
        if isinstance(self.expected, str):  # a relation in words, where the claim is not an equality
            relation = self.expected if self.ok else f"not {self.expected}"
        elif self.bound is None:
            relation = "exactly equal" if self.ok else "not equal"
        else:
            relation = "inside the bound" if self.ok else "outside the bound"
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
