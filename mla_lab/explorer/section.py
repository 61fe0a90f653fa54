"""A part of the explorer's page: a picture, a table and sentences, as HTML and as plain text.

Table and sentences say all that the picture shows. Where a number does not exist, its reason stands in its place.
"""
from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from . import numbers as nb
from .setup import Setup


@dataclass(frozen=True)
class Section:
    """A part of the page. A row with fewer cells than the heading ends in a sentence: why it has no numbers."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    says: tuple[str, ...]
    picture: str = ""

    @property
    def text(self) -> str:
        """For a terminal, a notebook without widgets, and a test."""
        full = [row for row in (self.heading, *self.rows) if len(row) == len(self.heading)]
        widths = [max(map(len, column)) for column in zip(*full, strict=True)]
        lines = [self.title]
        for row in (self.heading, *self.rows) if self.heading else ():
            cells = [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in
                     enumerate(zip(row, widths, strict=False))]
            lines.append("  ".join(cells if len(row) == len(widths) else [cells[0], row[-1]]).rstrip())
        return "\n".join([*lines, *(textwrap.fill(sentence, 96) for sentence in self.says)])

    @property
    def html(self) -> str:
        """For a page; everything that came from outside is escaped."""
        table = ""
        if self.heading:
            head, body = self._tr(self.heading), "".join(map(self._tr, self.rows))
            table = (f'<div style="overflow-x:auto"><table style="color:inherit;font-size:12px"><thead>{head}</thead>'
                     f"<tbody>{body}</tbody></table></div>")
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.says)
        return f"<section style='line-height:1.45'><h3>{escape(self.title)}</h3>{self.picture}{table}{said}</section>"

    def _tr(self, row: tuple[str, ...]) -> str:
        """A row of the table; the last cell of a short one is as wide as what is missing."""
        made, top = [], row is self.heading
        for i, cell in enumerate(row):
            tag = "th" if top or i == 0 else "td"
            how = f' scope="{"col" if top else "row"}"' if tag == "th" else ""
            if i == len(row) - 1 and len(row) < len(self.heading):
                how += f' colspan="{len(self.heading) - i}"'
            align, space = "left" if i < 2 else "right", "normal" if len(cell) > 16 else "nowrap"
            style = f"text-align:{align};white-space:{space};padding:2px 6px"
            made.append(f'<{tag}{how} style="{style}">{escape(cell)}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"


def each(setup: Setup, compute: Callable[[nb.Attention], object]) -> list[tuple[str, object, str]]:
    """For each kind of attention what ``compute`` makes of it, or why it cannot."""
    return [(kind, *nb.reason(lambda kind=kind: compute(nb.attention(setup, kind)))) for kind in nb.KINDS]


def table(setup: Setup, made: list[tuple[str, object, str]], row: Callable[..., tuple[str, ...]]
          ) -> tuple[tuple[str, ...], ...]:
    """The row of each kind that is possible, and each reason why others are not, once, after all their names."""
    rows, said = [], set()
    for _, found, why in made:
        if found is not None:
            rows.append(row(*found))
        elif why not in said:
            said.add(why)
            rows.append((", ".join(nb.label(setup, kind) for kind, _, other in made if other == why), why))
    return tuple(rows)


def marks(setup: Setup, made: list[tuple[str, object, str]], value: Callable[..., tuple[float, str]]
          ) -> list[tuple[str, str, float | None, str]]:
    """What `mla_lab.explorer.svg.scale` draws for each kind."""
    return [(kind, nb.label(setup, kind), *(value(*found) if found is not None else (None, "not possible")))
            for kind, found, _ in made]
