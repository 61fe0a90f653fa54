"""From what was observed to a diagnosis."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..config import MLAConfig
from ..faults.miscounts import MISCOUNTS
from ..faults.rounded import BFLOAT16, TF32
from ..recipe import RIGHT
from .cases import Case, DecodeCase, LayerCase
from .distance import predicted, rms, shares
from .multiple import one_factor
from .observe import Observed
from .search import BETTER, NAMES, Found, Search, matching
from .words import Departure, Diagnosis


def conclude(name: str, protocol: str, dtype: str, arrays: str, cases: Sequence[Case], seen: Observed) -> Diagnosis:
    """From what was observed to a diagnosis."""
    about = {"name": name, "protocol": protocol, "dtype": dtype, "arrays": arrays, "problems": tuple(seen.problems)}
    if not seen.outputs:
        return Diagnosis(verdict="raises", **about)
    search = Search(cases, seen.outputs, dtype)
    found = search.best()
    bits = search.levels[0] if found is None else found.bits
    about["departures"] = tuple(departure(case, seen, bits) for case in search.cases)
    about["unseen"] = tuple(sorted({f.ids[0] for f in search.forms} - {
        f.ids[0] for f in search.forms if any(search.visible(f, c, search.levels[0], BETTER) for c in search.cases)}))
    about["remarks"] = (*cached(seen.cached, search.cases), *seen.notes)
    if found is None:
        if not any(np.isfinite(x).any() for outputs in seen.outputs.values() for x in outputs):
            about["remarks"] = (*about["remarks"], "every number of the output is NaN or infinite")
            return Diagnosis(verdict="unknown", **about)
        looks = one_factor(search.cases, seen.outputs, search.levels, matching)
        if looks:
            return Diagnosis(verdict="unknown", looks=looks, **about)
        distance, form = search.nearest()
        verdict = "nearest" if distance < search.distance(RIGHT) / 2 else "unknown"
        return Diagnosis(verdict=verdict, faults=form.ids, distance=distance, **about)
    return Diagnosis(precision=NAMES[found.bits], **verdict_of(found, dtype, bool(seen.problems)), **about)


def verdict_of(found: Found, dtype: str, broken: bool) -> dict:
    """The verdict and the faults of what was found."""
    if found.forms:
        first, *others = found.forms
        return {"verdict": "fault" if len(first.ids) == 1 else "two faults", "faults": first.ids,
                "alike": tuple(sorted({f.ids[0] for f in others} - set(first.ids)))}
    if found.bits == TF32:
        return {"verdict": "fault", "faults": ("tf32",)}
    if found.bits == BFLOAT16 and dtype != "bfloat16":
        return {"verdict": "precision"}
    return {"verdict": "raises" if broken else "agrees"}


def departure(case: Case, seen: Observed, bits: int) -> Departure:
    """The first place in which a case leaves the likely radius."""
    outputs = seen.outputs[case.name]
    beyond = shares(outputs, case, bits)
    worst = max((float(s.max()) for s in beyond if s.size), default=0.0)
    for call, (got, want, share) in enumerate(zip(outputs, predicted(case, RIGHT), beyond, strict=False)):
        if not share.size or share.max() <= 1:
            continue
        with np.errstate(invalid="ignore"):
            relative = rms(got - want) / (rms(want) or 1.0)
        row, token = (int(i) for i in np.argwhere(share > 1)[:, :2][np.argmin(np.argwhere(share > 1)[:, 1])])
        if isinstance(case, DecodeCase):
            heads = sorted(set(np.argwhere(share > 1)[:, 2].tolist()))
            what, position = ("output", "LSE")[call], case.lengths[row] - got.shape[1] + token
            at = f"position {position}" if position >= 0 else "before the sequence's first token"
            where = f"{what}, sequence {row}, query {token} ({at}), {ranges('head', heads)}"
        else:
            start = sum(x.shape[1] for x in case.hidden[:call])
            heads = heads_of(case, got - want, share)
            where = f"{case.labels[call]}, sequence {row}, position {start + token}{heads}"
        if np.any(~np.isfinite(got) & np.isfinite(want)):
            where, relative = f"{where}: NaN or infinite", float("inf")
        return Departure(case.name, case.shows, worst, relative, where)
    return Departure(case.name, case.shows, worst, 0.0, "")


def heads_of(case: LayerCase, off: np.ndarray, share: np.ndarray) -> str:
    """Which heads make the difference, where W_O can be undone."""
    w_o = case.state["o_proj.weight"]
    h, v = case.config.num_attention_heads, case.config.v_head_dim
    if w_o.dtype == np.uint8 or w_o.shape[0] < h * v or not np.all(np.isfinite(off)):
        return ""
    by_head = np.linalg.lstsq(w_o, off.reshape(-1, off.shape[-1]).T, rcond=None)[0].T.reshape(*off.shape[:2], h, v)
    size = np.sqrt(np.mean(by_head**2, axis=(0, 1, 3)))
    return ", " + ranges("head", [i for i in range(h) if size[i] > 0.05 * size.max()])


def ranges(word: str, numbers: list[int]) -> str:
    """``heads 0-2`` for 0, 1, 2."""
    if numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1:
        return f"{word}s {numbers[0]}-{numbers[-1]}"
    return f"{word}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def cached(elements: float | None, cases: Sequence[Case]) -> list[str]:
    """Whether the cache is MLA's, as far as its growth could be seen."""
    case = next((c for c in cases if isinstance(c, LayerCase) and c.name == "full"), None)
    if elements is None or case is None:
        return []
    config: MLAConfig = case.config
    if elements == config.cached_width:
        return [f"the cache grows by r + p = {config.cached_width} elements a token, as MLA's does"]
    known = [m for m in MISCOUNTS if m.elements and m.elements(config) == elements]
    like = f", which is {known[0].id} ({known[0].what})" if known else ""
    return [f"the cache grows by {elements:g} elements a token where r + p is {config.cached_width}{like}"]
