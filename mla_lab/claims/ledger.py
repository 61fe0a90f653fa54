"""What a claim is, and how a computation settles it.

A claim's recorded verdict has two halves: its kind, and what was found, as text. A settle function computes both from
nothing but the package, so that a recorded verdict that does not come out is a failure. Nobody types a kind into a
settle function: it follows from whether the claim is true as it was said, and whether it stays true elsewhere.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import unknown

HOLDS, CONDITION, CORRECTED, OPEN = ("holds", "holds with a condition", "corrected", "cannot be settled here")
KINDS = (HOLDS, CONDITION, CORRECTED, OPEN)
ARTICLES = {
    "A": '"Multi-Head Latent Attention (MLA) architecture dissected" (huny.dev, 12 Nov 2026, in Korean)',
    "B": "an article in Korean on what MLA's cache of keys and values saves",
}


@dataclass(frozen=True)
class Finding:
    """What a computation found.

    Parameters
    ----------
    as_said : bool or None
        Whether the claim is true in the setting that it was made for; None if the computation shows that either may
        be.
    found : str
        The numbers, with units and baselines: the same text on every backend and machine.
    elsewhere : bool
        Whether it stays true in another setting that its words do not exclude.
    """

    as_said: bool | None
    found: str
    elsewhere: bool = True

    @property
    def kind(self) -> str:
        if self.as_said is None:
            return OPEN
        if not self.as_said:
            return CORRECTED
        return HOLDS if self.elsewhere else CONDITION


@dataclass(frozen=True)
class Claim:
    """One sentence of an article, and its verdict on record.

    Parameters
    ----------
    id : str
    said : str
        What is claimed.
    kind : str
        One of `KINDS`.
    found : str
        What the computation must find, to the letter.
    because : str
        The condition, why the values differ, or what it would take to settle it; empty where the claim just holds.
    notebook : str
        Where the matter is taught.
    settle : callable
        Computes a `Finding`. Its arguments have defaults: what the article says, and what is counted or computed with.
    wrong : mapping
        Arguments under which the finding must not be the recorded one.
    """

    id: str
    said: str
    kind: str
    found: str
    because: str
    notebook: str
    settle: Callable[..., Finding] = field(repr=False)
    wrong: Mapping[str, Any] = field(repr=False)

    @property
    def article(self) -> str:
        return ARTICLES[self.id[0]]


@dataclass(frozen=True)
class Settled:
    """A claim beside what was computed for it."""

    claim: Claim
    finding: Finding

    @property
    def ok(self) -> bool:
        """Whether the computed verdict is the recorded one."""
        return (self.finding.kind, self.finding.found) == (self.claim.kind, self.claim.found)

    def __str__(self) -> str:
        mark = "" if self.ok else f"NOT AS RECORDED ({self.claim.kind}: {self.claim.found})  "
        return f"{self.claim.id}  {mark}{self.finding.kind}: {self.finding.found}"

    def as_json(self) -> dict:
        c, f = self.claim, self.finding
        return {"id": c.id, "article": c.article, "claim": c.said, "verdict": f.kind, "found": f.found,
                "recorded_verdict": c.kind, "recorded_found": c.found, "because": c.because,
                "notebook": c.notebook, "ok": self.ok}


def read(settle: Mapping[str, tuple[Callable[..., Finding], Mapping[str, Any]]]) -> tuple[Claim, ...]:
    """The claims of ``data/claims.json``, each with its settle function and the arguments that must not pass."""
    rows = json.loads((Path(__file__).parents[1] / "data" / "claims.json").read_text(encoding="utf-8"))
    return tuple(Claim(**row, settle=settle[row["id"]][0], wrong=settle[row["id"]][1]) for row in rows)


def settle(claim: Claim, **changes: Any) -> Settled:
    """Compute the verdict on a claim; ``changes`` replace arguments of its settle function."""
    return Settled(claim, claim.settle(**changes))


def select(claims: tuple[Claim, ...], ids: list[str] | None) -> tuple[Claim, ...]:
    """The claims called ``ids``, in the order of the ledger; all of them for None."""
    known = [claim.id for claim in claims]
    for id in ids or ():
        if id.upper() not in known:
            raise unknown("claim", id, known)
    wanted = known if ids is None else [id.upper() for id in ids]
    return tuple(claim for claim in claims if claim.id in wanted)


def tally(settled: list[Settled]) -> str:
    """``12 hold, 20 hold with a condition, ...`` as computed, and how many are as recorded."""
    counts = ", ".join(f"{sum(s.finding.kind == kind for s in settled)} {kind}" for kind in KINDS)
    return f"{sum(s.ok for s in settled)} of {len(settled)} verdicts are the recorded ones: {counts}"
