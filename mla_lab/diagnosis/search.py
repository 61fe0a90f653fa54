"""Which known fault, or which two together, reproduce what was seen."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ..faults import FAULTS, Fault
from ..faults.rounded import BFLOAT16, FLOAT32, FLOAT64, TF32
from ..recipe import RIGHT, Recipe
from .cases import Case, DecodeCase
from .distance import apart, like_rounding, moves, noise, predicted, rms, same_kind, score, shares
from .predict import Outputs

BITS = {"float64": (FLOAT64, FLOAT32, TF32, BFLOAT16), "float32": (FLOAT32, TF32, BFLOAT16), "bfloat16": (BFLOAT16,)}
NAMES = {FLOAT64: "float64", FLOAT32: "float32", TF32: "10 bits after the leading one", BFLOAT16: "bfloat16"}
# Root mean squares of roundings in other places differ by small factors; a fault moves the output by far larger ones.
MATCH, LOOSE, BETTER = 8.0, 64.0, 4.0
UNSEEN = {"elements", "rank_tolerance", "truncate", "decode_mode"}  # no output depends on these
# What the protocol decode leaves open.
IN_DECODE = {"scale", "split_kv_b", "terms", "lengths", "visible", "batch", "unused", "operand", "values",
             "probabilities", "total", "nothing", "latents", "heads", "edges", "lse", "merge"}
BY_SIZE = ("tf32", "quarter_turns_on_rebuilt_keys")  # known by the size of the error; an exact model of another
HEAVY = ("far", "even")  # cases with many tokens, computed only for what passes the others
NEAREST, PAIRS = 8, 400


def matching(bits: int) -> float:
    """How many times its noise a matching output may be away from its prediction.

    Beyond 11 bits the roundings of sums and exponentials count, which the emulation does not make.
    """
    return MATCH if bits <= TF32 else 4 * MATCH


@dataclass(frozen=True)
class Form:
    """One or two faults, each in one of its forms."""

    faults: tuple[Fault, ...]
    recipe: Recipe

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(f.id for f in self.faults)


def forms(fields: set[str]) -> list[Form]:
    """Every form of every fault in these fields of the recipe that an output can show."""
    out = []
    for fault in FAULTS:
        for changes in fault.forms:
            if set(changes) <= UNSEEN or not set(changes) <= fields or fault.id in BY_SIZE:
                continue
            naive = {"decode_mode": "naive"} if "expanded_keys" in changes else {}
            out.append(Form((fault,), replace(RIGHT, **changes, **naive)))
    return out


@dataclass(frozen=True)
class Found:
    """What explains the output best at a precision of ``bits``: nothing wrong (no form), one form, or several equal."""

    bits: int
    score: float
    forms: tuple[Form, ...] = ()


class Search:
    """One battery's results, held against the conventions and the faults."""

    def __init__(self, cases: Sequence[Case], seen: Mapping[str, Outputs], dtype: str,
                 known: Sequence[Form] | None = None):
        self.cases = [c for c in cases if c.name in seen]
        self.light = [c for c in self.cases if c.name not in HEAVY]
        self.heavy = [c for c in self.cases if c.name in HEAVY]
        self.seen, self.levels = seen, BITS[dtype]
        decode = any(isinstance(c, DecodeCase) for c in cases)
        self.forms = forms(IN_DECODE if decode else set(RIGHT.__dataclass_fields__)) if known is None else list(known)
        self.changed = [f for f in self.forms if any(self.visible(f, c) for c in self.light)]
        self.quiet = [f for f in self.forms if f not in self.changed]

    def visible(self, form: Form, case: Case, bits: int = FLOAT64, times: float = MATCH) -> bool:
        """Whether the fault changes this case by more than ``times`` what rounding does."""
        with np.errstate(invalid="ignore"):
            return any(not same_kind(a, b) or rms(a - b) > times * n for a, b, n in zip(
                predicted(case, form.recipe), predicted(case, RIGHT), noise(case, RIGHT, bits), strict=True))

    def score(self, recipe: Recipe, bits: int, cases: Sequence[Case] | None = None, noise_of: Recipe | None = None,
              lse: bool | None = None) -> float:
        """The largest distance from what ``recipe`` predicts, in units of its noise; not followed beyond `LOOSE`."""
        worst, lse = 0.0, self.holds_lse(recipe, bits) if lse is None else lse
        for case in self.cases if cases is None else cases:
            worst = max(worst, score(self.seen[case.name], case, recipe, bits, noise_of, lse))
            if worst > LOOSE:
                break
        return worst

    def holds_lse(self, recipe: Recipe, bits: int) -> bool:
        """Whether LSE is part of what ``recipe`` predicts: what comes as LSE with a wrong output is anybody's guess."""
        # By so much that a right output could not be taken for a match.
        return not any(moves(c, recipe, bits, 2 * matching(bits)) for c in self.cases)

    def score_of_right(self, bits: int) -> float:
        """The largest distance from the right output, in units of its noise."""
        return self.score(RIGHT, bits)

    def inside(self, bits: int) -> float:
        """The largest distance from the right output, as a share of the likely radius."""
        return max((float(np.max(s)) for c in self.cases for s in shares(self.seen[c.name], c, bits) if s.size),
                   default=0.0)

    def distance(self, recipe: Recipe) -> float:
        """How far the light cases lie from a prediction, from 0 to 1."""
        return float(np.mean([apart(self.seen[c.name], predicted(c, recipe)) for c in self.light]))

    def best(self) -> Found | None:
        """The right conventions, one fault or two, at the finest precision at which anything fits.

        A pair is looked for before precisions that are coarser than float32, which small faults hide in.
        """
        if not any(np.isfinite(x).any() for c in self.cases for x in self.seen[c.name]):
            return None  # nothing but NaN tells nothing
        fine = [bits for bits in self.levels if bits >= FLOAT32] or self.levels
        found = self.single(fine) or self.pair(fine[-1]) or self.single([b for b in self.levels if b not in fine])
        return found and self.with_its_lse(found)

    def with_its_lse(self, found: Found) -> Found:
        """A fault of the output, and a second one of LSE alone where that explains the LSE that came with it."""
        first = found.forms[0] if len(found.forms) == 1 else None
        if first is None or len(first.faults) > 1 or self.holds_lse(first.recipe, found.bits):
            return found
        if self.score(first.recipe, found.bits, lse=True) <= matching(found.bits):
            return found
        for other in self.forms:
            fields = self._fields(other)
            if fields <= {"lse", "nothing"} and not fields & self._fields(first):
                both = replace(first.recipe, **{k: getattr(other.recipe, k) for k in fields})
                value = self.score(both, found.bits, lse=True)
                if value <= matching(found.bits):
                    return Found(found.bits, value, (Form(first.faults + other.faults, both),))
        return found

    def single(self, levels: Sequence[int]) -> Found | None:
        """The right conventions or one fault, at the first of these precisions at which anything fits.

        A fault is named only where it explains the output clearly better than the right conventions do.
        """
        near = sorted(self.changed, key=lambda f: self.distance(f.recipe))[:NEAREST] if levels else []
        for bits in levels:
            floor = matching(bits) / MATCH
            good, of_right = self.inside(bits) <= 1, self.score_of_right(bits)
            scored = [(self.score(f.recipe, bits), f) for f in near]
            light = self.score(RIGHT, bits, self.light)
            if light <= LOOSE:  # faults that only the heavy cases can show
                scored += [(max(light, self.score(f.recipe, bits, self.heavy, RIGHT)), f) for f in self.quiet]
            best = min((s for s, _ in scored), default=np.inf)
            clearly = BETTER if good else BETTER / 2  # outside the radius the right conventions are out already
            if best <= matching(bits) and of_right > clearly * max(best, floor):
                fit = [f for s, f in sorted(scored, key=lambda x: x[0]) if s <= BETTER * max(best, floor)]
                return Found(bits, best, tuple(f for f in fit if self._alike(f, fit[0])))
            if good and (bits == self.levels[0] or bits >= FLOAT32 or self.rounded(bits)):
                return Found(bits, of_right)
        return None

    def rounded(self, bits: int) -> bool:
        """Whether what is wrong looks like rounding to ``bits``: in every case, everywhere, in no direction."""
        looks = [like_rounding(self.seen[c.name], c, bits) for c in self.light if "empty" not in c.name]
        small = self.score_of_right(bits) <= (MATCH / 4 if bits == TF32 else MATCH)  # beyond, coarser rounding fits
        return small and all(spread for spread, _ in looks) and float(np.median([along for _, along in looks])) < 0.7

    def _alike(self, a: Form, b: Form) -> bool:
        """Whether both predict the same, so that no output can tell them apart."""
        return all(apart(predicted(c, a.recipe), predicted(c, b.recipe)) < 1e-9 for c in self.cases)

    def pair(self, bits: int) -> Found | None:
        """Two faults together. Where one of them cannot be seen, the other must explain the output alone."""
        every = self.forms
        fits = np.array([[score(self.seen[c.name], c, f.recipe, bits, RIGHT, self.holds_lse(f.recipe, bits)) <= LOOSE
                          for c in self.light] for f in every])
        right = np.array([score(self.seen[c.name], c, RIGHT, bits) <= LOOSE for c in self.light])
        shows = np.array([[self.visible(f, c, bits) for c in self.light] for f in every])
        candidates = []
        for i, j in combinations(range(len(every)), 2):
            a, b = every[i], every[j]
            if a.faults[0].id == b.faults[0].id or self._fields(a) & self._fields(b):
                continue
            alone = np.where(shows[i], np.where(shows[j], True, fits[i]), np.where(shows[j], fits[j], right))
            if alone.all() and (shows[i].any() or shows[j].any()):
                candidates.append((-int(np.sum(shows[i] != shows[j])), i, j))
        best = None
        for _, i, j in sorted(candidates)[:PAIRS]:
            both = replace(every[i].recipe, **{k: getattr(every[j].recipe, k) for k in self._fields(every[j])})
            if self.score(both, bits, self.light, RIGHT) > LOOSE:  # its own noise costs as much as its prediction
                continue
            value = self.score(both, bits)
            if value <= matching(bits) and (best is None or value < best.score):
                best = Found(bits, value, (Form(every[i].faults + every[j].faults, both),))
        if best is not None and (exact := self.score(best.forms[0].recipe, self.levels[0])) <= matching(self.levels[0]):
            return Found(self.levels[0], exact, best.forms)
        return best

    @staticmethod
    def _fields(form: Form) -> set[str]:
        return {name for name in RIGHT.__dataclass_fields__ if getattr(form.recipe, name) != getattr(RIGHT, name)}

    def nearest(self) -> tuple[float, Form]:
        """The fault whose prediction lies nearest, and its distance from 0 to 1."""
        form = min(self.changed, key=lambda f: self.distance(f.recipe))
        return self.distance(form.recipe), form
