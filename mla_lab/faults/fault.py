"""What a known fault is."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..recipe import Recipe


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
    why : str
        Why the test that people usually write does not see it.
    variants : tuple of dict
        Other changes that are the same mistake: at another place of the code, or with another size of chunk.
    """

    id: str
    what: str
    thread: str
    changes: dict[str, Any]
    caught_by: tuple[str, ...]
    why: str = ""
    variants: tuple[dict[str, Any], ...] = ()

    def spoil(self, recipe: Recipe, variant: int = 0) -> Recipe:
        """``recipe`` with this fault in it."""
        return replace(recipe, **self.forms[variant])

    @property
    def forms(self) -> tuple[dict[str, Any], ...]:
        """The changes, and then those of each variant."""
        return (self.changes, *self.variants)
