"""Known faults: the right recipe with a value replaced, and the check that must turn red."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .recipe import Recipe


@dataclass(frozen=True)
class Fault:
    """One way to get MLA wrong.

    Parameters
    ----------
    id : str
    what : str
        One line: what goes wrong.
    thread : str
        A public report in which it happened.
    changes : dict
        Fields of `Recipe` and the wrong value of each.
    caught_by : tuple of str
        Ids of the checks that must fail under it.
    """

    id: str
    what: str
    thread: str
    changes: dict[str, Callable[..., Any]]
    caught_by: tuple[str, ...]

    def spoil(self, recipe: Recipe) -> Recipe:
        """``recipe`` with this fault in it."""
        return replace(recipe, **self.changes)


FAULTS: tuple[Fault, ...] = ()
