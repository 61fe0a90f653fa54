"""Eight-bit floats against torch's own casts, bit for bit."""
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mla_lab import fp8
from mla_lab.attention import attend
from mla_lab.checks.case4_absorption import head_arrays
from mla_lab.faults import FAULTS
from mla_lab.models import get_model
from mla_lab.recipe import RIGHT
from mla_lab.rope import softmax_scale
from mla_lab.safetensors_file import DECODE

FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
SMALL_FLOATS = st.floats(-600, 600, width=32)


def bits(x):
    return x.contiguous().view(torch.uint8).numpy()


def same(a, b):
    """Equal to the bit, NaN for NaN and sign of zero included."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(a, b)
    assert ((np.signbit(a) == np.signbit(b)) | np.isnan(a)).all()


@pytest.mark.parametrize("name, dtype, codes", [
    ("F8_E4M3", torch.float8_e4m3fn, 2**8), ("F8_E8M0", torch.float8_e8m0fnu, 2**8), ("BF16", torch.bfloat16, 2**16)])
def test_every_code_decodes_as_torch_decodes_it(name, dtype, codes):
    raw_type, decode = DECODE[name]
    raw = np.arange(codes, dtype=raw_type)
    with np.errstate(invalid="ignore"):
        same(decode(raw), torch.from_numpy(raw.view(np.uint8)).view(dtype).float().numpy())


@given(arrays(np.float32, array_shapes(min_dims=1, max_dims=1, max_side=40), elements=FLOATS))
def test_bfloat16_decodes_as_torch_decodes_it(x):
    stored = torch.from_numpy(x).bfloat16()
    with np.errstate(invalid="ignore"):
        same(DECODE["BF16"][1](bits(stored).view("<u2")), stored.float().numpy())


@given(arrays(np.float32, array_shapes(min_dims=1, max_dims=2, max_side=20), elements=FLOATS | SMALL_FLOATS))
def test_encoding_is_torchs_cast_after_a_clamp(x):
    cast = torch.from_numpy(x).clamp(-fp8.LARGEST, fp8.LARGEST).to(torch.float8_e4m3fn)
    same(fp8.E4M3[fp8.encode(x)], cast.float().numpy())


def test_every_bfloat16_encodes_as_torch_encodes_it():
    """NaN that signals included: nothing is said of it."""
    x = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    cast = torch.from_numpy(x).clamp(-fp8.LARGEST, fp8.LARGEST).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(fp8.encode(x), bits(cast))


@given(st.integers(0, 126), st.booleans())
def test_halfway_goes_to_the_even_code(code, negative):
    sign = -1 if negative else 1
    if code < 126:
        halfway = (fp8.E4M3[code] + fp8.E4M3[code + 1]) / 2 * sign
        assert fp8.encode(halfway) == (code + code % 2) + 128 * negative
    assert fp8.encode(fp8.E4M3[code] * sign) == code + 128 * negative


def test_ml_dtypes_400_a_cast_beyond_448_is_clamped_and_a_block_of_zeros_stays_zero():
    given_ = np.array([448, 464, 465, 1000, -1000, np.inf], np.float32)
    np.testing.assert_array_equal(fp8.E4M3[fp8.encode(given_)], [448, 448, 448, 448, -448, 448])
    weight = np.zeros((3, 5), np.float32)
    weight[2] = [1000, -464, 448, 3, 0]
    codes, scales = fp8.quantize(weight, (1, 4))
    np.testing.assert_array_equal(scales, np.float32([[1, 1], [1, 1], [1000 / 448, 1]]))
    back = fp8.dequantize(codes, scales, (1, 4))
    assert np.isfinite(back).all() and (back[:2] == 0).all() and back[2, 0] == 1000


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 17), st.integers(1, 17), st.integers(0, 9))
def test_quantised_blocks_come_back_within_half_a_step(rows, columns, down, across, seed):
    weight = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    codes, scales = fp8.quantize(weight, (down, across))
    assert scales.shape == (-(-rows // down), -(-columns // across))
    each = torch.from_numpy(scales).repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :columns]
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float() * each
    back = fp8.dequantize(codes, scales, (down, across))
    same(back, values.numpy())
    step = np.maximum(np.abs(weight) * 2.0**-4, each.numpy() * 2.0**-10)  # half of 2^-3 relative, or of 2^-9 absolute
    assert (np.abs(back - weight) <= step * (1 + 1e-6)).all()


def test_tensorrt_llm_3675_a_quantised_cache_takes_its_scale_from_where_all_paths_do(backend):
    """Latents in e4m3 tiles of 1 x 128: the logits move by what the codes moved, and by no forgotten factor."""
    config = replace(get_model("DeepSeek-V3").mla, num_attention_heads=3)
    assert RIGHT.scale is softmax_scale and abs(softmax_scale(config) - 0.1352337788609) < 1e-13
    heads = head_arrays(config, backend, 2, 9, 7)
    c_kv = np.asarray(heads.q.c_kv)[0]
    codes, scales = fp8.quantize(c_kv, (1, 128))
    stored = fp8.dequantize(codes, scales, (1, 128))
    uk, uv = heads.split(RIGHT, config)

    def logits(latents, recipe, mode):
        return attend(heads.q, latents, heads.q.k_rope, uk, uv, config, heads.visible, mode, recipe).logits

    exact = logits(heads.q.c_kv, RIGHT, "naive")
    moved = np.maximum(np.abs(c_kv) * 2.0**-4, fp8.spread(scales, 0, 9, 512, (1, 128)) * 2.0**-10) * (1 + 1e-6)
    query = np.asarray(heads.q.q_nope)[0] @ np.asarray(uk)  # [h, t, r]
    allowed = softmax_scale(config) * np.abs(query) @ moved.T
    forgot = next(f for f in FAULTS if f.id == "mscale_missing").spoil(RIGHT)
    latents = backend.asarray(stored[None])
    for mode in ("naive", "absorb"):
        apart = np.abs(np.asarray(logits(latents, RIGHT, mode)) - np.asarray(exact))[0]
        assert apart.max() > 0 and (apart <= allowed).all()
        wrong = np.asarray(logits(latents, forgot, mode))
        assert np.isfinite(wrong).all() and (np.abs(wrong - np.asarray(exact))[0] > allowed).any()
