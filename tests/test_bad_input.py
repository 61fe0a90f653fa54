"""Bad input gets one sentence that names the field, the value and what would be right."""
import math
from dataclasses import replace

import numpy as np
import pytest

from mla_lab import exact
from mla_lab.arrays import fresh, get_backend
from mla_lab.attention import Projected, attend
from mla_lab.cache import LatentCache
from mla_lab.checks.common import SMALL
from mla_lab.config import MLAConfig, Yarn
from mla_lab.decode import attend_in_chunks, forward, full_recompute
from mla_lab.errors import InputError
from mla_lab.models import get_model
from mla_lab.reference import grouped_query_attention
from mla_lab.spectrum import require_falsifiable, singular_values
from mla_lab.weights import MLAWeights, random_state

GOOD = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "kv_lora_rank": 3,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 6,
    "v_head_dim": 5,
}


def says(error, *words):
    text = str(error.value)
    assert all(str(w) in text for w in words), text
    assert text.endswith((".", "?")) and "\n" not in text


@pytest.mark.parametrize("field", GOOD)
@pytest.mark.parametrize("value", [0, -3, 2.5, None, "8", True])
def test_dimensions(field, value):
    with pytest.raises(InputError) as error:
        MLAConfig(**GOOD | {field: value})
    says(error, field, repr(value), "at least 1")


@pytest.mark.parametrize("field, value, word", [
    ("qk_rope_head_dim", 7, "even"), ("q_lora_rank", 0, "q_lora_rank"), ("rope_theta", 1.0, "above 1"),
    ("rope_theta", math.nan, "finite"), ("rms_norm_eps", -1e-6, "rms_norm_eps"), ("rms_norm_eps", math.inf, "finite"),
    ("output_gate", "neuron", "'head'"), ("mla_scale_q_lora", True, "q_lora_rank"),
])
def test_other_fields(field, value, word):
    with pytest.raises(InputError) as error:
        MLAConfig(**GOOD | {field: value})
    says(error, field, *([value] if value is not True else []), word)


def test_rope_channels_may_only_be_missing_where_nothing_is_rotated():
    assert MLAConfig(**GOOD | {"qk_rope_head_dim": 0, "mla_use_nope": True}).cached_width == 3
    for value in (-2, 5):
        with pytest.raises(InputError) as error:
            MLAConfig(**GOOD | {"qk_rope_head_dim": value, "mla_use_nope": True})
        says(error, "qk_rope_head_dim", value)


@pytest.mark.parametrize("field, value", [("factor", 0), ("factor", "40"), ("original_max_position_embeddings", -1),
                                          ("beta_fast", math.nan), ("mscale", -1.0), ("attention_factor", 0),
                                          ("llama_4_scaling_beta", -0.1)])
def test_yarn(field, value):
    with pytest.raises(InputError) as error:
        Yarn(**{"factor": 40} | {field: value})
    says(error, "rope_scaling." + field, repr(value))


def test_whole_and_real_yarn_factors_are_the_same():
    assert Yarn(40) == Yarn(40.0)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError) as error:
        get_model("DeepSeek-V33")
    says(error, "DeepSeek-V33", "did you mean 'DeepSeek-V3'")
    with pytest.raises(InputError) as error:
        get_backend("numpi")
    says(error, "numpi", "numpy")
    with pytest.raises(InputError) as error:
        get_backend("numpy", "float16")
    says(error, "float16", "bfloat16")


def test_cuda_without_a_gpu():
    import torch
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError) as error:
        get_backend("torch-cuda")
    says(error, "torch-cuda", "GPU")


@pytest.fixture
def layer():
    backend = get_backend()
    state = random_state(SMALL, backend)
    return backend, state, MLAWeights.from_hugging_face(state, SMALL)


def test_minigpt_mla_1_a_down_projection_built_with_the_nope_width(layer):
    backend, state, _ = layer
    v3 = MLAConfig(hidden_size=7168, num_attention_heads=1, q_lora_rank=2, kv_lora_rank=512, qk_nope_head_dim=128,
                   qk_rope_head_dim=64, v_head_dim=128)
    state = random_state(v3, backend) | {"kv_a_proj_with_mqa.weight": np.zeros((640, 7168))}
    with pytest.raises(InputError) as error:
        MLAWeights.from_hugging_face(state, v3)
    says(error, "kv_a_proj_with_mqa.weight", "640", "576")


def test_missing_weights_and_mixed_dtypes(layer):
    _, state, _ = layer
    with pytest.raises(InputError) as error:
        MLAWeights.from_hugging_face({k: v for k, v in state.items() if k != "o_proj.weight"}, SMALL)
    says(error, "o_proj.weight", "missing", "(40, 42)")
    with pytest.raises(InputError) as error:
        MLAWeights.from_hugging_face(state | {"o_proj.weight": state["o_proj.weight"].astype(np.float32)}, SMALL)
    says(error, "o_proj is numpy float32", "float64")


def test_weights_that_the_configuration_would_ignore(layer):
    backend, state, _ = layer
    for extra, shape, field in (("o_proj.bias", (40,), "attention_bias is False"),
                                ("g_proj.weight", (3, 40), "output_gate is None")):
        with pytest.raises(InputError) as error:
            MLAWeights.from_hugging_face(state | {extra: np.zeros(shape)}, SMALL)
        says(error, extra, field)
    biased = replace(SMALL, attention_bias=True)
    with pytest.raises(InputError) as error:
        MLAWeights.from_hugging_face(state, biased)
    says(error, "bias", "missing")


@pytest.mark.parametrize("shape", [(2, 5, 39), (5, 40), (1, 0, 40), (0, 3, 40)])
def test_hidden_of_the_wrong_shape_names_both(layer, shape):
    _, _, weights = layer
    with pytest.raises(InputError) as error:
        full_recompute(np.zeros(shape), weights, SMALL)
    says(error, "hidden", shape)


def test_mixed_dtypes_and_libraries_are_refused_not_promoted(layer):
    backend, _, weights = layer
    cache = LatentCache.allocate(SMALL, 1, 4, backend)
    with pytest.raises(InputError) as error:
        forward(np.zeros((1, 2, 40), np.float32), weights, SMALL, cache)
    says(error, "hidden is numpy float32", "weights is numpy float64")
    with pytest.raises(InputError) as error:
        full_recompute(get_backend("torch").asarray(np.zeros((1, 2, 40))), weights, SMALL)
    says(error, "torch", "numpy")
    with pytest.raises(InputError) as error:
        forward(np.zeros((1, 2, 40)), weights, SMALL, LatentCache.allocate(SMALL, 1, 4, backend.with_dtype("float32")))
    says(error, "cache is numpy float32")


def test_a_full_cache_and_bad_counts(layer):
    backend, _, weights = layer
    cache = LatentCache.allocate(SMALL, 2, 3, backend)
    with pytest.raises(InputError) as error:
        forward(np.zeros((2, 4, 40)), weights, SMALL, cache)
    says(error, "holds 3 tokens", "4 are needed")
    for counts in ((1,), (1, 5), (-1, 0)):
        with pytest.raises(InputError) as error:
            forward(np.zeros((2, 2, 40)), weights, SMALL, cache, counts=counts)
        says(error, "counts", counts)
    assert cache.lengths == (0, 0) and not cache.rows.any()  # nothing was half-written
    for batch, capacity in ((0, 3), (2, 0), (2, -1)):
        with pytest.raises(InputError):
            LatentCache.allocate(SMALL, batch, capacity, backend)


def test_modes_edges_and_groups():
    draw = fresh(0)
    q = Projected(draw(1, 3, 2, 10), draw(1, 3, 2, 6), draw(1, 4, 32), draw(1, 4, 6))
    args = q, q.c_kv, q.k_rope, draw(3, 10, 32), draw(3, 32, 14), SMALL, np.ones((1, 1, 2, 4), bool)
    with pytest.raises(InputError) as error:
        attend(*args, mode="absorbed")
    says(error, "absorbed", "naive, absorb")
    for edges in ((0, 3), (1, 4), (0, 3, 2, 4)):
        with pytest.raises(InputError) as error:
            attend_in_chunks(q, q.c_kv, q.k_rope, None, SMALL, args[-1], edges)
        says(error, "edges", list(edges))
    with pytest.raises(InputError) as error:
        grouped_query_attention(draw(1, 3, 2, 4), draw(1, 2, 5, 4), draw(1, 2, 5, 4), 1.0, np.ones((1, 1, 2, 5), bool))
    says(error, "(3)", "(2)")


def test_rank_checks_that_could_not_fail_are_refused():
    with pytest.raises(InputError) as error:
        require_falsifiable(128, tokens=100, width=512)
    says(error, "tokens = 100", "vacuous", "more than 128")
    with pytest.raises(InputError) as error:
        require_falsifiable(128, tokens=300, width=128)
    says(error, "width = 128", "vacuous")


@pytest.mark.parametrize("matrix", [np.full((2, 2), np.nan), np.array([[1.0, np.inf]])])
def test_nan_has_no_singular_values(matrix):
    with pytest.raises(InputError) as error:
        singular_values(matrix)
    says(error, "NaN")


@pytest.mark.parametrize("shape", [(3,), (0, 2), (2, 2, 2)])
def test_singular_values_of_what_is_no_matrix(shape):
    with pytest.raises(InputError) as error:
        singular_values(np.zeros(shape))
    says(error, shape)


def test_exact_sums_that_would_leave_the_integers():
    with pytest.raises(InputError) as error:
        exact.exact_store(10_000)
    says(error, "10000", exact.LARGEST_SUM)
    assert exact.exact_store(exact.LARGEST_SUM)(np.array([float(exact.PRIME + 2)])) == 2
