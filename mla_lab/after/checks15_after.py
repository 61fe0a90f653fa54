"""Case 15: what came after MLA does what it says: same numbers where it is exact, fewer bytes where it saves."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from .. import exact
from .. import footprint as fp
from ..arrays import Array, fresh, to_numpy
from ..attention import Projected, attend, scores_absorb, values_absorb
from ..checks.case4_absorption import head_arrays
from ..checks.common import SMALL, under_test
from ..models import Model, get_model
from ..recipe import RIGHT as RIGHT_RECIPE
from ..verdict import Check, Setting, Verdict, exactly
from .convert import gqa_as_mla, jointly
from .faults15 import FAULTS
from .grouped import as_mla, consecutive, gla_scores, gta_row
from .sizes import METHODS
from .sparse import best_visible, index_scores, relu
from .split import hadamard, shard_scores

V32 = get_model("DeepSeek-V3.2")
HEADS, GROUPS, TOKENS, CACHED = 6, 2, 3, 11


def one_for_all_heads(model: Model) -> int:
    """Bytes of a token's index keys in all layers, fp8 with a scale."""
    return fp.index_bytes(model)


def both_turned(q: Array, c: Array, basis: Array) -> tuple[Array, Array]:
    """Query and latent in the new basis: their product is what it was, times the basis' length."""
    return q @ basis, c @ basis


def as_counted(method: str, values: int) -> int:
    return values


@dataclass(frozen=True)
class Rules:
    """What the successors have to get right. The defaults are right."""

    activation: Callable[[Array], Array] = relu
    choose: Callable[[Array, Array, int], Array] = best_visible
    index_bytes: Callable[[Model], int] = one_for_all_heads
    values: Callable[[str, int], int] = as_counted
    group_of: Callable[[int, int, int], int] = consecutive
    turn: Callable[[Array, Array, Array], tuple[Array, Array]] = both_turned
    factors: Callable[[Array, Array], tuple[Array, Array, Array]] = jointly


RIGHT = Rules()


def sizes(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    saw = {m.name: [rules.values(m.name, m.on(n)) for n in (1, 2, 8)] for m in METHODS}
    want = {"MHA": [32_768, 16_384, 4096], "GQA-8": [2048, 1024, 256], "MQA": [256] * 3, "MLA": [576] * 3,
            "MLA + DSA": [704] * 3, "GTA-8": [1088, 576, 192], "GLA-2": [576, 320, 320], "TPLA": [576, 320, 128],
            "TransMLA": [576] * 3}
    return exactly(SIZES, saw, want, "values for a token and layer on each of 1, 2 and 8 tensor-parallel GPUs")


def index_keys(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """V3.2's row in FlashMLA's FP8 layout is 656 B, and 132 B for the index key beside it."""
    rows, keys = fp.bytes_per_token(V32, "fp8-tile"), rules.index_bytes(V32)
    saw = {"latents": rows, "index keys": keys, "both a layer": Fraction(rows + keys, V32.cache_layers)}
    return exactly(KEYS, saw, {"latents": 61 * 656, "index keys": 61 * 132, "both a layer": 788},
                   "bytes of a token, FP8 layouts, 61 layers without multi-token prediction")


def integers(setting: Setting, seed: int, *shape: int) -> Array:
    """Whole numbers from -3 to 3: every product and sum of a few of them is exact in any order."""
    numbers = np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float64)
    return setting.backend.with_dtype("float64").asarray(numbers)


def small_index(setting: Setting) -> tuple[Array, Array, Array, Array]:
    """Index queries, keys and weights, and which keys each of the last `TOKENS` of `CACHED` tokens sees."""
    q, k, w = (integers(setting, seed, *shape) for seed, shape in (
        (1, (2, TOKENS, 4, 5)), (2, (2, CACHED, 5)), (3, (2, TOKENS, 4))))
    at = setting.backend.xp.arange(CACHED, device=setting.backend.device)
    return q, k, w, (at[None, :] <= CACHED - TOKENS + at[:TOKENS, None])[None, ...]


def scored(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    q, k, w, _ = small_index(setting)
    saw = to_numpy(index_scores(q, k, w, rules.activation))
    q, k, w = map(to_numpy, (q, k, w))
    want = [[[sum(w[b, t, j] * max(0, q[b, t, j] @ k[b, s]) for j in range(4)) for s in range(CACHED)]
             for t in range(TOKENS)] for b in range(2)]
    return exactly(SCORES, int(np.sum(saw != want)), 0, f"of {saw.size} scores, whole numbers, head by head")


def chosen(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Against sorting in plain Python; some scores are equal."""
    q, k, w, visible = small_index(setting)
    scores, wrong = index_scores(q, k, w), 0
    plain, seen = to_numpy(scores), np.broadcast_to(to_numpy(visible), scores.shape)
    for kept in (1, 4, CACHED - 1):
        saw = to_numpy(rules.choose(scores, visible, kept))
        for b, t in np.ndindex(2, TOKENS):
            best = sorted((s for s in range(CACHED) if seen[b, t, s]), key=lambda s, b=b, t=t: (-plain[b, t, s], s))
            wrong += set(best[:kept]) != set(np.flatnonzero(saw[b, t]).tolist())
    return exactly(CHOSEN, wrong, 0, f"of {3 * 2 * TOKENS} choices of 1, 4 and {CACHED - 1} keys")


def dense(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """To the bit where k covers all that is cached; and not so where it does not, or nothing would be sparse."""
    backend, recipe = setting.backend, under_test(setting)
    heads, (_, _, _, visible) = head_arrays(SMALL, backend, TOKENS, CACHED, 150), small_index(setting)
    scores = backend.asarray(fresh(151)(1, TOKENS, CACHED))

    def output(mask: Array) -> np.ndarray:
        return to_numpy(attend(heads.q, heads.q.c_kv, heads.q.k_rope, *heads.split(recipe, SMALL), SMALL,
                               mask[:, None, :, :], recipe=recipe).heads)
    whole = output(visible)
    saw = {k: bool(np.array_equal(output(rules.choose(scores, visible, k)), whole)) for k in (4, CACHED, 2 * CACHED)}
    return exactly(DENSE, saw, {4: False, CACHED: True, 2 * CACHED: True}, "keys kept: equal to dense attention?")


def group_latents(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """GLA against MLA on the latents side by side, whose up-projections are zero for the other group."""
    backend, n, r = setting.backend, 5, 8
    store = exact.exact_store(GROUPS * r)
    q, latents, w_uk = (exact.residues(backend, 152 + i, *shape) for i, shape in enumerate((
        (1, HEADS, TOKENS, n), (1, GROUPS, CACHED, r), (HEADS, n, r))))
    saw = gla_scores(q, latents, w_uk, rules.group_of, store)
    xp, nothing = backend.xp, exact.residues(backend, 0, 1, HEADS, TOKENS, 2) * 0
    joined = xp.concat([latents[:, g, :, :] for g in range(GROUPS)], axis=-1)
    recipe = replace(RIGHT_RECIPE, store=store)
    mla = scores_absorb(Projected(q, nothing, None, None), joined, nothing[:, 0, :1, :] + 0 * joined[..., :2],
                        as_mla(w_uk, GROUPS), recipe)
    return exactly(GLA, different(saw, mla), 0, f"of {HEADS * TOKENS * CACHED} scores, integers modulo {exact.PRIME}")


def different(a: Array, b: Array) -> int:
    """How many numbers of two arrays differ modulo `PRIME`."""
    return int(np.sum(to_numpy(exact.modulo(a)) != to_numpy(exact.modulo(b))))


def tied(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """GTA's keys and values, and the scores of its heads, against loops over single numbers."""
    d, backend = 8, setting.backend
    q, state, k_rope = (exact.residues(backend, 156 + i, *shape) for i, shape in enumerate((
        (1, HEADS, TOKENS, d), (1, GROUPS, CACHED, d), (1, CACHED, d // 2))))
    keys, values = gta_row(state, k_rope)
    saw = backend.xp.stack([exact.modulo(q[:, i, :, :] @ keys[:, rules.group_of(i, HEADS, GROUPS), :, :].mT)
                            for i in range(HEADS)], axis=1)
    q, one, rope = (to_numpy(x).astype(int)[0] for x in (q, state, k_rope))
    want = np.zeros((HEADS, TOKENS, CACHED))
    for i, t, s in np.ndindex(want.shape):
        group = 0 if i < HEADS // GROUPS else 1
        key = [*one[group, s, : d // 2], *rope[s]]
        want[i, t, s] = sum(int(a) * int(b) for a, b in zip(q[i, t], key, strict=True)) % exact.PRIME
    cached = [state.shape[1] * d + k_rope.shape[-1], keys.shape[1] * d + values.shape[1] * d]
    return exactly(GTA, [int(np.sum(to_numpy(saw)[0] != want)), cached], [0, [GROUPS * d + d // 2, 2 * GROUPS * d]],
                   f"scores that differ of {want.size}; values cached for a token, and by GQA")


def dealt_out(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Partial scores of 2 and 4 ranks, added, in a basis that mixes the channels."""
    backend, r, counts = setting.backend, 16, {}
    q, c = (exact.residues(backend, 160 + i, *shape) for i, shape in enumerate((
        (1, HEADS, TOKENS, r), (1, CACHED, r))))
    store, basis = exact.exact_store(r), backend.with_dtype("float64").asarray(hadamard(r))
    turned = [exact.modulo(x) for x in rules.turn(q, c, basis)]
    for ranks in (2, 4):
        total = exact.modulo(sum(shard_scores(*turned, ranks, store)))
        counts[ranks] = different(total * pow(r, -1, exact.PRIME), store(q @ c[:, None, :, :].mT))
    return exactly(TPLA, counts, {2: 0, 4: 0}, f"scores that differ of {HEADS * TOKENS * CACHED}, modulo {exact.PRIME}")


def gqa_layer(setting: Setting) -> tuple[Array, Array, Array]:
    """Hidden states ``[1, s, d]`` and the key and value projections of two groups, of rank 9 together.

    Keys and values of real layers are correlated; here 9 directions make up all 20 rows.
    """
    n, v, d, rank = 6, 4, 24, 9
    hidden, up, down = (exact.residues(setting.backend, 164 + i, *shape) for i, shape in enumerate((
        (1, CACHED, d), (GROUPS * (n + v), rank), (rank, d))))
    both = exact.exact_store(rank)(up @ down)
    return hidden, both[: GROUPS * n, :], both[GROUPS * n :, :]


def joint_rank(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    hidden, w_k, w_v = gqa_layer(setting)
    width = rules.factors(w_k, w_v)[2].shape[0]
    keys, values = (exact.modulo(hidden[0, ...] @ w.mT) for w in (w_k, w_v))
    xp = setting.backend.xp
    ranks = [exact.rank_modulo(xp.concat(pair, axis=axis)) for pair, axis in (((w_k, w_v), 0), ((keys, values), 1))]
    apart = sum(exact.rank_modulo(w) for w in (w_k, w_v))
    return exactly(RANK, [width, *ranks, apart], [9, 9, 9, 17],
                   f"latent width, rank of the weights, rank of [K, V] over {CACHED} tokens; two latents need the last")


def converted(setting: Setting, rules: Rules = RIGHT) -> Verdict:
    """Scores and averages of the GQA layer, and of the absorbed MLA layer made of it."""
    backend, xp = setting.backend, setting.backend.xp
    hidden, w_k, w_v = gqa_layer(setting)
    n, v, store = w_k.shape[0] // GROUPS, w_v.shape[0] // GROUPS, exact.exact_store(24)
    q, p = (exact.residues(backend, 168 + i, 1, HEADS, TOKENS, width) for i, width in enumerate((n, CACHED)))
    keys, values = ([store(hidden @ w[g * m : (g + 1) * m, :].mT) for g in range(GROUPS)]
                    for w, m in ((w_k, n), (w_v, v)))
    own = [consecutive(i, HEADS, GROUPS) for i in range(HEADS)]
    scores = xp.stack([store(q[:, i, :, :] @ keys[own[i]].mT) for i in range(HEADS)], axis=1)
    averages = xp.stack([store(p[:, i, :, :] @ values[own[i]]) for i in range(HEADS)], axis=1)
    down, w_uk, w_uv = gqa_as_mla(w_k, w_v, HEADS, GROUPS, rules.factors, rules.group_of)
    c_kv, recipe = store(hidden @ down.mT), replace(RIGHT_RECIPE, store=store)
    nothing = Projected(q, 0 * q[..., :2], None, None)
    saw = [different(scores_absorb(nothing, c_kv, 0 * c_kv[..., :2], w_uk, recipe), scores),
           different(values_absorb(p, c_kv, w_uv, recipe), averages)]
    return exactly(CONVERTED, saw, [0, 0], f"scores and outputs that differ, {HEADS} heads in {GROUPS} groups, modulo "
                                           f"{exact.PRIME}; content channels, no rotation")


SIZES = "each successor caches the values that its formula says, on one and on several GPUs"
KEYS = "DSA adds an index key of 132 B to MLA's row of 656 B, one for all index heads"
SCORES = "an index score is the weighted sum of what each index head finds, negative finds counted as none"
CHOSEN = "each query keeps the k best of the keys that it may see, and all of them if they are fewer"
DENSE = "sparse attention equals dense attention to the bit as soon as k covers what is cached"
GLA = "GLA is MLA whose up-projections are zero outside a head's own latent, to the bit modulo a prime"
GTA = "GTA's heads read key and value out of one tied state and a shared rope key: half of GQA's cache and d/2"
TPLA = "scores of dealt-out latent channels add up to MLA's to the bit, in another basis too"
RANK = "the latent of a converted GQA layer is as wide as the joint rank of its key and value projections"
CONVERTED = "a GQA layer converted to MLA gives the same scores and outputs to the bit, modulo a prime"

__all__ = ["CHECKS", "FAULTS", "RIGHT", "Rules"]

CHECKS = (
    Check("15.sizes", SIZES, sizes), Check("15.index_keys", KEYS, index_keys), Check("15.scores", SCORES, scored),
    Check("15.chosen", CHOSEN, chosen), Check("15.dense", DENSE, dense), Check("15.gla", GLA, group_latents),
    Check("15.gta", GTA, tied), Check("15.tpla", TPLA, dealt_out), Check("15.joint_rank", RANK, joint_rank),
    Check("15.converted", CONVERTED, converted),
)
