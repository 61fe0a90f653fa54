"""Figures, each with its numbers in words beside it. ``python -m mla_lab.plots figures`` writes those of the README."""
from __future__ import annotations

import io
from dataclasses import dataclass

from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plot:
    """A figure, a description for those who do not see it, and the numbers it shows.

    In a notebook it displays as the picture; its text form is the numbers, which strict comparison holds.
    """

    figure: Figure
    alt: str
    numbers: str

    def png(self) -> bytes:
        """The figure as PNG."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()

    def _repr_png_(self) -> bytes:
        return self.png()

    def __repr__(self) -> str:
        return self.numbers
