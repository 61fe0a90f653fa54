"""Decode attention over the latent cache: one function, several kernels, the same numbers.

`decode` is what a serving engine calls for every layer and step, after the query has been absorbed (multiplied by
W_UK) and before the output is expanded (multiplied by W_UV): 128 query heads, one key head of r + p channels, whose
first r are also the value. Letters: b batch, t query tokens, s cached tokens, h heads, r latent, p rope.
"""
from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from ..arrays import Array, expect_shape, same_kind
from ..errors import InputError, positive_int, unknown
from .keys import Keys, Scratch

KERNELS = {  # name: its module in this package
    "rows": "rows",
    "tiled": "tiled",
    "sdpa": "sdpa",
    "triton": "triton_decode",
}
SCORES_THAT_FIT = 2**24  # bytes: up to here the whole table of scores stays in a CPU's last cache


def decode(
    q: Array, kv_cache: Array, lengths: Sequence[int] | Array, scale: float, latent: int,
    block_table: Array | None = None, *, kernel: str = "auto", scratch: Scratch | None = None, **options: Any,
) -> tuple[Array, Array]:
    """Attention of absorbed queries over the latent cache (DeepSeek-V2, arXiv 2405.04434, eq. 13-18, absorbed).

    ``out = softmax(scale q K^T) K[:, :r]`` for each request, where K is its cached rows. Query i of t sees the first
    ``length - t + i + 1`` of them (bottom-right causal); ``lengths`` counts the t new tokens. What lies in the cache
    beyond a length is never part of the result, NaN included.

    Parameters
    ----------
    q : array [b, t, h, r+p]
        Per head the absorbed query (q_nope W_UK, r wide), then the rotated rope part. Unscaled.
    kv_cache : array [b, s, r+p], or [pages, page size, r+p] with a ``block_table``
        Normed latent, then rotated rope key: the rows of `mla_lab.cache.LatentCache`.
    lengths : [b] int
        Cached tokens of each request, 0 to s.
    scale : float
        Softmax scale, a Python float: (n+p)^-1/2 of the *trained* head times mscale squared, never (r+p)^-1/2.
    latent : int
        r, the width of the value.
    block_table : array of int [b, pages a request may have], optional
        Page ids; those past a request's end are never read and may hold anything.
    kernel : str
        One of `KERNELS`, or 'auto': the fastest one measured for where the arrays live.
    scratch : Scratch, optional
        Buffers to reuse in the next step; without it they are allocated anew.
    **options
        Passed to the kernel: ``block`` and ``splits`` of 'tiled', ``splits`` of 'sdpa', ``launch`` of 'triton'.

    Returns
    -------
    output : array [b, t, h, r]
        In the dtype of ``q``; 0 where a query sees no key.
    lse : array [b, t, h]
        Natural logarithm of the sum of exponentials, float32 or wider; -inf where a query sees no key.

    Raises
    ------
    InputError
        For shapes, dtypes, lengths or page ids that do not fit together, an unknown kernel or option, or a kernel
        that cannot run here.
    """
    keys = check(q, kv_cache, lengths, scale, latent, block_table)
    name = pick(q, keys) if kernel == "auto" else str(kernel)
    run = load(name)
    if options:
        refuse_unknown(options, name, run)
    scratch = Scratch() if scratch is None else scratch
    if is_torch_array(q):
        if q.requires_grad or kv_cache.requires_grad:  # decode is inference: nothing here is recorded
            q, keys.cache = q.detach(), kv_cache.detach()
        return run(q, keys, float(scale), scratch, **options)
    with np.errstate(invalid="ignore"):  # a query that holds an infinity gets NaN, and no warning
        return run(q, keys, float(scale), scratch, **options)


@cache
def load(name: str) -> Callable[..., tuple[Array, Array]]:
    """The function of a kernel; its library is imported only now."""
    if name not in KERNELS:
        raise unknown("kernel", name, ["auto", *KERNELS])
    try:
        return import_module("." + KERNELS[name], __name__).decode
    except ModuleNotFoundError as error:
        raise InputError(f"kernel {name!r} needs {error.name}, which is not installed.") from None


def refuse_unknown(options: dict[str, Any], kernel: str, run: Callable[..., tuple[Array, Array]]) -> None:
    """Say which options a kernel has where it is given another one."""
    known = list(inspect.signature(run).parameters)[4:]  # the rest is what every kernel gets
    for name in options:
        if name not in known:
            raise InputError(f"kernel {kernel!r} has no option {name!r}; it has {', '.join(known) or 'none'}.")


def pick(q: Array, keys: Keys) -> str:
    """What ``kernel="auto"`` means for these arrays: on a CPU what `bench` found fastest, on a GPU (unmeasured) a plan.

    The fused call takes one query token at a time, so several new tokens are better folded into the rows of a product.
    """
    if is_torch_array(q) and q.device.type == "cuda":
        return "triton" if find_spec("triton") else "tiled"
    if is_torch_array(q) and q.shape[1] == 1:
        return "sdpa"
    scores = q.shape[1] * q.shape[2] * max(keys.counts) * max(4, q.dtype.itemsize)
    return "rows" if scores <= SCORES_THAT_FIT else "tiled"


def check(q: Array, kv_cache: Array, lengths: Any, scale: float, latent: int, table: Array | None) -> Keys:
    """The cache with its lengths and pages, or one sentence on what does not fit."""
    if not (hasattr(q, "shape") and hasattr(kv_cache, "shape")):
        raise InputError(f"q and kv_cache must be arrays, not {type(q).__name__} and {type(kv_cache).__name__}.")
    shape, rows = q.shape, kv_cache.shape
    if len(shape) != 4 or 0 in shape:
        expect_shape("q", q, (None, None, None, None), "[b, t, h, r+p]")
        raise InputError(f"q has shape {tuple(shape)}, but needs at least one request, token, head and channel.")
    b, width = shape[0], shape[3]
    if len(rows) != 3 or rows[2] != width or (table is None and rows[0] != b):
        expect_shape("kv_cache", kv_cache, (b if table is None else None, None, width), "these queries")
    if table is not None and rows[1] == 0:
        raise InputError("kv_cache must have pages of at least one token, not of 0.")
    if type(q) is not type(kv_cache) or q.dtype != kv_cache.dtype or q.device != kv_cache.device:
        same_kind(q=q, kv_cache=kv_cache)  # which says what differs, and takes its time
    if not (q.dtype.is_floating_point if is_torch_array(q) else q.dtype.kind == "f") or q.dtype.itemsize < 2:
        raise InputError(f"q must hold floating-point numbers of 16 bits or more, not {q.dtype}.")
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not 0 < scale <= sys.float_info.max:
        raise InputError(f"scale must be a positive Python float, not {scale!r}.")
    if positive_int("latent", latent) > width:
        raise InputError(f"latent must be at most the width of a cached row, {width}, not {latent}.")
    return Keys(kv_cache, lengths, table, b, int(latent))
