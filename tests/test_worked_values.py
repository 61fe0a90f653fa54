"""Values worked out by hand or in public threads, to all their digits, on every backend."""
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

from mla_lab import example
from mla_lab.arrays import get_backend, round_to_bfloat16, to_numpy
from mla_lab.attention import Projected, attend, project, softmax, visible_keys
from mla_lab.cache import LatentCache
from mla_lab.config import MLAConfig, Yarn
from mla_lab.decode import attend_in_chunks, attend_new, positions_from
from mla_lab.exact import rank_modulo
from mla_lab.faults import FAULTS
from mla_lab.recipe import RIGHT, merge_by_lse, rms_norm
from mla_lab.rope import HALF_SPLIT, INTERLEAVED, half_split_order, mscale, rotate, softmax_scale, table_scale
from mla_lab.spectrum import numerical_rank, singular_values
from mla_lab.weights import MLAWeights

BY_ID = {f.id: f for f in FAULTS}
CLOSE = {"rtol": 0, "atol": 5e-12}


def decode(backend, recipe, mode="absorb", pieces=(2, 1), capacity=8):
    """Heads ``[h]`` and LSE of the last token of the small example, and the layer's output."""
    recipe = example.without_norm(recipe)
    weights = MLAWeights.from_hugging_face(example.state(backend), example.CONFIG, recipe)
    cache, hidden, at = (
        LatentCache.allocate(example.CONFIG, 1, capacity, backend, fill=math.nan),
        example.hidden(backend),
        0,
    )
    for size in pieces:
        out, done, cache = attend_new(hidden[:, at : at + size, :], weights, example.CONFIG, cache, mode, recipe=recipe)
        at += size
    return to_numpy(done.heads)[0, :, :, 0], to_numpy(done.lse)[0], to_numpy(out)[0, -1], cache


# The fingerprint of each fault on the last token: head 0, head 1.
FINGERPRINTS = {
    None: (2.269754997078, 1.646726777977),
    "half_split_pairing": (2.365115490918, 1.715138964123),
    "scale_by_nope": (2.392885745503, 1.866026960977),
    "scale_by_cached_width": (2.253921319094, 1.612419889779),
    "scale_inverted": (2.593224702507, 1.999482222048),
    "rope_key_cached_unrotated": (2.203056470278, 1.788966685342),
    "query_at_zero": (1.817619106845, 1.754165958312),
    "query_one_later": (2.357887894696, 1.809423105291),
    "all_k_then_all_v": (-0.242655712379, 0.846559293369),
    "rope_term_dropped": (2.143879739006, 1.712862186502),
}


@pytest.mark.parametrize("mode", ["naive", "absorb"])
@pytest.mark.parametrize("fault", FINGERPRINTS, ids=str)
def test_small_example_and_the_fingerprint_of_each_fault(backend, fault, mode):
    heads, *_ = decode(backend, BY_ID[fault].spoil(RIGHT) if fault else RIGHT, mode)
    np.testing.assert_allclose(heads[:, -1], FINGERPRINTS[fault], **CLOSE)


@pytest.mark.parametrize("mode", ["naive", "absorb"])
def test_small_example_with_yarns_factor_on_a_model_without_yarn(backend, mode):
    factor = mscale(40, 1.0) ** 2
    heads, *_ = decode(backend, replace(RIGHT, scale=lambda c: softmax_scale(c) * factor), mode)
    np.testing.assert_allclose(heads[:, -1], (2.410657407547, 1.889509489353), **CLOSE)


def test_small_example_lse_and_output(backend):
    _, lse, out, _ = decode(backend, RIGHT)
    np.testing.assert_allclose(lse[:, -1], (2.063415611247, 1.996717884298), **CLOSE)
    np.testing.assert_allclose(out[:2], (3.916481775055, 0.623028219102), **CLOSE)


def test_small_example_rotated_vectors(backend):
    weights = MLAWeights.from_hugging_face(example.state(backend), example.CONFIG)
    hidden = example.hidden(backend)
    q = project(hidden, weights, example.CONFIG, positions_from((0,), 3, hidden), example.without_norm())
    np.testing.assert_allclose(to_numpy(q.k_rope)[0], [
        [1, 0, 0, 1], [-0.841470984808, 0.540302305868, 0.999950000417, 0.009999833334],
        [-1.325444263373, 0.493150590279, 0, 0]], **CLOSE)
    np.testing.assert_allclose(to_numpy(q.q_rope)[0, :, 2], [
        [-0.416146836547, 0.909297426826, 0.999800006667, 0.019998666693],
        [-0.909297426826, -0.416146836547, -0.019998666693, 0.999800006667]], **CLOSE)


@pytest.mark.parametrize("fault, rows", [
    (None, [[1.545768616444, 1.782958398767], FINGERPRINTS[None]]),
    ("mask_top_left", [[1, 2], [1.713712523053, 1.812713762349]]),
    ("no_mask", [[2.019152043614, 1.608384445287], FINGERPRINTS[None]]),
])
def test_deepseek_v3_1536_two_queries_after_one_cached_token(backend, fault, rows):
    heads, *_ = decode(backend, BY_ID[fault].spoil(RIGHT) if fault else RIGHT, pieces=(1, 2))
    np.testing.assert_allclose(heads.T, rows, **CLOSE)


def test_one_token_at_position_0_hides_every_scale_and_pairing(backend):
    for fault in (None, "half_split_pairing", "scale_by_nope", "scale_inverted", "scale_by_cached_width"):
        heads, *_ = decode(backend, BY_ID[fault].spoil(RIGHT) if fault else RIGHT, pieces=(1,))
        np.testing.assert_allclose(heads[:, 0], [1, 2], **CLOSE)


def test_deepseek_v3_938_pairing_conventions(backend):
    x = backend.asarray(np.array([[1.0, 2, 3, 4]] * 4))
    at, radians = backend.xp.arange(4, device=backend.device), np.array([1, 0.01])
    interleaved, half = (to_numpy(rotate(x, at, radians, p)) for p in (INTERLEAVED, HALF_SPLIT))
    np.testing.assert_allclose(interleaved, [
        [1, 2, 3, 4], [-1.1426396637, 1.9220755965, 2.9598506679, 4.0297995017],
        [-2.2347416902, 0.0770037537, 2.9194053532, 4.0591960267],
        [-1.2722325127, -1.8388649851, 2.8786681004, 4.0881866356]], rtol=0, atol=5e-11)
    np.testing.assert_allclose(half, [
        [1, 2, 3, 4], [-1.9841106486, 1.9599006675, 2.4623779024, 4.0197996683],
        [-3.1440391170, 1.9196053466, -0.3391430828, 4.0391973601],
        [-1.4133525208, 1.8791180667, -2.8288574817, 4.0581911354]], rtol=0, atol=5e-11)
    order = half_split_order(4)
    assert order == [0, 2, 1, 3]
    permuted = backend.asarray(to_numpy(x)[:, order])
    np.testing.assert_array_equal(to_numpy(rotate(permuted, at, radians, HALF_SPLIT)), interleaved[:, order])


def test_shainet_111_at_position_0_and_with_one_pair_the_conventions_coincide(backend):
    x, at = backend.asarray(np.array([[1.0, 2.0]])), backend.xp.arange(1, device=backend.device) + 7
    a, b = (to_numpy(rotate(x, at, np.array([1.0]), p)) for p in (INTERLEAVED, HALF_SPLIT))
    np.testing.assert_array_equal(a, b)


def layer(yarn=None, n=128, p=64):
    return MLAConfig(hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=n,
                     qk_rope_head_dim=p, v_head_dim=128, rope_scaling=yarn)


@pytest.mark.parametrize("yarn, multiplier, scale, table", [
    (None, 1, 0.0721687836487, 1),
    (Yarn(40, mscale=0.707, mscale_all_dim=0.707), 1.5896261651209, 0.1147213867929, 1),
    (Yarn(40, mscale=1.0, mscale_all_dim=1.0), 1.8738542070926, 0.1352337788609, 1),
    (Yarn(40, mscale=1.0, mscale_all_dim=0.707), 1.5896261651209, 0.1147213867929, 1.0857263993),
])
def test_megatron_1429_and_mobius_548_softmax_scale(yarn, multiplier, scale, table):
    config = layer(yarn)
    assert softmax_scale(config) == pytest.approx(scale, abs=5e-14)
    assert softmax_scale(config) * math.sqrt(192) == pytest.approx(multiplier, abs=5e-13)
    assert table_scale(config) == pytest.approx(table, abs=5e-11)


def test_flax_4512_when_yarn_switches_on():
    config = layer(Yarn(40))
    assert softmax_scale(config) == pytest.approx(0.1352337788609, abs=5e-14)  # Hugging Face: always
    assert softmax_scale(config, max_seq_len=4096) == pytest.approx(0.0721687836487, abs=5e-14)  # DeepSeek: beyond 4096
    assert softmax_scale(config, max_seq_len=4097) == softmax_scale(config)


@pytest.mark.parametrize(
    "scale, p",
    [
        (192**-0.5, 0.849674553090),
        (128**-0.5, 0.892958198535),
        (576**-0.5, 0.731058578630),
        (softmax_scale(layer(Yarn(40))), 0.962515068377),
    ],
)
def test_maxtext_1370_two_keys_with_a_raw_gap_of_24(backend, scale, p):
    logits = backend.asarray(np.array([[24.0, 0.0]])) * scale
    weights, _ = softmax(logits, backend.xp.ones((1, 2), dtype=backend.xp.bool, device=backend.device))
    assert to_numpy(weights)[0, 0] == pytest.approx(p, abs=5e-13)


def test_maxtext_3138_scaled_twice(backend):
    """One head, qk width 4, latents (1,0,0) and (0,1,0): once 4.2449, twice 4.1244."""
    config = MLAConfig(
        hidden_size=9, num_attention_heads=1, kv_lora_rank=3, qk_nope_head_dim=2, qk_rope_head_dim=2, v_head_dim=1
    )
    a = backend.asarray
    c_kv, k_rope = a(np.array([[[1.0, 0, 0], [0, 1, 0]]])), a(np.zeros((1, 2, 2)))
    q = Projected(a(np.ones((1, 1, 1, 2))), a(np.zeros((1, 1, 1, 2))), c_kv, k_rope)
    w_uk, w_uv = a(np.array([[[1.0, 0, 0], [0, 2, 0]]])), a(np.array([[[3.0], [5], [0]]]))
    seen = visible_keys((1,), (2,), 1, 2, c_kv)
    for recipe, value in ((RIGHT, 4.2449186624), (BY_ID["scale_twice"].spoil(RIGHT), 4.1243530018)):
        for mode in ("naive", "absorb"):
            heads = attend(q, c_kv, k_rope, w_uk, w_uv, config, seen, mode, recipe).heads
            assert to_numpy(heads).item() == pytest.approx(value, abs=5e-11)


def test_vllm_27491_merging_empty_parts(backend):
    a, inf = backend.asarray, math.inf
    def merged(*parts):
        heads, lse = merge_by_lse([(a(np.array([[h]])), a(np.array([l]))) for h, l in parts])
        return to_numpy(heads).item(), to_numpy(lse).item()
    assert merged((0.0, -inf), (5.0, math.log(3))) == pytest.approx((5, 1.0986122887))
    assert merged((0.0, -inf), (0.0, -inf)) == (0, -inf)
    assert merged((math.nan, -inf), (5.0, 1.0)) == (5, 1)  # vllm-project/vllm#49294: a zero-length chunk holds anything


def test_merging_the_small_example(backend):
    recipe, config, hidden = example.without_norm(), example.CONFIG, example.hidden(backend)
    weights = MLAWeights.from_hugging_face(example.state(backend), config)
    q = project(hidden, weights, config, positions_from((0,), 3, hidden), recipe)
    seen = visible_keys((0,), (3,), 3, 3, hidden)
    whole = (FINGERPRINTS[None], (2.063415611247, 1.996717884298))
    for low, high, edges, (value, lse) in (
        (0, 1, (0, 1), ((1, 2), (0.246521477351, 1.669940685358))),
        (1, 3, (0, 2), ((2.516179252419, 0.732677491359), (1.886046056808, 0.719297948884))),
        (0, 3, (0, 1, 3), whole), (0, 3, (0, 1, 1, 3, 3), whole),  # vllm-project/vllm#49294: chunks of no keys
    ):
        heads, got = attend_in_chunks(q, q.c_kv[:, low:high, :], q.k_rope[:, low:high, :], weights, config,
                                      seen[..., low:high], edges, recipe=recipe)
        np.testing.assert_allclose(to_numpy(heads)[0, :, 2, 0], value, **CLOSE)
        np.testing.assert_allclose(to_numpy(got)[0, :, 2], lse, **CLOSE)


@pytest.mark.parametrize("fill", [math.nan, math.inf])
def test_flashinfer_941_unused_slots(backend, fill):
    heads, lse, out, cache = decode(backend, RIGHT)
    dirty = LatentCache.allocate(example.CONFIG, 1, 8, backend, fill=fill)
    weights = MLAWeights.from_hugging_face(example.state(backend), example.CONFIG)
    hidden = example.hidden(backend)
    _, _, dirty = attend_new(hidden[:, :2, :], weights, example.CONFIG, dirty, recipe=example.without_norm())
    again, _, _ = attend_new(hidden[:, 2:, :], weights, example.CONFIG, dirty, recipe=example.without_norm())
    np.testing.assert_array_equal(to_numpy(again)[0, -1], out)
    assert not np.isfinite(to_numpy(dirty.rows)[0, 3:]).any()  # they really were dirty


# --- rank and its traps ---

def test_marin_7424_ranks_of_what_comes_from_a_latent(backend):
    rng = np.random.default_rng(0)
    latent, up_k, up_v, rope = (rng.standard_normal(s) for s in ((40, 6), (6, 32), (6, 32), (40, 3)))
    k, v = latent @ up_k, latent @ up_v
    for matrix, rank in ((k, 6), (v, 6), (np.hstack([k, v]), 6), (np.hstack([k, rope]), 9)):
        assert numerical_rank(backend.asarray(matrix)) == rank


def test_transmla_2_rope_over_whole_heads_destroys_the_rank_bound():
    rng = np.random.default_rng(0)
    keys = (rng.standard_normal((40, 6)) @ rng.standard_normal((6, 32))).reshape(40, 4, 8).swapaxes(0, 1)
    turned = rotate(keys, np.arange(40), 1e4 ** (-np.arange(0, 8, 2) / 8))
    assert numerical_rank(keys.swapaxes(0, 1).reshape(40, 32)) == 6
    assert numerical_rank(turned.swapaxes(0, 1).reshape(40, 32)) == 32


def test_numpy_14047_tolerance_does_not_grow_with_the_rows():
    rows = 1_000_000
    tall = np.zeros((rows, 2), np.float32)
    tall[:2] = np.diag([1.0, 0.1])
    assert np.linalg.matrix_rank(tall) == 1  # NumPy's default tolerance is 0.119 here
    assert numerical_rank(tall) == 2


@pytest.mark.parametrize("dtype, rank", [("float64", 5), ("float32", 3)])
def test_rank_is_free_of_scale(dtype, rank):
    matrix = np.diag([1, 1e-3, 1e-6, 1e-9, 1e-12]) * 1e-8
    assert numerical_rank(get_backend("numpy", dtype).asarray(matrix)) == rank
    assert numerical_rank(matrix, radius=1e-10) == 1  # an absolute tolerance is not


def test_numpy_28716_rounding_noise_is_not_rank():
    assert numerical_rank(np.ones((2, 2))) == 1


def test_pytorch_98308_singular_values_of_16_bit_arrays():
    import torch

    for x in (
        torch.eye(3, dtype=torch.bfloat16) * 2,
        torch.eye(3, dtype=torch.float16) * 2,
        np.eye(3, dtype=np.float16) * 2,
    ):
        np.testing.assert_array_equal(singular_values(x), [2, 2, 2])
        assert numerical_rank(x) == 3


def test_pytorch_16076_compare_singular_values_and_never_vectors(backend):
    a = np.array([[0.7944, 0.6003], [0.6003, 0.6311]])
    np.testing.assert_allclose(singular_values(backend.asarray(a)), [1.31857738, 0.10692262], atol=5e-9)


def test_rank_modulo_a_prime_of_a_known_matrix(backend):
    rng = np.random.default_rng(3)
    low = rng.integers(0, 1000, (9, 4)) @ rng.integers(0, 1000, (4, 7))
    assert rank_modulo(backend.asarray(low.astype(float))) == 4
    assert rank_modulo(backend.asarray(np.eye(5))) == 5
    assert rank_modulo(backend.asarray(np.zeros((3, 2)))) == 0


# --- low precision ---

def test_candle_3520_positions_in_bfloat16():
    assert round_to_bfloat16(np.float32([257, 15962])).tolist() == [256, 15936]
    assert math.cos(15962) == pytest.approx(-0.908015901, abs=5e-10)
    assert math.cos(15936) == pytest.approx(-0.267950071, abs=5e-10)
    backend = get_backend("torch", "bfloat16")
    x = backend.asarray(np.array([[1.0, 0.0]]))
    turned = to_numpy(rotate(x, backend.xp.asarray([15962]), np.array([1.0])))
    assert abs(turned[0, 0] - math.cos(15962)) <= 2**-8  # angles are formed in float64, the result is rounded once


def test_llama_cpp_12801_absorbed_query_overflows_half_precision():
    q, w = np.full((1, 128), 256, np.float16), np.full((128, 1), 2, np.float16)
    with np.errstate(over="ignore"):
        assert np.isinf(q @ w)
    assert (q.astype(np.float32) @ w.astype(np.float32)).item() == 65536
    bf16 = get_backend("torch", "bfloat16")
    assert to_numpy(bf16.asarray(q) @ bf16.asarray(w)).item() == 65536


def test_vllm_42379_rms_norm_rounds_after_the_product_with_the_weight():
    """Normalised 1.3243905306 times 0.54296875: 0.71875 this way, 0.72265625 if it is rounded first."""
    backend = get_backend("torch", "bfloat16")
    x = np.array([1.3243905306, math.sqrt(2 - 1.3243905306**2)])
    x32 = backend.with_dtype("float32").asarray(x[None])
    once = round_to_bfloat16(np.float32(1.3243905306) * np.float32(0.54296875))
    rounded_first = round_to_bfloat16(round_to_bfloat16(np.float32(1.3243905306)) * np.float32(0.54296875))
    assert (once.item(), rounded_first.item()) == (0.71875, 0.72265625)
    weight = backend.asarray(np.array([0.54296875, 1.0]))
    normed = rms_norm(x32, backend.with_dtype("float32").asarray(to_numpy(weight)), 0.0)
    assert round_to_bfloat16(to_numpy(normed))[0, 0] == 0.71875


def test_megatron_1620_normed_once_and_twice(backend):
    x, w = backend.asarray(np.array([[3.0, 4.0]])), backend.asarray(np.array([1.0, 2.0]))
    once = rms_norm(x, w, 0.0)
    np.testing.assert_allclose(to_numpy(once)[0], [0.8485281374, 2.2627416998], atol=5e-11)
    np.testing.assert_allclose(to_numpy(rms_norm(once, w, 0.0))[0], [0.4965635332, 2.6483388435], atol=5e-11)
    even = backend.asarray(np.array([2.0, 2.0]))
    once = rms_norm(x, even, 0.0)
    np.testing.assert_allclose(to_numpy(rms_norm(once, even, 0.0)), to_numpy(once))  # equal weights hide it


def test_numpy_25098_a_python_float_keeps_float32():
    x = np.ones(2, np.float32)
    assert (x * softmax_scale(layer())).dtype == np.float32
    assert (x * (1 / np.sqrt(192))).dtype == np.float64  # what it would be otherwise


def test_pytorch_110285_to_numpy_of_what_numpy_lacks():
    import torch
    values = torch.tensor([1.0, -2.5, 448.0])
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        narrow = values.to(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = to_numpy(narrow)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, narrow.float().numpy())
    np.testing.assert_array_equal(to_numpy(values.clone().requires_grad_()), values.numpy())


def test_emulated_bfloat16_rounds_as_torch_does():
    import torch
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.standard_normal(10_000) * 10.0 ** rng.integers(-30, 30, 10_000),
                        [0.0, -0.0, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8]]).astype(np.float32)
    np.testing.assert_array_equal(round_to_bfloat16(x), torch.from_numpy(x).bfloat16().float().numpy())
    assert np.isnan(round_to_bfloat16(np.float32([np.nan]))).all()
