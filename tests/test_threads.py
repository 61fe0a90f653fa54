"""Faults that people reported in public: what was right there must come out here. A name carries its thread."""
import ast
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mla_lab.arrays import UNIT_ROUNDOFF, fresh, get_backend, to_numpy
from mla_lab.attention import Projected, attend, project, scores_absorb, scores_naive, softmax, visible_keys
from mla_lab.cache import LatentCache
from mla_lab.checks.common import SMALL
from mla_lab.config import MLAConfig
from mla_lab.decode import forward, full_recompute, positions_from
from mla_lab.errors import InputError
from mla_lab.memory import peak_bytes
from mla_lab.models import get_model
from mla_lab.recipe import RIGHT, merge_by_lse, split_per_head
from mla_lab.reference import grouped_query_attention
from mla_lab.rope import frequencies, rotate, softmax_scale
from mla_lab.spectrum import numerical_rank, require_falsifiable
from mla_lab.weights import MLAWeights, random_state, shapes

ROOT = Path(__file__).parent.parent
V3 = get_model("DeepSeek-V3").mla
LITE = get_model("DeepSeek-V2-Lite").mla


def layer(backend, config=SMALL, tokens=8, batch=1, seed=70):
    """A layer with random weights, hidden states ``[b, t, d]``, and its full recompute."""
    weights = MLAWeights.from_hugging_face(random_state(config, backend, seed), config)
    hidden = backend.asarray(fresh(seed + 1)(batch, tokens, config.hidden_size))
    return weights, hidden, full_recompute(hidden, weights, config)


# --- maths ---

def test_maxtext_1370_an_inverted_scale_saturates_the_softmax(backend):
    gap = backend.asarray(np.array([[24.0, 0.0]])) * math.sqrt(192)
    assert to_numpy(gap)[0, 0] == pytest.approx(332.55, abs=5e-3)
    weights, _ = softmax(gap, backend.xp.ones((1, 2), dtype=backend.xp.bool, device=backend.device))
    assert to_numpy(weights)[0].tolist() == [1, pytest.approx(0, abs=1e-100)]


def test_megatron_3698_a_fused_kernel_must_be_told_the_scale():
    """Its default, the width of an absorbed query, is another number than the width of training."""
    torch, backend = pytest.importorskip("torch"), get_backend("torch")
    weights, hidden, _ = layer(backend)
    q = project(hidden, weights, SMALL, positions_from((0,), 8, hidden))
    seen = visible_keys((0,), (8,), 8, 8, hidden)
    want = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, SMALL, seen, "naive").heads
    query = torch.cat([q.q_nope @ weights.w_uk, q.q_rope], -1)
    row = torch.cat([q.c_kv, q.k_rope], -1)[:, None].expand(-1, 3, -1, -1)

    def fused(**scale):
        latent = torch.nn.functional.scaled_dot_product_attention(query, row, row[..., :32], seen, **scale)
        return latent @ weights.w_uv

    np.testing.assert_allclose(to_numpy(fused(scale=softmax_scale(SMALL))), to_numpy(want), rtol=0, atol=1e-12)
    assert np.abs(to_numpy(fused() - want)).max() > 1e-3


@pytest.mark.parametrize("config, hidden", [(V3, 7168), (LITE, 2048)])
def test_minigpt_mla_1_the_down_projection_holds_latent_and_rope_key(config, hidden):
    assert shapes(config)["kv_a_proj_with_mqa.weight"] == (512 + 64, hidden)
    assert MLAWeights.from_hugging_face(random_state(SMALL, get_backend()), SMALL).w_dkv.shape == (32, 40)


def test_veloxquant_195_a_token_after_eviction_stands_where_it_stood(backend):
    """10 tokens, of which the last 4 are kept: the next one is at position 10, and kept keys are not turned again."""
    weights, hidden, _ = layer(backend, tokens=11)
    q = project(hidden, weights, SMALL, positions_from((0,), 11, hidden))
    up, kept, now = (weights.w_uk, weights.w_uv, SMALL), slice(6, 11), slice(10, 11)
    last = visible_keys((10,), (11,), 1, 11, hidden) & (backend.xp.arange(11, device=backend.device) >= 6)
    query = Projected(q.q_nope[:, :, now, :], q.q_rope[:, :, now, :], q.c_kv[:, now, :], q.k_rope[:, now, :])
    want = attend(query, q.c_kv, q.k_rope, *up, last).heads
    seen = visible_keys((4,), (5,), 1, 5, hidden)
    got = attend(query, q.c_kv[:, kept, :], q.k_rope[:, kept, :], *up, seen).heads
    np.testing.assert_allclose(to_numpy(got), to_numpy(want), rtol=0, atol=1e-13)
    counted = project(hidden[:, now, :], weights, SMALL, positions_from((4,), 1, hidden))  # as many as are kept
    wrong = attend(counted, q.c_kv[:, kept, :], q.k_rope[:, kept, :], *up, seen).heads
    assert np.abs(to_numpy(wrong) - to_numpy(want)).max() > 1e-3


@pytest.mark.parametrize("prefill", range(1, 8))
def test_mlx_lm_1189_each_step_gives_the_row_of_the_full_pass(backend, prefill):
    weights, hidden, full = layer(backend)
    cache = LatentCache.allocate(SMALL, 1, 8, backend, fill=math.nan)
    rows = []
    for low, high in [(0, prefill), *((t, t + 1) for t in range(prefill, 8))]:
        out, cache = forward(hidden[:, low:high, :], weights, SMALL, cache)
        rows.append(to_numpy(out))
    np.testing.assert_allclose(np.concatenate(rows, axis=1), to_numpy(full), rtol=0, atol=1e-12)


def test_vllm_49294_a_chunk_of_no_keys_holds_anything(backend):
    """Keys in chunks of 3, 0 and 2; what stands for the empty chunk is NaN."""
    weights, hidden, _ = layer(backend, tokens=5)
    q = project(hidden, weights, SMALL, positions_from((0,), 5, hidden))
    up, seen = (weights.w_uk, weights.w_uv, SMALL), visible_keys((0,), (5,), 5, 5, hidden)
    whole = attend(q, q.c_kv, q.k_rope, *up, seen)
    parts = []
    for low, high in ((0, 3), (3, 5)):
        part = attend(q, q.c_kv[:, low:high, :], q.k_rope[:, low:high, :], *up, seen[..., low:high])
        parts.append((part.heads, part.lse))
    empty = (whole.heads * math.nan, whole.lse * 0 - math.inf)
    heads, lse = merge_by_lse([parts[0], empty, parts[1]])
    np.testing.assert_allclose(to_numpy(heads), to_numpy(whole.heads), rtol=0, atol=1e-13)
    np.testing.assert_allclose(to_numpy(lse), to_numpy(whole.lse), rtol=0, atol=1e-13)


def test_flashinfer_551_products_of_two_projections_are_larger_and_of_low_rank():
    h, q, r, n, d, v = 128, 1536, 512, 128, 7168, 128
    assert (q * h * n + h * n * r, q * h * r) == (33_554_432, 100_663_296)
    assert (h * r * v + h * v * d, h * r * d) == (125_829_120, 469_762_048)
    draw = fresh(71)
    query, key = draw(18, 10), draw(10, 32)  # of one head: [q, n] and [n, r]
    assert numerical_rank(query @ key) == 10


def test_transmla_2_a_rotation_is_linear_and_commutes_with_no_projection():
    draw, radians = fresh(72), 1e4 ** (-np.arange(0, 8, 2) / 8)
    x, y, w, at = draw(5, 8), draw(5, 8), draw(8, 8), np.full(5, 7)
    np.testing.assert_allclose(rotate(2 * x - 3 * y, at, radians), 2 * rotate(x, at, radians)
                               - 3 * rotate(y, at, radians), rtol=0, atol=1e-12)
    assert np.abs(rotate(x @ w, at, radians) - rotate(x, at, radians) @ w).max() > 1


def test_deepseek_v3_18_mqa_with_one_wide_key_whose_head_is_the_value(backend):
    """Absorbed, MLA is MQA; but the query has its heads only behind its latent."""
    weights, hidden, _ = layer(backend)
    q = project(hidden, weights, SMALL, positions_from((0,), 8, hidden))
    seen, concat = visible_keys((0,), (8,), 8, 8, hidden), backend.xp.concat
    assert (hidden @ weights.w_dq.mT).shape == (1, 8, 18)  # no axis of heads
    query = concat([q.q_nope @ weights.w_uk, q.q_rope], axis=-1)
    assert query.shape == (1, 3, 8, 32 + 6)
    key = concat([q.c_kv, q.k_rope], axis=-1)[:, None, :, :]
    heads, _ = grouped_query_attention(query, key, q.c_kv[:, None, :, :], softmax_scale(SMALL), seen)
    want = attend(q, q.c_kv, q.k_rope, weights.w_uk, weights.w_uv, SMALL, seen, "naive").heads
    np.testing.assert_allclose(to_numpy(heads @ weights.w_uv), to_numpy(want), rtol=0, atol=1e-12)


def test_paddlefleet_1679_rows_of_the_joint_up_projection(backend):
    config = MLAConfig(hidden_size=9, num_attention_heads=2, kv_lora_rank=3, qk_nope_head_dim=2, qk_rope_head_dim=4,
                       v_head_dim=1)
    rows = backend.asarray(np.repeat(np.arange(6.0)[:, None], 3, axis=1))  # each row holds its number
    w_uk, w_uv = (to_numpy(w) for w in split_per_head(rows, config))
    assert w_uk[..., 0].tolist() == [[0, 1], [3, 4]] and w_uv[:, 0, :].tolist() == [[2], [5]]


def test_flax_4512_frequencies_follow_the_same_rule_as_the_scale():
    """DeepSeek's inference code turns YaRN on beyond the original context only, Hugging Face always."""
    plain = 1e4 ** (-np.arange(0, 64, 2) / 64)
    for length, on in ((None, True), (4096, False), (4097, True)):
        assert np.array_equal(frequencies(V3, length), plain) != on
        assert softmax_scale(V3, length) == pytest.approx(0.1352337788609 if on else 0.0721687836487, abs=5e-14)


@pytest.mark.parametrize("tokens, width", [(4, 32), (40, 6)])
def test_marin_7424_a_rank_that_the_shape_alone_enforces(tokens, width):
    """4 tokens: an unconstrained projection has rank 4 as well, so a bound of 6 could not fail."""
    matrix = fresh(73)(tokens, width)
    assert numerical_rank(matrix) == min(tokens, width) <= 6
    with pytest.raises(InputError, match="vacuous"):
        require_falsifiable(6, *matrix.shape)


# --- precision, and two libraries ---

def test_triton_7409_each_dtype_is_judged_by_its_own_bound():
    """Against NumPy in float64: torch within 1e-12 in float64, and in bfloat16 further off than float32 could be."""
    pytest.importorskip("torch")

    def output(name, dtype):
        backend = get_backend(name, dtype)
        weights = MLAWeights.from_hugging_face(random_state(SMALL, backend, 74), SMALL)
        hidden = backend.asarray(np.rint(8 * fresh(75)(2, 7, 40)) / 8)  # the same numbers in each dtype
        recipe = replace(RIGHT, store=backend.store)
        return to_numpy(full_recompute(hidden, weights, SMALL, "absorb", recipe)).astype(np.float64)

    want, off = output("numpy", "float64"), {}
    for name, dtype in ((n, d) for n in ("numpy", "torch") for d in UNIT_ROUNDOFF):
        off[name, dtype] = np.abs(output(name, dtype) - want).max() / np.abs(want).max() / UNIT_ROUNDOFF[dtype]
    assert all(units < 20 for units in off.values()), off  # in units of its own dtype
    assert off["torch", "float64"] * UNIT_ROUNDOFF["float64"] <= 1e-12
    assert off["torch", "bfloat16"] * UNIT_ROUNDOFF["bfloat16"] > 20 * UNIT_ROUNDOFF["float32"]


def zero_tolerances(source: str) -> list[str]:
    """Calls that compute a rank of NumPy's or torch's kind, or that pass a tolerance of 0."""
    found = []
    for call in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)):
        name = ast.unparse(call.func)
        zero = [k.arg for k in call.keywords if k.arg in ("tol", "rtol", "atol", "radius")
                and isinstance(k.value, ast.Constant) and k.value.value == 0]
        if name.endswith("matrix_rank") or (zero and "rank" in name):
            found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


def test_numpy_28716_no_rank_is_taken_with_a_tolerance_of_zero():
    found = {p.name: zero_tolerances(p.read_text(encoding="utf-8")) for p in (ROOT / "mla_lab").rglob("*.py")}
    assert not any(found.values()), found
    assert len(zero_tolerances("np.linalg.matrix_rank(a)\nnumerical_rank(a, radius=0)\nnumerical_rank(a)")) == 2


def test_pytorch_54151_the_default_tolerance_of_torch_grows_with_the_rows_too():
    torch = pytest.importorskip("torch")
    tall = torch.zeros(1_000_000, 2)
    tall[0, 0], tall[1, 1] = 1.0, 0.1
    assert torch.linalg.matrix_rank(tall).item() == 1 and numerical_rank(tall) == 2


@pytest.mark.parametrize("name", ["numpy", "torch", "torch-cuda"])
def test_pytorch_53635_float32_products_keep_their_24_bits(name):
    """Ten bits of mantissa, TF32, would make 1025 or 1024 of 1024.5, and 9.86156 of 3.14 squared."""
    from conftest import make
    backend = make(name, "float32")
    one, z = (backend.asarray(np.array(x)) for x in ([[1.0]], [[0.0, 3.14]]))
    assert to_numpy(backend.asarray(np.array([[1024.5]])) @ one).item() == 1024.5
    assert to_numpy(z @ backend.asarray(np.eye(2)) @ z.mT).item() == pytest.approx(9.8596, abs=2e-6)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_opt_einsum_133_the_query_is_moved_and_not_the_cache(name):
    """One token of V3 over 4096 cached ones: its 524,288 scores are the largest thing, not 67,108,864 expanded keys."""
    from conftest import make
    backend = make(name, "float32")
    q = Projected(*(backend.full(s, 0.1) for s in ((1, 128, 1, 128), (1, 128, 1, 64), (1, 4096, 512), (1, 4096, 64))))
    w_uk = backend.full((128, 128, 512), 0.1)
    logits = []
    peak = peak_bytes(backend, lambda: logits.append(scores_absorb(q, q.c_kv, q.k_rope, w_uk)))
    assert logits[0].shape == (1, 128, 1, 4096)
    assert 4 * 524_288 < peak <= 4 * (65_536 + 3 * 524_288) + 2**16  # the latent query, both terms, and their sum
    few = Projected(q.q_nope[:, :2], q.q_rope[:, :2], q.c_kv, q.k_rope)  # 2 of the 128 heads are enough to see it
    assert peak_bytes(backend, lambda: scores_naive(few, q.c_kv, q.k_rope, w_uk[:2])) >= 4 * 2 * 4096 * 128
    assert 128 * 4096 * 128 == 67_108_864


def test_numpy_25100_the_number_of_threads_changes_no_text():
    """BLAS sums in another order with more threads; what is printed for comparison must not show it."""
    command, said = [sys.executable, "-m", "mla_lab", "verify", "--case", "3"], set()
    for threads in ("1", "2"):
        env = os.environ | {f"{library}_NUM_THREADS": threads for library in ("OPENBLAS", "OMP", "MKL")}
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        said.add(ran.stdout)
    assert len(said) == 1 and "holds" in said.pop()
