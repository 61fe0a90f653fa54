"""Latents in 8, 6 and 4 bits: a grid of numbers, a scale for each block of values, and what reading gives back.

Storage is emulated in NumPy float32, as the kernels compute it; what is read back goes into attention on any backend.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import InputError, unknown
from ..fp8 import LARGEST, blocks, spread
from ..recipe import keep

TILE = 128


@dataclass(frozen=True)
class Format:
    """The numbers that a code can stand for, before they are multiplied by a scale.

    Parameters
    ----------
    name : str
    bits : int
    largest : float
    fraction : int or None
        Bits after the leading one; None: whole numbers, all equally far apart.
    least : int
        Exponent of the smallest normal number. Below it the distance does not shrink any more.
    """

    name: str
    bits: int
    largest: float
    fraction: int | None = None
    least: int = 0

    def step(self, x: np.ndarray) -> np.ndarray:
        """The distance between the two neighbours of ``x``."""
        if self.fraction is None:
            return np.ones_like(x)
        exponent = np.frexp(np.abs(x))[1] - 1  # of the leading bit; whatever it is for zero, ``least`` is above it
        return np.ldexp(np.float32(1), np.maximum(exponent, self.least) - self.fraction).astype(x.dtype)

    def nearest(self, x: np.ndarray, rules: Storing) -> np.ndarray:
        """The number of this grid that ``x`` is stored as."""
        x = rules.clamp(x, self.largest)
        step = self.step(np.where(np.isfinite(x), x, 0))
        return step * rules.rounding(x / step)


# e4m3: fp8.py. e3m2 and e2m1: OCP Microscaling Formats 1.0, section 5.3. The integers are symmetric, -largest included.
FORMATS = {f.name: f for f in (
    Format("e4m3", 8, LARGEST, 3, -6), Format("int8", 8, 127.0), Format("e3m2", 6, 28.0, 2, -2),
    Format("int6", 6, 31.0), Format("e2m1", 4, 6.0, 1, 0), Format("int4", 4, 7.0))}

# Which values share a scale: rows and columns of a block of latents [s, r].
GRANULARITIES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "tensor": lambda s, r: (s, r), "channel": lambda s, r: (s, 1), "token": lambda s, r: (1, r),
    "tile": lambda s, r: (1, TILE)}


# --- the rules --------------------------------------------------------------------------------------------------------

def to_the_largest(x: np.ndarray, largest: float) -> np.ndarray:
    """What lies beyond the largest number becomes it: casts alone give 448 or NaN, depending on the library."""
    return np.clip(x, -largest, largest)


def fits_exactly(amax: np.ndarray, largest: float) -> np.ndarray:
    """The scale with which a block's largest value becomes ``largest``.

    1 for a block of zeros, where 0/0 is NaN, and for one so small that its scale would be subnormal and lose bits.
    """
    scale = amax / np.float32(largest)
    return np.where(scale >= np.finfo(np.float32).tiny, scale, np.float32(1))


def power_of_two(amax: np.ndarray, largest: float) -> np.ndarray:
    """FlashMLA's scale, 2^ceil(log2 max(amax / 448, 1e-4)): it survives every reader, bf16 and e8m0 alike.

    As in tests/quant.py of deepseek-ai/FlashMLA, and in vLLM since vllm-project/vllm#49435.
    """
    fraction, exponent = np.frexp(np.maximum(amax / np.float32(largest), np.float32(1e-4)))
    return np.ldexp(np.float32(1), exponent - (fraction == 0.5))


def one(amax: np.ndarray, largest: float) -> np.ndarray:
    """No scale at all, as in vLLM unless somebody calibrates (docs: "All quantization scales are set to 1.0")."""
    return np.ones_like(amax)


def of_both(c_kv: np.ndarray, k_rope: np.ndarray) -> np.ndarray:
    """A scale that serves latent and rope key must be taken from both."""
    return np.concatenate([c_kv, k_rope], axis=1)


@dataclass(frozen=True)
class Storing:
    """What a quantised cache has to get right, as values; the defaults are right. A fault replaces one of them."""

    clamp: Callable[[np.ndarray, float], np.ndarray] = to_the_largest
    rounding: Callable[[np.ndarray], np.ndarray] = np.rint  # to nearest, ties to even
    block_scale: Callable[[np.ndarray, float], np.ndarray] = fits_exactly
    shared_scale: Callable[[np.ndarray, np.ndarray], np.ndarray] = of_both
    read_scale: Callable[[np.ndarray], np.ndarray] = keep  # what a reader makes of the scales [down, across]
    read_value: Callable[[np.ndarray], np.ndarray] = keep  # and of the codes
    row: tuple[str, ...] = ("codes", "scales", "rope")  # the order in a packed row


STORING = Storing()


# --- storing and reading ----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Stored:
    """Quantised values ``[s, r]``: numbers of the format's grid, and float32 scales, one for each block."""

    numbers: np.ndarray
    scales: np.ndarray
    block: tuple[int, int]

    def each_scale(self, scales: np.ndarray | None = None) -> np.ndarray:
        """The scale of every value, ``[s, r]``."""
        scales, (s, r) = self.scales if scales is None else scales, self.numbers.shape
        return spread(scales, 0, s, r, self.block)

    def read(self, rules: Storing = STORING) -> np.ndarray:
        """Numbers times scales in float32, rounded once."""
        return rules.read_value(self.numbers) * self.each_scale(rules.read_scale(self.scales))


def quantize(x: np.ndarray, form: str | Format, granularity: str, rules: Storing = STORING,
             scales_from: np.ndarray | None = None) -> Stored:
    """Store latents ``x [s, r]`` in a `FORMATS` grid with a scale for each block of a `GRANULARITIES`.

    Parameters
    ----------
    scales_from : array [s, ...], optional
        The values whose largest sets the scale, where they are others than ``x``.
    """
    form, x = _format(form), _finite("latents", x)
    if granularity not in GRANULARITIES:
        raise unknown("granularity", granularity, GRANULARITIES)
    if x.ndim != 2 or 0 in x.shape:
        raise InputError(f"latents must have the shape [tokens, channels], none of them 0, not {x.shape}.")
    block = GRANULARITIES[granularity](*x.shape)
    source = x if scales_from is None else _finite("scales_from", scales_from)
    scales = rules.block_scale(largest_of(source, GRANULARITIES[granularity](*source.shape)), form.largest)
    if scales.shape != blocks(x.shape, block):
        raise InputError(f"scales of values {source.shape} do not fit {x.shape}, one for each {granularity}.")
    return Stored(form.nearest(x / spread(scales, 0, *x.shape, block), rules), scales, block)


def largest_of(x: np.ndarray, block: tuple[int, int]) -> np.ndarray:
    """The largest absolute value of each block ``[down, across]``; the last ones may be smaller."""
    (s, r), (down, across) = x.shape, blocks(x.shape, block)
    padded = np.zeros((down * block[0], across * block[1]), np.float32)
    padded[:s, :r] = np.abs(x)
    return padded.reshape(down, block[0], across, block[1]).max(axis=(1, 3))


def half_step(x: np.ndarray, form: str | Format, stored: Stored) -> np.ndarray:
    """How far reading may lie from ``x``, value by value: half a step of the grid, and four roundings in float32.

    Those are of x to float32, of its quotient by the scale, of the product that reads it back, and of the scale.
    """
    form, x, scale = _format(form), np.asarray(x, np.float64), stored.each_scale().astype(np.float64)
    return form.step(np.abs(x) / scale * (1 + 2.0**-22)) * scale / 2 + 2.0**-22 * np.abs(x)


def _finite(name: str, x: np.ndarray) -> np.ndarray:
    """``x`` in float32; one infinity or NaN would spoil the scale of its whole block."""
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        raise InputError(f"{name} must be finite in float32, but {np.count_nonzero(~np.isfinite(x))} of {x.size} are "
                         "not.")
    return x


def _format(form: str | Format) -> Format:
    if isinstance(form, Format):
        return form
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    return FORMATS[form]


# --- what it costs ----------------------------------------------------------------------------------------------------

def relative(got: np.ndarray, want: np.ndarray) -> float:
    """The error's share of the whole, root mean square."""
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def band(form: str | Format) -> tuple[float, float]:
    """Between which relative errors a float format must lie, whatever the data and the scales.

    A value in [1, 2) times a power of two is off by up to half of 2^-f of that power, 2^-f / sqrt(12) in the mean
    square if its position between two neighbours is random. That is a share between half of this (values near 2) and
    all of it (near 1). It holds as long as no value is clamped and those below the smallest normal number do not count.
    """
    form = _format(form)
    if form.fraction is None:
        raise InputError(f"{form.name} is a grid of whole numbers: its relative error depends on the data.")
    most = 2.0**-form.fraction / 12**0.5
    return most / 2, most
