"""Claims on rotation, rank and absorption: the checks of cases 2 to 5 on small dimensions."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .. import footprint as fp
from ..arrays import fresh, get_backend, to_numpy
from ..checks import CHECKS
from ..checks.case2_rank import ARTICLE, TOKENS
from ..checks.case4_absorption import differing, head_arrays
from ..checks.case4_absorption import run as run_heads
from ..checks.common import SMALL
from ..config import MLAConfig
from ..errors import InputError
from ..faults import FAULTS
from ..kernels.counts import premultiplied
from ..memory import peak_bytes
from ..models import get_model
from ..recipe import RIGHT, Recipe
from ..rope import frequencies, rotate, softmax_scale
from ..spectrum import numerical_rank, require_falsifiable
from ..verdict import Setting, Verdict
from ..weights import shapes
from .ledger import Finding

V3 = get_model("DeepSeek-V3").mla
_BY_ID = {check.id: check for check in CHECKS}


def unrotated(config: MLAConfig) -> np.ndarray:
    return 0 * frequencies(config)


def without_rope(content, rope):
    return content


def once_per_decade(x: float) -> str:
    return f"10^{math.floor(math.log10(x))}" if x else "0"


def under(fault: str) -> Recipe:
    """The right recipe with a known fault in it."""
    return next(f for f in FAULTS if f.id == fault).spoil(RIGHT)


def saw(id: str, recipe: Recipe = RIGHT, config: MLAConfig = SMALL) -> Verdict:
    """The verdict of a check under ``recipe``."""
    return _BY_ID[id].run(Setting(get_backend(), config, "small", recipe))


def words(*ids: str, recipe: Recipe = RIGHT) -> tuple[bool, str]:
    """Whether checks hold, and their verdicts in words."""
    seen = [saw(id, recipe) for id in ids]
    return all(v.ok for v in seen), "; ".join(str(v) for v in seen)


def does_not_commute(recipe: Recipe = RIGHT) -> Finding:
    fixed, through = saw("3.no_fixed_matrix", recipe), saw("3.absorb_through", recipe)
    return Finding(fixed.ok and through.ok, f"the best fixed matrix misses {fp.percent(fixed.saw, 1)} of the rotation "
                                            f"over 64 distances; absorbed logits are {through.expected}")


def rotated_keys(recipe: Recipe = RIGHT) -> Finding:
    plain, turned = saw("2.keys"), saw("2.rotated", recipe)
    return Finding(turned.saw == TOKENS,
                   f"{TOKENS} tokens, latent 128: rank {plain.saw} before RoPE, {turned.saw} after")


def two_terms(terms: Callable = RIGHT.terms) -> Finding:
    ok, text = words("3.two_terms", recipe=replace(RIGHT, terms=terms))
    return Finding(ok, text)


def rope_formula(turn_query: bool = True, at: tuple[int, int] = (11, 4)) -> Finding:
    """The printed term on both readings of its query and of its angle, against R_t q . R_s k."""
    backend, (t, s), config = get_backend(), at, replace(SMALL, rope_scaling=None)
    q, k = (backend.asarray(x) for x in (fresh(1)(1, 6), fresh(2)(1, 6)))
    def turn(x, at):
        return rotate(x, backend.xp.asarray([at]), frequencies(config))
    def dot(a, b):
        return float(to_numpy(a @ b.mT)[0, 0])
    true = dot(turn(q, t), turn(k, s))
    bound = 64 * 2.0**-53 * float(np.linalg.norm(to_numpy(q)) * np.linalg.norm(to_numpy(k)))
    same = {(name, angle): abs(dot(query, turn(k, t - s if angle == "t - s" else s - t)) - true) <= bound
            for name, query in (("rotated", turn(q, t) if turn_query else q), ("unrotated", q))
            for angle in ("t - s", "s - t")}
    right = [f"{name} query and angle {angle}" for (name, angle), ok in same.items() if ok]
    return Finding(same["rotated", "t - s"], f"equal only with {' or '.join(right) or 'none'}, for column vectors")


def shared_rope_key(heads: int = 128, width: int = 64) -> Finding:
    """The key's projection has p rows whatever the number of heads."""
    rows = [shapes(replace(V3, num_attention_heads=h))["kv_a_proj_with_mqa.weight"][0] for h in (1, heads)]
    return Finding(rows[0] == rows[1] == V3.kv_lora_rank + width,
                   f"kv_a_proj_with_mqa has {V3.kv_lora_rank} + {width} rows with 1 head and with {heads}")


def no_scale(scale: Callable[[MLAConfig], float] = softmax_scale) -> Finding:
    right, wrong = scale(V3), V3.cached_width**-0.5
    return Finding(right == 1, f"DeepSeek-V3 multiplies logits by 192^-1/2 mscale^2 = {right:.6f}; 576^-1/2 would be "
                               f"{wrong:.6f}")


def absorbed(recipe: Recipe = RIGHT) -> Finding:
    differ, total = differing(Setting(get_backend(), SMALL, "small", recipe), SMALL)
    ok, _ = words("4.logits", "4.weights", "4.output", recipe=recipe)
    return Finding(ok and differ == 0, f"{differ} of {total} numbers differ modulo a prime; in float64 logits, weights "
                                       f"and outputs are {'inside' if ok else 'outside'} their rounding bounds")


def identical(dtype: str = "bfloat16", modes: tuple[str, str] = ("naive", "absorb")) -> Finding:
    """Relative distance of outputs at DeepSeek-V3's head: between the modes, and of each from float64."""
    config, (backend, wide) = replace(V3, num_attention_heads=4), (get_backend(None, d) for d in (dtype, "float64"))
    differ, total = differing(Setting(wide, SMALL), SMALL)
    outputs = {}
    for name, where, mode in (("exact", wide, "naive"), ("one", backend, modes[0]), ("other", backend, modes[1])):
        heads = head_arrays(config, where, 2, 96, 54)
        out = run_heads(heads, config, mode, replace(RIGHT, store=where.store)).heads
        outputs[name] = to_numpy(out).astype(np.float64)
    far = [float(np.linalg.norm(outputs[a] - outputs[b]) / np.linalg.norm(outputs["exact"]))
           for a, b in (("one", "other"), ("one", "exact"), ("other", "exact"))]
    return Finding(differ == 0, f"{differ} of {total} numbers differ modulo a prime; in {dtype} the outputs differ by "
                                f"some {once_per_decade(far[0])} of their size, and each from float64 by some "
                                f"{' and '.join(dict.fromkeys(map(once_per_decade, far[1:])))}", far[0] == 0)


def one_product(recipe: Recipe = RIGHT) -> Finding:
    same, count = saw("4.premultiplied", recipe).saw, premultiplied(V3)
    ratio = count.output_merged / count.output_factored
    return Finding(same, f"equal to the bit modulo a prime: {same}; {count.output_merged / 1e6:.1f} M weights a layer "
                         f"instead of {count.output_factored / 1e6:.1f} M, {ratio:.2f} times as many", ratio <= 1)


def never_materialised(recipe: Recipe = RIGHT) -> Finding:
    """The peak of a decode step against the expanded keys, for both modes."""
    config, backend, cached = replace(V3, num_attention_heads=4), get_backend(), 160
    heads = head_arrays(config, backend, 1, cached, 53)
    keys = cached * 4 * 128 * 8
    peaks = {mode: peak_bytes(backend, lambda mode=mode: run_heads(heads, config, mode, recipe))
             for mode in (recipe.decode_mode, "naive")}
    below = {mode: peak < keys for mode, peak in peaks.items()}
    text = ", ".join(f"{mode} {'below' if b else 'above'}" for mode, b in below.items())
    return Finding(below[recipe.decode_mode], f"peak of a step against the expanded keys of {cached} tokens: {text}")


def falsifiable(tokens: int) -> bool:
    """Whether a rank of 128 could be exceeded with so many tokens."""
    try:
        require_falsifiable(ARTICLE.kv_lora_rank, tokens, 512)
    except InputError:
        return False
    return True


def rank_128(recipe: Recipe = RIGHT, tokens: int = 100) -> Finding:
    """The claim on enough tokens, and whether ``tokens`` random full rows would pass for a rank of at most 128."""
    keys, joint = saw("2.keys", recipe), saw("2.joint", recipe)
    rank = numerical_rank(fresh(3)(tokens, 512))
    return Finding(keys.ok and joint.ok,
                   f"{TOKENS} tokens: keys {keys.saw}, keys and values together {joint.saw}; with {tokens} tokens keys "
                   f"of no latent at all have rank {rank}", falsifiable(tokens))


def five_steps(recipe: Recipe = RIGHT) -> Finding:
    grows, every = saw("5.grows", recipe), saw("5.every_split", recipe)
    finite = bool(np.isfinite(saw("5.article", recipe).saw))
    return Finding(grows.ok and every.ok and finite, f"rows after each call {grows.saw['lengths'][1:]}, finite: "
                   f"{finite}; equal to a full recompute for every split: {every.ok}")


SETTLE = {
    "A11": (does_not_commute, {"recipe": replace(RIGHT, frequencies=unrotated)}),
    "A12": (rotated_keys, {"recipe": replace(RIGHT, key_position=lambda at: 0 * at)}),
    "A13": (two_terms, {"terms": without_rope}),
    "A14": (rope_formula, {"turn_query": False}),
    "A15": (shared_rope_key, {"width": 32}),
    "A16": (no_scale, {"scale": lambda config: config.cached_width**-0.5}),
    "A17": (absorbed, {"recipe": replace(RIGHT, terms=without_rope)}),
    "A18": (identical, {"dtype": "float64"}),
    "A19": (one_product, {"recipe": under("all_k_then_all_v")}),
    "A22": (never_materialised, {"recipe": replace(RIGHT, decode_mode="naive")}),
    "A23": (rank_128, {"tokens": 200}),
    "A24": (five_steps, {"recipe": replace(RIGHT, visible=lambda query, key, start: key < start + query)}),
}
