"""Self-checked exercises: a wrong answer gets the hint that fits the likely mistake.

One module for each notebook; every name that starts with ``check_`` is an `Exercise`, called with the learner's answer.
`all_exercises` walks them.
"""
from __future__ import annotations

from .registry import EXERCISES, all_exercises, exercise

__all__ = ["all_exercises", "exercise"]


def __getattr__(name: str):
    """``exercises.check_rank``: every registered exercise by its name."""
    if name.startswith("check_"):
        all_exercises()
        if name in EXERCISES:
            return EXERCISES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
