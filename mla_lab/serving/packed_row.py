"""The packed row of an fp8 latent cache, byte by byte: 512 e4m3 codes, 4 float32 scales, 64 bf16 rope values.

For DeepSeek's dimensions 512 + 16 + 128 = 656 bytes a token and layer (README of deepseek-ai/FlashMLA; ``fp8_ds_mla``
in vLLM). All numbers are little-endian. The rope key keeps its 16 bits.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..arrays import expect_shape, round_to_bfloat16
from ..errors import InputError
from ..fp8 import E4M3, encode
from .quantize import STORING, TILE, Stored, Storing, quantize


class Parts(NamedTuple):
    """What a packed row holds, as stored: nothing is interpreted, so that any bytes come back as they were."""

    codes: np.ndarray  # uint8 [s, r]
    scales: np.ndarray  # float32 [s, tiles]
    rope: np.ndarray  # uint16 [s, p], the bits of bf16


def sizes(latent: int = 512, rope: int = 64) -> dict[str, int]:
    """Bytes of each part of a row."""
    return {"codes": latent, "scales": 4 * -(-latent // TILE), "rope": 2 * rope}


def join(parts: Parts, rules: Storing = STORING) -> np.ndarray:
    """Packed rows, uint8 ``[s, 656]``."""
    raw = {"codes": parts.codes, "scales": parts.scales.astype("<f4", copy=False).view(np.uint8),
           "rope": parts.rope.astype("<u2", copy=False).view(np.uint8)}
    return np.concatenate([raw[name] for name in rules.row], axis=1)


def split(rows: np.ndarray, latent: int = 512, rope: int = 64, rules: Storing = STORING) -> Parts:
    """The parts of packed rows.

    Raises
    ------
    InputError
        If the rows are not bytes of the right number.
    """
    each, rows = sizes(latent, rope), np.asarray(rows)
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != sum(each.values()):
        raise InputError(f"packed rows must be uint8 [s, {sum(each.values())}] for a latent of {latent} and a rope key "
                         f"of {rope}, not {rows.dtype} {rows.shape}.")
    raw, at = {}, 0
    for name in rules.row:
        raw[name] = np.ascontiguousarray(rows[:, at : at + each[name]])
        at += each[name]
    return Parts(raw["codes"], raw["scales"].view("<f4"), raw["rope"].view("<u2"))


def pack(c_kv: np.ndarray, k_rope: np.ndarray, rules: Storing = STORING) -> np.ndarray:
    """Rows ``[s, r]`` and ``[s, p]`` as bytes: the latent in e4m3 with a scale for each tile, the rope key in bf16."""
    stored = quantize(c_kv, "e4m3", "tile", rules)
    expect_shape("k_rope", k_rope, (len(c_kv), None), "a rope key for each latent")
    bits = round_to_bfloat16(np.asarray(k_rope, np.float32)).view(np.uint32) >> 16
    return join(Parts(encode(stored.numbers), stored.scales, bits.astype(np.uint16)), rules)


def unpack(
    rows: np.ndarray, latent: int = 512, rope: int = 64, rules: Storing = STORING
) -> tuple[np.ndarray, np.ndarray]:
    """``c_kv [s, r]`` and ``k_rope [s, p]`` in float32: codes times scales, each rounded once."""
    parts = split(rows, latent, rope, rules)
    c_kv = Stored(E4M3[parts.codes], parts.scales, (1, TILE)).read(rules)
    return c_kv, (parts.rope.astype(np.uint32) << 16).view(np.float32)
