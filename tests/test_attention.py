"""Properties of the layer over random shapes, on every backend, against bounds read off the formulas."""
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mla_lab.arrays import fresh, get_backend, to_numpy
from mla_lab.attention import Projected, attend, softmax, visible_keys
from mla_lab.ball import Rounding
from mla_lab.bounds import ball, compare
from mla_lab.cache import LatentCache
from mla_lab.checks.common import BALLS, SMALL, ball_weights
from mla_lab.config import MLAConfig, Yarn
from mla_lab.decode import attend_in_chunks, forward, full_recompute
from mla_lab.recipe import RIGHT, merge_by_lse, zero_unused
from mla_lab.reference import grouped_query_attention
from mla_lab.weights import NAMES, OPTIONAL, MLAWeights, random_state, shapes

QUICK = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


# Where published models leave DeepSeek's layer.
DEPARTURES = ({}, {"attention_bias": True}, {"mla_use_nope": True}, {"mla_scale_kv_lora": True},
              {"output_gate": "head"}, {"output_gate": "value", "attention_bias": True})


@st.composite
def configs(draw):
    size = st.integers(1, 9)
    return MLAConfig(
        hidden_size=draw(st.integers(2, 12)), num_attention_heads=draw(size), q_lora_rank=draw(st.none() | size),
        kv_lora_rank=draw(size), qk_nope_head_dim=draw(size), qk_rope_head_dim=2 * draw(st.integers(1, 5)),
        v_head_dim=draw(size), rope_interleave=draw(st.booleans()), **draw(st.sampled_from(DEPARTURES)),
        rope_scaling=draw(st.none() | st.builds(Yarn, factor=st.sampled_from([1, 4.0, 40]))))


def radius(state, hidden, config, backend):
    return full_recompute(
        ball(hidden, Rounding.of(backend)), ball_weights(state, config, backend), config, recipe=BALLS
    )


@QUICK
@given(configs(), st.integers(1, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 99),
       st.sampled_from(["numpy", "torch"]))
def test_any_split_of_any_layer_equals_the_full_recompute(config, batch, pieces, seed, name):
    backend = get_backend(name)
    state = random_state(config, backend, seed)
    weights = MLAWeights.from_hugging_face(state, config)
    hidden = backend.asarray(fresh(seed + 1)(batch, sum(pieces), config.hidden_size))
    cache, at, outs = LatentCache.allocate(config, batch, sum(pieces) + 1, backend, fill=math.nan), 0, []
    for i, size in enumerate(pieces):
        out, cache = forward(hidden[:, at : at + size, :], weights, config, cache, ("absorb", "naive")[i % 2])
        outs.append(out)
        at += size
    full, sphere = full_recompute(hidden, weights, config), radius(state, hidden, config, backend)
    assert cache.lengths == (sum(pieces),) * batch
    distance = compare(backend.xp.concat(outs, axis=1), full, sphere, sphere)
    assert distance.ok or distance.kind == "vacuous", distance
    np.testing.assert_allclose(to_numpy(full), to_numpy(backend.xp.concat(outs, axis=1)), rtol=1e-9, atol=1e-9)


def test_every_backend_and_dtype_agrees_with_float64(backend_and_dtype):
    backend = backend_and_dtype
    state = random_state(SMALL, backend, 3)
    hidden = backend.asarray(fresh(4)(2, 7, SMALL.hidden_size))
    recipe = replace(RIGHT, store=backend.store)
    out = full_recompute(hidden, MLAWeights.from_hugging_face(state, SMALL), SMALL, "absorb", recipe)
    sphere = radius(state, hidden, SMALL, backend)
    assert out.dtype == hidden.dtype and out.shape == hidden.shape
    assert compare(out, sphere.value, sphere, sphere).ok


@pytest.mark.parametrize("pairs", [True, False])
def test_both_pairings_are_right_for_weights_trained_that_way(backend, pairs):
    """Permuting the rope rows of the weights from interleaved to half-split changes no output."""
    from mla_lab.rope import half_split_order
    config = replace(SMALL, rope_interleave=True)
    state = random_state(config, backend, 5)
    hidden = backend.asarray(fresh(6)(1, 5, config.hidden_size))
    order, p, r = half_split_order(config.qk_rope_head_dim), config.qk_rope_head_dim, config.kv_lora_rank
    down = to_numpy(state["kv_a_proj_with_mqa.weight"]).copy()
    up = to_numpy(state["q_b_proj.weight"]).reshape(config.num_attention_heads, config.qk_head_dim, -1).copy()
    down[r:] = down[r:][order]
    up[:, -p:] = up[:, -p:][:, order]
    other = state | {
        "kv_a_proj_with_mqa.weight": backend.asarray(down),
        "q_b_proj.weight": backend.asarray(up.reshape(-1, up.shape[-1])),
    }
    want = full_recompute(hidden, MLAWeights.from_hugging_face(state, config), config)
    got = full_recompute(
        hidden, MLAWeights.from_hugging_face(other, config), replace(config, rope_interleave=not pairs)
    )
    same = np.allclose(to_numpy(want), to_numpy(got), rtol=1e-12, atol=1e-12)
    assert same == pairs  # and read with the wrong pairing they differ


def naive_reference(q, k, v, scale, visible):
    """Head by head, key by key, with Python loops: shares no code with the package."""
    out, lse = np.zeros((*q.shape[:3], v.shape[-1])), np.full(q.shape[:3], -np.inf)
    for b, h, t in np.ndindex(*q.shape[:3]):
        g = h // (q.shape[1] // k.shape[1])
        seen = [s for s in range(k.shape[2]) if visible[b, 0, t, s]]
        if seen:
            logits = [scale * float(q[b, h, t] @ k[b, g, s]) for s in seen]
            top = max(logits)
            weights = [math.exp(x - top) for x in logits]
            lse[b, h, t] = top + math.log(sum(weights))
            out[b, h, t] = sum(w * v[b, g, s] for w, s in zip(weights, seen, strict=True)) / sum(weights)
    return out, lse


@pytest.mark.parametrize("groups", [1, 2, 6], ids=["MQA", "GQA", "MHA"])
def test_grouped_query_attention_against_loops(backend, groups):
    draw, a = fresh(7), backend.asarray
    q, k, v = draw(2, 6, 3, 5), draw(2, groups, 7, 5), draw(2, groups, 7, 4)
    seen = visible_keys((4, 0), (7, 2), 3, 7, a(q))
    heads, lse = grouped_query_attention(a(q), a(k), a(v), 0.3, seen)
    want, want_lse = naive_reference(q, k, v, 0.3, to_numpy(seen))
    np.testing.assert_allclose(to_numpy(heads), want, atol=1e-13)
    np.testing.assert_allclose(to_numpy(lse), want_lse, atol=1e-13)


@pytest.mark.parametrize("mode", ["naive", "absorb"])
def test_attend_against_loops(backend, mode):
    """Naive keys, built here from nothing but the definition, against both modes of the package."""
    draw, a, h, r, n, p, v = fresh(8), backend.asarray, 3, 11, 4, 6, 5
    config = MLAConfig(
        hidden_size=9, num_attention_heads=h, kv_lora_rank=r, qk_nope_head_dim=n, qk_rope_head_dim=p, v_head_dim=v
    )
    q_nope, q_rope, c, k_rope = draw(2, h, 3, n), draw(2, h, 3, p), draw(2, 7, r), draw(2, 7, p)
    w_uk, w_uv = draw(h, n, r), draw(h, r, v)
    seen = visible_keys((4, 0), (7, 2), 3, 7, a(q_nope))
    got = attend(
        Projected(a(q_nope), a(q_rope), a(c), a(k_rope)), a(c), a(k_rope), a(w_uk), a(w_uv), config, seen, mode
    )
    keys = np.concatenate([np.einsum("bsr,hnr->bhsn", c, w_uk), np.repeat(k_rope[:, None], h, axis=1)], axis=-1)
    want, lse = naive_reference(np.concatenate([q_nope, q_rope], -1), keys, np.einsum("bsr,hrv->bhsv", c, w_uv),
                                (n + p) ** -0.5, to_numpy(seen))
    np.testing.assert_allclose(to_numpy(got.heads), want, atol=1e-12)
    np.testing.assert_allclose(to_numpy(got.lse), lse, atol=1e-12)


@pytest.mark.parametrize("heads", [1, 3, 12, 96])
def test_aiter_548_any_number_of_heads_and_padding_changes_nothing(heads):
    config = replace(SMALL, num_attention_heads=heads)
    draw = fresh(9)
    q = Projected(draw(1, heads, 2, 10), draw(1, heads, 2, 6), draw(1, 5, 32), draw(1, 5, 6))
    w_uk, w_uv, seen = draw(heads, 10, 32), draw(heads, 32, 14), visible_keys((3,), (5,), 2, 5, q.c_kv)
    got = attend(q, q.c_kv, q.k_rope, w_uk, w_uv, config, seen).heads
    pad = [*range(heads), *[0] * (-heads % 16)]
    padded = attend(
        Projected(q.q_nope[:, pad], q.q_rope[:, pad], q.c_kv, q.k_rope),
        q.c_kv,
        q.k_rope,
        w_uk[pad],
        w_uv[pad],
        config,
        seen,
    ).heads
    np.testing.assert_allclose(padded[:, :heads], got, rtol=1e-13, atol=1e-13)


def test_pai_megatron_528_value_width_is_its_own_and_zero_padding_is_harmless():
    draw = fresh(10)
    q, k, v = draw(1, 3, 2, 6), draw(1, 3, 4, 6), draw(1, 3, 4, 1)
    seen = np.ones((1, 1, 2, 4), bool)
    padded = np.concatenate([v, np.zeros((1, 3, 4, 5))], axis=-1)
    a, b = (grouped_query_attention(q, k, x, 0.4, seen)[0] for x in (v, padded))
    np.testing.assert_allclose(b[..., :1], a, rtol=1e-14)
    assert (b[..., 1:] == 0).all()


@QUICK
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_merging_any_chunks_equals_one_pass(sizes, seed):
    total = sum(sizes)
    if total == 0:
        return
    draw, h = fresh(seed), 2
    q = Projected(draw(1, h, 3, 4), draw(1, h, 3, 2), draw(1, total, 5), draw(1, total, 2))
    config = MLAConfig(
        hidden_size=3, num_attention_heads=h, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=6
    )
    w_uk, w_uv = draw(h, 4, 5), draw(h, 5, 6)
    seen = np.random.default_rng(seed).random((1, 1, 3, total)) < 0.6  # some queries see nothing at all
    whole = attend(q, q.c_kv, q.k_rope, w_uk, w_uv, config, seen)
    from types import SimpleNamespace
    edges = np.cumsum([0, *sizes]).tolist()
    heads, lse = attend_in_chunks(q, q.c_kv, q.k_rope, SimpleNamespace(w_uk=w_uk, w_uv=w_uv), config, seen, edges)
    np.testing.assert_allclose(heads, whole.heads, atol=1e-13)
    np.testing.assert_allclose(lse, whole.lse, atol=1e-13)


def test_a_query_without_keys_gives_zero_and_minus_infinity(backend):
    logits = backend.asarray(np.array([[1.0, 2.0], [3.0, 4.0]]))
    seen = backend.xp.asarray(np.array([[True, True], [False, False]]), device=backend.device)
    weights, lse = softmax(logits, seen)
    assert to_numpy(weights)[1].tolist() == [0, 0] and to_numpy(lse)[1] == -math.inf
    assert to_numpy(weights)[0].sum() == pytest.approx(1)


def test_visible_keys_are_aligned_bottom_right(backend):
    seen = visible_keys((1, 0, 3), (3, 0, 4), 2, 5, backend.full((1,), 0.0))
    assert to_numpy(seen)[:, 0].astype(int).tolist() == [
        [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], [[0] * 5, [0] * 5], [[1, 1, 1, 1, 0], [0] * 5]]


def test_veloxquant_195_positions_are_absolute_not_the_cache_length(backend):
    """A row that begins late, as after eviction, scores by distance alone."""
    from mla_lab.rope import frequencies, rotate
    q, k = (backend.asarray(fresh(s)(1, 6)) for s in (11, 12))
    def score(t, s):
        at = [backend.xp.asarray([x], device=backend.device) for x in (t, s)]
        a, b = rotate(q, at[0], frequencies(SMALL)), rotate(k, at[1], frequencies(SMALL))
        return to_numpy(a @ b.mT).item()
    assert score(10, 9) == pytest.approx(score(1, 0), abs=1e-12)
    assert abs(score(4, 9) - score(10, 9)) > 1e-3


def test_rows_of_an_older_handle_stay_as_they_were(backend):
    cache = LatentCache.allocate(SMALL, 1, 4, backend, fill=math.nan)
    row = backend.asarray(fresh(13)(1, 1, 32)), backend.asarray(fresh(14)(1, 1, 6))
    one = cache.append(*row)
    one.append(*row)
    assert (cache.lengths, one.lengths) == ((0,), (1,))
    np.testing.assert_array_equal(to_numpy(one.c_kv)[0, 0], to_numpy(row[0])[0, 0])
    used = backend.xp.asarray(np.array([[True, False, False, False]]), device=backend.device)
    assert np.isfinite(to_numpy(zero_unused(one.rows, used))).all()
    assert one.nbytes == 4 * 38 * 8


def test_name_table_matches_the_shapes_and_the_published_sizes():
    v3 = MLAConfig(hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                   qk_rope_head_dim=64, v_head_dim=128)
    lite = replace(v3, hidden_size=2048, num_attention_heads=16, q_lora_rank=None)
    assert shapes(v3) == {
        "q_a_proj.weight": (1536, 7168), "q_a_layernorm.weight": (1536,), "q_b_proj.weight": (24576, 1536),
        "kv_a_proj_with_mqa.weight": (576, 7168), "kv_a_layernorm.weight": (512,), "kv_b_proj.weight": (32768, 512),
        "o_proj.weight": (7168, 16384)}
    assert shapes(lite)["q_proj.weight"] == (3072, 2048) and shapes(lite)["kv_b_proj.weight"] == (4096, 512)
    assert {n.hugging_face for n in NAMES} == set(shapes(v3)) | set(shapes(lite))
    full = replace(v3, attention_bias=True, output_gate="head")
    assert {n.hugging_face for n in NAMES + OPTIONAL} == set(shapes(full)) | set(shapes(lite))
    for name in NAMES + OPTIONAL:  # the symbolic shape of each row, evaluated, is the shape in `shapes`
        values = {"h": 128, "n": 128, "p": 64, "v": 128, "r": 512, "q": 1536, "d": 7168}
        config, want = (full, values) if name.hugging_face in shapes(full) else (lite, values | {"h": 16, "d": 2048})
        text = name.shape.partition(" or ")[0].strip("[]").replace("h(", "h*(").replace("h v", "h*v")
        assert tuple(eval(part, {}, want) for part in text.split(",")) == shapes(config)[name.hugging_face]
    assert shapes(replace(full, output_gate="value"))["g_proj.weight"] == (128 * 128, 7168)
    symbols = {s for n in NAMES + OPTIONAL for s in n.symbols}
    assert symbols - {"w_q"} == {f for f in MLAWeights.__dataclass_fields__}


def test_merge_keeps_the_dtype_of_its_parts(backend_and_dtype):
    backend = backend_and_dtype
    heads, lse = merge_by_lse([(backend.full((1, 2), 1.0), backend.full((1,), 0.0))] * 2)
    assert heads.dtype == backend.native


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_softmax_and_lse_are_float32_whatever_is_stored(dtype):
    """In 16 bits the weights of 3,000 equal keys would sum to something else than 1."""
    import torch
    native = getattr(torch, dtype)
    draw = fresh(15)
    q, c = torch.from_numpy(draw(1, 2, 1, 4)).to(native), torch.from_numpy(draw(1, 3000, 5)).to(native)
    k_rope, w_uk, w_uv = (torch.from_numpy(draw(*s)).to(native) for s in ((1, 3000, 2), (2, 4, 5), (2, 5, 6)))
    config = MLAConfig(hidden_size=3, num_attention_heads=2, kv_lora_rank=5, qk_nope_head_dim=4, qk_rope_head_dim=2,
                       v_head_dim=6)
    seen = torch.ones((1, 1, 1, 3000), dtype=torch.bool)
    done = attend(Projected(q, q[..., :2], c, k_rope), c, k_rope, w_uk, w_uv, config, seen)
    assert (done.heads.dtype, done.lse.dtype, done.logits.dtype, done.weights.dtype) == (native, *[torch.float32] * 3)
    np.testing.assert_allclose(done.weights.sum(-1).numpy(), 1, atol=1e-5)
    np.testing.assert_allclose(done.lse.numpy(), torch.logsumexp(done.logits.double(), -1).numpy(), atol=1e-5)
