"""Case 11: latents in 8 bits and fewer: codes and rows to the bit, errors inside what their steps allow."""
from __future__ import annotations

import struct

import numpy as np

from .. import footprint as fp
from ..arrays import fresh, round_to_bfloat16
from ..bounds import compare
from ..checks.common import judge, under_test, worst_of
from ..fp8 import E4M3
from ..verdict import Check, Setting, Verdict, exactly
from .carry import exact, radius, scene, store_rope, through_cache
from .latents import OUTLIER_CHANNEL, normed, not_normed, with_outlier
from .packed_row import join, pack, sizes, split, unpack
from .quantize import (
    FORMATS,
    GRANULARITIES,
    STORING,
    Format,
    Storing,
    band,
    half_step,
    power_of_two,
    quantize,
    relative,
)

TOKENS = 64
REST = np.arange(512) != OUTLIER_CHANNEL
quietly = np.errstate(invalid="ignore", divide="ignore", over="ignore")  # a fault that makes NaN is meant to


# --- codes and bytes --------------------------------------------------------------------------------------------------

def grid(form: Format) -> np.ndarray:
    """Every number from 0 up that the format has, in order: the k-th belongs to code k."""
    if form.fraction is None:
        return np.arange(form.largest + 1)
    ones = 2**form.fraction
    numbers = [m * 2.0 ** (form.least - form.fraction) for m in range(ones)]
    numbers += [m * 2.0 ** (e - form.fraction) for e in range(form.least, 16) for m in range(ones, 2 * ones)]
    return np.array([x for x in numbers if x <= form.largest])


def searched(x: np.ndarray, form: Format) -> np.ndarray:
    """The nearest number of the format, of two the one with an even code: by search, not by arithmetic."""
    numbers = grid(form)
    size = np.minimum(np.abs(x).astype(np.float64), form.largest)
    above = np.minimum(np.searchsorted(numbers, size), len(numbers) - 1)
    below = np.maximum(above - 1, 0)
    far, near = numbers[above] - size, size - numbers[below]
    return np.copysign(numbers[np.where((far < near) | ((far == near) & (above % 2 == 0)), above, below)], x)


def casts(x: np.ndarray) -> dict[str, np.ndarray]:
    """What the e4m3 casts of torch and ml_dtypes make of ``x``, where they are installed."""
    found = {}
    try:
        import torch
        found["torch"] = torch.from_numpy(x.copy()).to(torch.float8_e4m3fn).float().numpy()
    except ImportError:
        pass
    try:
        import ml_dtypes
        found["ml_dtypes"] = x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    except ImportError:
        pass
    return found


def every_bf16() -> np.ndarray:
    """All 65,280 finite numbers of bf16."""
    x = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    return x[np.isfinite(x)]


@quietly
def codes(setting: Setting, rules: Storing = STORING) -> Verdict:
    x = every_bf16()
    saw = {f.name: int(np.sum(f.nearest(x, rules) != searched(x, f))) for f in FORMATS.values()}
    return exactly(CODES, saw, dict.fromkeys(FORMATS, 0), f"numbers stored otherwise, of {len(x):,}")


@quietly
def other_casts(setting: Setting, rules: Storing = STORING) -> Verdict:
    x = every_bf16()
    ours, theirs = FORMATS["e4m3"].nearest(x, rules), casts(np.clip(x, -448, 448))
    saw = {name: int(np.sum((y != ours) | (np.signbit(y) != np.signbit(ours)))) for name, y in theirs.items()}
    if not saw:
        return Verdict(CASTS, saw, "equal to another library's", None, False, "torch and ml_dtypes are not installed")
    return exactly(CASTS, saw, dict.fromkeys(saw, 0), f"numbers that differ, of {len(x):,}")


@quietly
def extremes(setting: Setting, rules: Storing = STORING) -> Verdict:
    """Beyond the largest number with a scale of 1; then a tile of zeros, and a row of them."""
    beyond, rows = np.array([448, 464, 465, 1000, -1000, np.inf], np.float32), normed(3)
    rows[1, 128:256] = 0
    rows[2] = 0
    back = {name: quantize(rows, "e4m3", name, rules).read(rules) for name in GRANULARITIES}
    saw = {"beyond": str(FORMATS["e4m3"].nearest(beyond, rules).tolist()),
           "zeros stay zero": [bool(np.all(x[rows == 0] == 0)) for x in back.values()],
           "finite": [bool(np.isfinite(x).all()) for x in back.values()]}
    want = {"beyond": "[448.0, 448.0, 448.0, 448.0, -448.0, 448.0]"} | dict.fromkeys(list(saw)[1:], [True] * len(back))
    return exactly(EXTREMES, saw, want, "448, 464, 465, 1000, -1000 and infinity; zeros at every granularity")


def laid_down(c_kv: np.ndarray, k_rope: np.ndarray) -> bytes:
    """The packed rows, one field after the other, with Python's struct and a search for each code."""
    stored, rows = quantize(c_kv, "e4m3", "tile"), []
    code = np.abs(np.abs(stored.numbers)[..., None] - E4M3[:127]).argmin(axis=-1) + 128 * np.signbit(stored.numbers)
    for c, scales, rope in zip(code, stored.scales, round_to_bfloat16(k_rope.astype(np.float32)), strict=True):
        rows += [bytes(c.tolist()), struct.pack("<4f", *scales), *(struct.pack("<f", x)[2:] for x in rope)]
    return b"".join(rows)


@quietly
def packed(setting: Setting, rules: Storing = STORING) -> Verdict:
    c_kv, k_rope = normed(5, seed=1), fresh(130)(5, 64)
    rows, stored = pack(c_kv, k_rope, rules), quantize(c_kv, "e4m3", "tile")
    anything = np.random.default_rng(131).integers(0, 256, (40, 656), np.uint8)
    latent, rope = unpack(rows, rules=rules)
    scales = split(pack(c_kv, k_rope, Storing(block_scale=power_of_two))).scales
    saw = {"bytes": rows.shape[1], "as laid down by hand": rows.tobytes() == laid_down(c_kv, k_rope),
           "any bytes come back": bool(np.all(join(split(anything, rules=rules), rules) == anything)),
           "latents read": bool(np.all(latent == stored.numbers * stored.each_scale())),
           "rope keys read": bool(np.all(rope == round_to_bfloat16(k_rope.astype(np.float32)))),
           "powers of two survive bf16": bool(np.all(round_to_bfloat16(scales) == scales))}
    return exactly(PACKED, saw, {"bytes": fp.row_bytes("fp8-tile", 576, 64)} | dict.fromkeys(list(saw)[1:], True),
                   ", ".join(f"{size} B of {name}" for name, size in sizes().items()))


# --- errors -----------------------------------------------------------------------------------------------------------

def error_of_rest(c_kv: np.ndarray, form: str, granularity: str, rules: Storing) -> float:
    """Relative error of all channels but the one that may hold an outlier."""
    return relative(quantize(c_kv, form, granularity, rules).read(rules)[:, REST], c_kv[:, REST])


@quietly
def steps(setting: Setting, rules: Storing = STORING) -> Verdict:
    """All formats and granularities, on normed latents, with an outlier, and on rows that were never normed."""
    worst = 0.0
    for c_kv in (normed(TOKENS), with_outlier(TOKENS, 30), not_normed(TOKENS, 12)):
        for form in FORMATS:
            for granularity in GRANULARITIES:
                stored = quantize(c_kv, form, granularity, rules)
                away = np.abs(stored.read(rules) - c_kv) / half_step(c_kv, form, stored)
                worst = max(worst, float(np.max(np.where(np.isnan(away), np.inf, away))))
    return Verdict(STEPS, worst, "at most half a step", 1.0, worst <= 1, "largest error in half steps")


@quietly
def same_band(setting: Setting, rules: Storing = STORING) -> Verdict:
    low, high = band("e4m3")
    saw = {g: relative(quantize(normed(TOKENS), "e4m3", g, rules).read(rules), normed(TOKENS)) for g in GRANULARITIES}
    return Verdict(BAND, saw, "inside the band at every granularity", None, all(low <= e <= high for e in saw.values()),
                   f"relative error; the band of 3 fraction bits is {fp.percent(low)} to {fp.percent(high)}")


@quietly
def outliers(setting: Setting, rules: Storing = STORING) -> Verdict:
    """The error of the other channels where one is 1,000 or 2^18 times as large, with scales of different reach."""
    (low, high), far = band("e4m3"), with_outlier(TOKENS, 2.0**18)
    errors = {g: error_of_rest(with_outlier(TOKENS, 1000), "e4m3", g, rules) for g in GRANULARITIES}
    lost = {"int8, 1,000 times": error_of_rest(with_outlier(TOKENS, 1000), "int8", "tensor", rules),
            "e4m3, 2^18 times": error_of_rest(far, "e4m3", "tensor", rules)}
    kept = quantize(far, "e4m3", "tile", rules).read(rules)[:, 128:]
    saw = errors | lost | {"e4m3, 2^18 times, other tiles": relative(kept, far[:, 128:])}
    ok = all(low <= e <= high for e in (*errors.values(), relative(kept, far[:, 128:]))) and min(lost.values()) > 0.5
    return Verdict(OUTLIERS, saw, "e4m3 in its band, int8 not", None, ok, "relative error of the channels without it")


@quietly
def rows_apart(setting: Setting, rules: Storing = STORING) -> Verdict:
    """Rows spread over 24 octaves: the largest relative error of a row."""
    c_kv, (low, high), worst = not_normed(TOKENS, 24), band("e4m3"), {}
    for granularity in GRANULARITIES:
        back = quantize(c_kv, "e4m3", granularity, rules).read(rules)
        worst[granularity] = max(relative(a, b) for a, b in zip(back, c_kv, strict=True))
    ok = all(low <= worst[g] <= high for g in ("token", "tile")) and min(worst["tensor"], worst["channel"]) > 0.5
    return Verdict(APART, worst, "token and tile in the band, tensor and channel not", None, ok,
                   "largest relative error of a row")


@quietly
def carried(setting: Setting, rules: Storing = STORING) -> Verdict:
    """Logits, LSE and head outputs over an e4m3 and an int8 cache, against the rows before they were stored."""
    backend, recipe, distances = setting.backend, under_test(setting), []
    here = scene(backend, normed(TOKENS))
    want, own = exact(here, backend), radius(here, backend, np.zeros_like(here.c_kv))
    for form, granularity in (("e4m3", "tensor"), ("e4m3", "tile"), ("int8", "token")):
        got, stored = through_cache(here, backend, form, granularity, recipe=recipe, rules=rules)
        moved = radius(here, backend, half_step(here.c_kv, form, stored))
        for part in ("logits", "lse", "heads"):
            distances.append(compare(*(getattr(x, part) for x in (got, want, moved, own))))
    return judge(CARRIED, worst_of(distances), f"{TOKENS} cached tokens, DeepSeek-V3's head dimensions")


@quietly
def rope_scale(setting: Setting, rules: Storing = STORING) -> Verdict:
    """Rope keys ten times the latents' size, in e4m3 with the scale that latent and rope key share."""
    here = scene(setting.backend, normed(TOKENS), rope_times=10)
    back = store_rope(here.k_rope, here.c_kv, "shared scale", "e4m3", rules)
    stored = quantize(here.k_rope, "e4m3", "token", scales_from=np.concatenate([here.c_kv, here.k_rope], axis=1))
    away = np.abs(back - here.k_rope) / half_step(here.k_rope, "e4m3", stored)
    worst = float(np.max(np.where(np.isnan(away), np.inf, away)))
    return Verdict(ROPE, worst, "at most half a step", 1.0, worst <= 1, "largest error, in half steps")


CODES = "every bf16 number is stored as the nearest one of each format, ties to even"
CASTS = "after the clamp, other libraries' e4m3 casts give the same numbers, signs of zero included"
EXTREMES = "what lies beyond 448 becomes 448, and a tile of zeros stays zero"
PACKED = "a row is 656 bytes: 512 codes, 4 float32 scales, 64 rope values in bf16, and comes back to the byte"
STEPS = "no value is off by more than half a step of its format and scale"
BAND = "on normed latents e4m3 costs between 1.80 and 3.61 %, whatever shares a scale"
OUTLIERS = "a channel 1,000 times the rest leaves e4m3's error where it was; int8 with one scale loses the rest"
APART = "rows 2^24 apart in size, as without a norm, need a scale for each row or tile"
CARRIED = "logits, LSE and outputs move by no more than the half steps of the stored latents allow"
ROPE = "a scale that latent and rope key share must be taken from both"

CHECKS = (
    Check("11.codes", CODES, codes), Check("11.casts", CASTS, other_casts), Check("11.extremes", EXTREMES, extremes),
    Check("11.packed", PACKED, packed), Check("11.steps", STEPS, steps), Check("11.band", BAND, same_band),
    Check("11.outliers", OUTLIERS, outliers), Check("11.apart", APART, rows_apart),
    Check("11.carried", CARRIED, carried), Check("11.rope", ROPE, rope_scale),
)
