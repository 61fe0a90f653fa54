"""Which check sees which fault: all of one against all of the other, computed, with what is out of sight and why.

A cell says more than caught or not. A check that never asks for the convention that a fault replaces cannot see it; one
that does ask and holds all the same runs past it, and that is a blind spot worth knowing.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from .arrays import get_backend
from .checks import CHECKS
from .config import MLAConfig, Yarn
from .errors import InputError
from .faults import FAULTS
from .faults.fault import Fault
from .recipe import RIGHT, Recipe
from .verdict import Check, Setting

# A model small enough to run everything on it, with every dimension another one and r well above n + p, as in every
# published model: the scale faults are then as large as they are there.
TINY = MLAConfig(hidden_size=50, num_attention_heads=6, q_lora_rank=22, kv_lora_rank=70, qk_nope_head_dim=20,
                 qk_rope_head_dim=12, v_head_dim=16, rope_scaling=Yarn(factor=40))
DTYPES = ("float64", "bfloat16")  # the finest and the coarsest
STORED = Path(__file__).parent / "data" / "matrix.json"
CAUGHT, FINE, COARSE, PAST, NEVER = MARKS = {
    "X": "caught in float64 and in bfloat16",
    "w": "caught in float64 alone: in bfloat16 it hides in the rounding",
    "n": "caught in bfloat16 alone",
    "o": "not caught, although the check runs through what the fault replaces",
    ".": "out of reach: the check never asks for what the fault replaces",
}


@dataclass(frozen=True)
class Matrix:
    """The marks of every check under every fault.

    Parameters
    ----------
    checks : tuple of str
    rows : dict of str to str
        For each fault one of `MARKS` for each check.
    variants : dict of str to tuple of (str or None)
        For each further form of a fault, a check that catches it in both dtypes.
    """

    checks: tuple[str, ...]
    rows: dict[str, str]
    variants: dict[str, tuple[str | None, ...]]

    def caught_by(self, fault: str) -> tuple[str, ...]:
        """The checks that fail under ``fault`` in both dtypes."""
        return tuple(check for check, mark in zip(self.checks, self.rows[fault], strict=True) if mark == CAUGHT)

    def column(self, check: str) -> str:
        """The marks of ``check``, one for each fault."""
        at = self.checks.index(check)
        return "".join(row[at] for row in self.rows.values())

    @property
    def uncaught(self) -> list[str]:
        """Faults, and further forms of faults, that no check catches in both dtypes."""
        found = [name for name, row in self.rows.items() if CAUGHT not in row]
        return found + [f"{name} (form {form})" for name, catchers in self.variants.items()
                        for form, check in enumerate(catchers, 2) if check is None]

    @property
    def idle(self) -> list[str]:
        """Checks that catch no fault in both dtypes."""
        return [check for check in self.checks if CAUGHT not in self.column(check)]

    def as_json(self) -> dict:
        """What `STORED` holds."""
        return {"dtypes": list(DTYPES), "marks": MARKS, "checks": list(self.checks), "faults": self.rows,
                "variants_caught_by": {name: list(checks) for name, checks in self.variants.items()}}


def watched(recipe: Recipe) -> tuple[Recipe, set[str]]:
    """``recipe``, and the set of its fields that were asked for so far; copying it with `replace` does not count."""
    used: set[str] = set()

    class Watched(Recipe):
        def __getattribute__(self, name: str) -> object:
            if sys._getframe(1).f_globals.get("__name__") != "dataclasses":
                used.add(name)
            return super().__getattribute__(name)

    return Watched(**{f.name: getattr(recipe, f.name) for f in fields(Recipe)}), used


def setting(dtype: str) -> Setting:
    return Setting(get_backend("numpy", dtype), TINY, "tiny")


@lru_cache(maxsize=4 * len(CHECKS))
def reach(check: Check, dtype: str) -> frozenset[str]:
    """The fields of the recipe that ``check`` asks for: whatever stands in another one, its verdict is the same.

    Raises
    ------
    InputError
        If it does not hold on the right conventions.
    """
    recipe, used = watched(RIGHT)
    if not check.run(replace(setting(dtype), recipe=recipe)).ok:
        raise InputError(f"check {check.id} fails in {dtype} by the right conventions, so it tells nothing of faults.")
    return frozenset(used)


@np.errstate(all="ignore")  # a fault may divide by zero
def mark(check: Check, fault: Fault, form: int = 0) -> str:
    """One of `MARKS`: ``check`` under a form of ``fault``, on NumPy in both dtypes."""
    seen = []
    for dtype in DTYPES:
        if reach(check, dtype).isdisjoint(fault.forms[form]):
            seen.append(NEVER)
        else:
            verdict = check.run(replace(setting(dtype), recipe=fault.spoil(RIGHT, form)))
            seen.append(PAST if verdict.ok else CAUGHT)
    fine, coarse = seen
    return fine if fine == coarse else FINE if fine == CAUGHT else COARSE if coarse == CAUGHT else PAST


def first_catch(fault: Fault, form: int, checks: Sequence[Check]) -> str | None:
    """The first check that catches a form of ``fault``, those named in its ``caught_by`` before all others."""
    order = sorted(checks, key=lambda check: check.id not in fault.caught_by)
    return next((check.id for check in order if mark(check, fault, form) == CAUGHT), None)


def compute(checks: Sequence[Check] = CHECKS, faults: Sequence[Fault] = FAULTS,
            done: Callable[[], object] = lambda: None) -> Matrix:
    """Run every check under every fault; ``done`` is called after each check, and once after the further forms."""
    columns = []
    for check in checks:
        columns.append([mark(check, fault) for fault in faults])
        done()
    variants = {f.id: tuple(first_catch(f, form, checks) for form in range(1, len(f.forms)))
                for f in faults if f.variants}
    done()
    rows = ["".join(row) for row in zip(*columns, strict=True)]
    return Matrix(tuple(c.id for c in checks), dict(zip((f.id for f in faults), rows, strict=True)), variants)


@lru_cache(maxsize=1)
def stored() -> Matrix:
    """The matrix as it was computed last; a test computes it again."""
    data = json.loads(STORED.read_text("utf-8"))
    return Matrix(tuple(data["checks"]), data["faults"],
                  {name: tuple(checks) for name, checks in data["variants_caught_by"].items()})


def summary(matrix: Matrix) -> tuple[str, bool]:
    """The last line of a run, and whether every fault is caught and every check catches one."""
    faults, others = len(matrix.rows), sum(map(len, matrix.variants.values()))
    line = (f"{len(matrix.checks)} checks x {faults} faults and {others} further forms; "
            f"uncaught: {', '.join(matrix.uncaught) or 'none'}; idle checks: {', '.join(matrix.idle) or 'none'}")
    return line, not matrix.uncaught and not matrix.idle
