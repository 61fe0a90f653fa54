"""Case 9: softmax in pieces is softmax; what a merge does to a rounded LSE; how a GPU's parts share the keys."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..arrays import UNIT_ROUNDOFF, Array, fresh, round_to_bfloat16, to_numpy
from ..ball import Ball
from ..checks.common import judge, worst_of
from ..recipe import merge_by_lse
from ..verdict import Check, Setting, Verdict, exactly
from . import decode
from .conformance import CASES, Case, build, distance, reference
from .conformance import judge as conforms
from .keys import Scratch
from .scheduler import OVERHEAD, Schedule, blocks_of, greedy, tiles
from .tiled import Running

GROWING = Case("logits that grow", 6, (50,), loud=9.0)
HELD = tuple(CASES[i] for i in (1, 3, 5, 11, 14))  # pages, queries without keys, many heads, large logits, nothing
BLOCKS, SPLITS = (16, 17, 32, 50), (1, 2, 3)
# h = 16 on an H20, batch 128, 4,096 tokens, 1 to 6 query tokens: rows, and the least and most ms that were published
# (deepseek-ai/FlashMLA#30).
PUBLISHED = (((16, 32, 48, 64), 0.601, 0.614), ((80, 96), 1.17, 1.17))


def as_it_is(lse: Array) -> Array:
    return lse


@dataclass(frozen=True)
class Rules:
    """The parts of a flash-decode kernel; a planted fault replaces one."""

    running: type[Running] = Running
    merge: Callable[[list[tuple[Array, Array]]], tuple[Array, Array]] = merge_by_lse
    keep: Callable[[Array], Array] = as_it_is  # what happens to the LSE of a split in memory
    kernel: Callable[..., tuple[Array, Array]] = decode
    schedule: Callable[[Sequence[int], int], Schedule] = greedy
    tiles: Callable[[int], int] = tiles


RIGHT = Rules()


def one_request(setting: Setting) -> tuple[Array, Array, int, tuple[Ball, Ball]]:
    """Scaled query rows ``[h, r+p]``, keys ``[s, r+p]``, r, and the right output and LSE with their radii."""
    problem = build(GROWING, setting.backend.asarray)
    found = reference(problem, GROWING)
    return (problem.q[0, 0] * problem.scale, problem.kv_cache[0, : GROWING.lengths[0]], problem.latent,
            tuple(ball.map(lambda x: np.asarray(x)[0, 0]) for ball in found))


def in_blocks(rows: Array, keys: Array, latent: int, block: int, rules: Rules = RIGHT) -> tuple[Array, Array]:
    """Online softmax of ``rows`` over ``keys``, ``block`` at a time."""
    scratch = Scratch()
    state = rules.running.start(rows, latent, scratch)
    with np.errstate(all="ignore"):  # a planted fault may overflow
        for low in range(0, keys.shape[0], block):
            k = keys[low : low + block, :]
            state.take(rows @ k.mT, k[:, :latent], scratch)
        return state.finish()


# --- the checks -------------------------------------------------------------------------------------------------------

def online(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    rows, keys, latent, wanted = one_request(setting)
    distances = []
    for block in BLOCKS:
        found = in_blocks(rows, keys, latent, block, rules)
        distances += [distance(to_numpy(got).astype(np.float64), ball)
                      for got, ball in zip(found, wanted, strict=True)]
    return judge(ONLINE, worst_of(distances), f"output and LSE, blocks of {', '.join(map(str, BLOCKS))} of 50 keys")


def splits(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    rows, keys, latent, wanted = one_request(setting)
    distances = []
    for count in SPLITS:
        each = -(-keys.shape[0] // count)
        parts = [in_blocks(rows, keys[low : low + each, :], latent, 16)
                 for low in range(0, keys.shape[0], each)]
        found = rules.merge([(out, rules.keep(lse)) for out, lse in parts])
        distances += [distance(to_numpy(got).astype(np.float64), ball)
                      for got, ball in zip(found, wanted, strict=True)]
    return judge(SPLIT, worst_of(distances), f"output and LSE, {', '.join(map(str, SPLITS))} splits of 50 keys")


def kernels(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    failed = []
    for case in HELD:
        problem = build(case, setting.backend.asarray)
        arguments = problem.q, problem.kv_cache, problem.lengths, problem.scale, problem.latent, problem.block_table
        for how in ({"kernel": "rows"}, {"kernel": "tiled", "block": 16, "splits": 3}):
            if not conforms(*rules.kernel(*arguments, **how), problem, case).ok:
                failed.append(f"{how['kernel']}: {case}")
    return exactly(KERNELS, failed, [], "NaN behind every length and in every unused page, garbage page ids")


def half_lse(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """``o = sum w_i o_i`` with every LSE off by at most d moves by at most ``(e^(2 d) - 1) sum w_i |o_i - o|``."""
    lse, out = 8 + np.arange(8) * 0.37, fresh(90)(8, 40)
    right, share = mixed(out, lse)
    spread = share @ np.abs(out - right)
    saw, ok, backend = {}, True, setting.backend.with_dtype("float64")
    for name, unit, kept in (("float16", 2.0**-11, lse.astype(np.float16)),
                             ("bfloat16", UNIT_ROUNDOFF["bfloat16"], round_to_bfloat16(lse.astype(np.float32)))):
        parts = [(backend.asarray(o[None]), backend.asarray(np.array([x], np.float64)))
                 for o, x in zip(out, kept, strict=True)]
        moved = np.abs(to_numpy(rules.merge(parts)[0])[0] - right)
        bound = math.expm1(2 * unit * lse.max()) * spread
        saw[name] = float(moved.max() / np.abs(right).max())
        ok &= bool((moved <= bound).all()) and saw[name] > 8 * UNIT_ROUNDOFF["float32"] * lse.max()
    return Verdict(HALF, saw, "seen, and inside e^(2d) - 1", None, ok, "largest move over the largest output")


def mixed(out: np.ndarray, lse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The merge in float64, by its formula, and the weights."""
    share = np.exp(lse - lse.max())
    share = share / share.sum()
    return share @ out, share


def batches() -> Iterator[tuple[list[int], int]]:
    """Lengths of requests, and parts of a GPU."""
    rng = np.random.default_rng(91)
    for parts in (1, 3, 16, 66):
        for size in (1, 5, 40):
            yield [int(n) for n in rng.geometric(1 / 3000, size)], parts
    yield [0, 64, 65, 100_000, 1], 7
    yield [10] * 500, 66


def cover(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    saw, want = [], []
    for lengths, parts in batches():
        done = {request: [] for request in range(len(lengths))}
        for part in rules.schedule(lengths, parts):
            for piece in part:
                done[piece.request] += range(piece.first, piece.first + piece.blocks)
        saw.append(list(done.values()))
        want.append([list(range(blocks_of(length))) for length in lengths])
    return exactly(COVER, saw, want, "blocks of each request in the order of the parts")


def even(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    late = []
    for lengths, parts in batches():
        share = math.ceil(sum(blocks_of(length) + OVERHEAD for length in lengths) / parts) + OVERHEAD
        times = [sum(piece.blocks + OVERHEAD for piece in part) for part in rules.schedule(lengths, parts)]
        late.append(max(0, max(times, default=0) - share))
    return exactly(EVEN, late, [0] * len(late), "blocks that the slowest part is late, for each batch")


def quantised(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    one = PUBLISHED[0][1]
    saw = [sorted({rules.tiles(rows) for rows in group}) for group, _, _ in PUBLISHED]
    want = [sorted({round(low / one), round(high / one)}) for _, low, high in PUBLISHED]
    return exactly(TILES, saw, want, "tiles of 16 to 64 rows, and of 80 and 96; times as multiples of the shortest")


ONLINE = "softmax over blocks, with a running maximum, is softmax"
SPLIT = "keys in splits, each with a softmax of its own and merged by LSE, give softmax over all of them"
KERNELS = "the kernels agree with plain attention and never read behind a length"
HALF = "an LSE kept in 16 bits moves the output, by no more than its rounding allows"
COVER = "the schedule gives each key block of each request to exactly one part"
EVEN = "no part takes longer than an even share of all blocks and cuts, and one cut more"
TILES = "published times go in steps of 64 query rows"

CHECKS = (
    Check("9.online", ONLINE, online), Check("9.splits", SPLIT, splits), Check("9.half_lse", HALF, half_lse),
    Check("9.kernels", KERNELS, kernels), Check("9.cover", COVER, cover), Check("9.even", EVEN, even),
    Check("9.tiles", TILES, quantised),
)

