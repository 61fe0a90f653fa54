"""Split-KV flash decode for CUDA in Triton: the loop of `mla_lab.kernels.tiled`, one program a tile.

A program owns M rows (query token x head) of one request and one split of its keys. It reads a key row once and uses it
twice, as key and as value. A second kernel merges the splits by LSE. With ``TRITON_INTERPRET=1`` set before this module
is imported, the same code runs on a CPU, in float32 and float16 (in the interpreter of Triton 3.9.0 a bfloat16 ``dot``
is wrong). No GPU has run it yet: block sizes and candidates are a plan, not a measurement.
"""
from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from ..arrays import Array
from ..errors import InputError, positive_int
from .keys import Keys, Scratch

LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


# Triton compiles anew where an integer is 1 or a multiple of 16; these may change from step to step.
@triton.jit(do_not_specialize=["tokens", "heads", "table_width", "splits"])
def attend_split(
    q, cache, table, lengths, out, lse, scale_log2, tokens, heads, table_width, page_stride, row_stride,
    page_size, splits, R: tl.constexpr, P: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr,
):
    row = tl.program_id(0) * M + tl.arange(0, M)  # [M]  token * heads + head
    split, request = tl.program_id(1), tl.program_id(2)
    rows, length = tokens * heads, tl.load(lengths + request)
    seen = length - tokens + row // heads + 1  # [M]  keys that a row sees, bottom-right
    r, p = tl.arange(0, BR), tl.arange(0, BP)  # padded to powers of two, masked by R and P
    here = (request * rows + row).to(tl.int64)
    in_r, in_p = (row < rows)[:, None] & (r < R)[None, :], (row < rows)[:, None] & (p < P)[None, :]
    q_latent = tl.load(q + (here * (R + P))[:, None] + r[None, :], mask=in_r, other=0.0)  # [M, BR]
    q_rope = tl.load(q + (here * (R + P) + R)[:, None] + p[None, :], mask=in_p, other=0.0)  # [M, BP]
    summed = tl.zeros([M, BR], tl.float32)
    total = tl.zeros([M], tl.float32)
    top = tl.full([M], -float("inf"), tl.float32)  # in units of log2: exp2 is one instruction
    each = tl.cdiv(tl.cdiv(length, N), splits) * N
    end = tl.minimum((split + 1) * each, length)
    for low in range(split * each, end, N):
        key = low + tl.arange(0, N)  # [N]
        real = key < end
        page = tl.load(table + request * table_width + key // page_size, mask=real, other=0).to(tl.int64)
        at = cache + (page * page_stride + (key % page_size) * row_stride)[:, None]
        # Masked loads: what lies beyond a length is never read, so no NaN of it can reach a product.
        latent = tl.load(at + r[None, :], mask=real[:, None] & (r < R)[None, :], other=0.0)  # [N, BR]
        rope = tl.load(at + R + p[None, :], mask=real[:, None] & (p < P)[None, :], other=0.0)  # [N, BP]
        logits = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")  # [M, N]
        logits += tl.dot(q_rope, tl.trans(rope), input_precision="ieee")
        visible = real[None, :] & (key[None, :] < seen[:, None])
        logits = tl.where(visible, logits * scale_log2, -float("inf"))
        grown = tl.maximum(top, tl.max(logits, 1))
        shift = tl.where(grown == -float("inf"), 0.0, grown)
        weights = tl.exp2(logits - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(weights, 1)
        summed = summed * shrink[:, None]
        summed += tl.dot(weights.to(latent.dtype), latent, input_precision="ieee")
        top = grown
    safe = tl.where(total == 0, 1.0, total)
    to = here * splits + split
    tl.store(out + (to * R)[:, None] + r[None, :], (summed / safe[:, None]).to(out.dtype.element_ty), mask=in_r)
    tl.store(lse + to, tl.where(total == 0, -float("inf"), (tl.log2(safe) + top) * LN2), mask=row < rows)


@triton.jit
def merge_splits(parts, part_lse, out, lse, R, SPLITS, BS: tl.constexpr, BR: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    s, r = tl.arange(0, BS), tl.arange(0, BR)
    lses = tl.load(part_lse + row * SPLITS + s, mask=s < SPLITS, other=-float("inf"))  # [BS]
    top = tl.max(lses, 0)
    top = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp(lses - top)
    total = tl.sum(weights, 0)
    safe = tl.where(total == 0, 1.0, total)
    inside = (s < SPLITS)[:, None] & (r < R)[None, :]
    part = tl.load(parts + ((row * SPLITS + s) * R)[:, None] + r[None, :], mask=inside, other=0.0)  # [BS, BR]
    merged = tl.sum(part * weights[:, None], 0) / safe
    tl.store(out + row * R + r, merged.to(out.dtype.element_ty), mask=r < R)
    tl.store(lse + row, tl.where(total == 0, -float("inf"), tl.log(safe) + top))


@dataclass(frozen=True)
class Launch:
    """How the work is cut: M rows and N keys a program, splits of the keys, warps, and pipeline stages."""

    m: int = 16
    n: int = 32
    splits: int = 1
    warps: int = 4
    stages: int = 2

    def __post_init__(self):
        for name, least in (("m", 16), ("n", 16), ("splits", 1), ("warps", 1), ("stages", 1)):
            value = positive_int(name, getattr(self, name), least)
            if name in "mn" and value & (value - 1):
                raise InputError(f"{name} must be a power of two, not {value}.")


def decode(q: Array, keys: Keys, scale: float, scratch: Scratch, launch: Launch | None = None) -> tuple[Array, Array]:
    """Called by `mla_lab.kernels.decode`; without a ``launch`` the fastest one is measured once for each shape."""
    import torch
    interpreted = not isinstance(attend_split, triton.JITFunction)
    if not isinstance(q, torch.Tensor) or not (interpreted or q.is_cuda):
        raise InputError("kernel 'triton' takes torch tensors on a CUDA GPU (or TRITON_INTERPRET=1, set at the start).")
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or (interpreted and q.dtype == torch.bfloat16):
        raise InputError(f"kernel 'triton' does not take {q.dtype} here; use float16 or float32.")
    if not (launch is None or isinstance(launch, Launch)):
        raise InputError(f"launch must be a Launch, not {launch!r}.")
    if keys.cache.stride(2) != 1:
        raise InputError("kernel 'triton' needs a cache whose rows are contiguous.")
    at = {"dtype": torch.int32, "device": q.device}
    lengths, b = torch.as_tensor(keys.lengths, **at).contiguous(), q.shape[0]
    table = torch.arange(b, **at)[:, None] if keys.table is None else torch.as_tensor(keys.table, **at).contiguous()
    run = lambda how: run_once(q.contiguous(), keys, lengths, table, scale, scratch, how)
    return run(launch or (Launch() if interpreted else tuned(q, keys, run)))


def run_once(
    q: Array, keys: Keys, lengths: Array, table: Array, scale: float, scratch: Scratch, how: Launch
) -> tuple[Array, Array]:
    """Both kernels; where there is one split, the first writes the result itself."""
    import torch
    (b, t, h, width), r, cache = q.shape, keys.latent, keys.cache
    wide = q.new_empty(0, dtype=torch.float32)
    out, lse = q.new_empty(b, t, h, r), wide.new_empty(b, t, h)
    parts = (out, lse) if how.splits == 1 else (
        scratch("parts", (b, t, h, how.splits, r), wide), scratch("part_lse", (b, t, h, how.splits), wide))
    br, bp = (max(16, triton.next_power_of_2(n)) for n in (r, width - r))  # a dot wants at least 16
    attend_split[(triton.cdiv(t * h, how.m), how.splits, b)](
        q, cache, table, lengths, *parts, scale * LOG2E.value, t, h, table.shape[1], *cache.stride()[:2],
        cache.shape[1], how.splits, r, width - r, br, bp, how.m, how.n, num_warps=how.warps, num_stages=how.stages,
        enable_fp_fusion=True)
    if how.splits > 1:
        merge_splits[(b * t * h,)](
            *parts, out, lse, r, how.splits, triton.next_power_of_2(how.splits), br, enable_fp_fusion=True)
    return out, lse


# M, N, warps, stages. 64 rows fill the matrix unit of a Hopper GPU and 64 keys, twice in flight, its shared memory; 16
# rows are for 16 heads, where the unit waits for memory anyway.
CANDIDATES = ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 2), (64, 32, 8, 3), (64, 16, 8, 3), (32, 32, 4, 2),
              (32, 64, 8, 2), (16, 64, 4, 2), (16, 64, 8, 2), (16, 32, 4, 2), (16, 32, 4, 3))
CHOSEN: dict[tuple, Launch] = {}


def tuned(q: Array, keys: Keys, run) -> Launch:
    """The fastest launch for such queries and such room in the cache, both kernels timed together.

    Triton's own autotuner would time the first kernel alone, which always looks best with many splits.
    """
    import torch
    (b, t, h, width), r = q.shape, keys.latent
    key = (q.device, q.dtype, b, t * h, width, r, keys.cache.shape[1], triton.next_power_of_2(keys.capacity))
    if key not in CHOSEN:
        times = {}
        processors = torch.cuda.get_device_properties(q.device).multi_processor_count
        for m, n, warps, stages in CANDIDATES:
            if m > 16 and m >= 2 * t * h:
                continue
            fill = processors / (b * triton.cdiv(t * h, m))  # splits that give every processor one tile
            most = min(64, triton.cdiv(keys.capacity, n))
            for splits in sorted({max(1, min(most, round(fill * k))) for k in (0, 1, 2)}):
                how = Launch(m, n, splits, warps, stages)
                try:
                    times[how] = triton.testing.do_bench(lambda how=how: run(how), warmup=5, rep=20)
                except triton.runtime.errors.OutOfResources:  # more shared memory or registers than there are
                    continue
        CHOSEN[key] = min(times, key=times.get)
    return CHOSEN[key]
