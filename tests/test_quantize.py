"""Latents in 8 bits and fewer: against torch's and ml_dtypes' casts bit for bit, and every fault that must be seen."""
import numpy as np
import pytest
import torch
from conftest import make
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mla_lab import footprint as fp
from mla_lab import fp8
from mla_lab.arrays import round_to_bfloat16
from mla_lab.errors import InputError
from mla_lab.models import get_model
from mla_lab.serving import checks11_fp8 as checks
from mla_lab.serving.carry import BF16_STEP, scene, store_rope, through_cache
from mla_lab.serving.common import caught, under
from mla_lab.serving.faults11 import FAULTS
from mla_lab.serving.latents import normed, not_normed, with_outlier
from mla_lab.serving.packed_row import Parts, join, pack, sizes, split, unpack
from mla_lab.serving.quantize import (
    FORMATS,
    GRANULARITIES,
    STORING,
    Storing,
    band,
    half_step,
    one,
    power_of_two,
    quantize,
    relative,
)
from mla_lab.verdict import Setting

V3 = get_model("DeepSeek-V3")
FINITE = st.floats(-1e6, 1e6, width=32, allow_subnormal=True)
ROWS = arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 300)), elements=FINITE)
USUAL = ROWS.map(lambda x: np.where(np.abs(x) < 1e-30, 0, x).astype(np.float32))


def setting(backend):
    return Setting(backend, V3.mla, V3.name)


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda c: c.id)
@pytest.mark.parametrize("member, dtype", [("numpy", "float64"), ("torch", "float32"), ("torch", "bfloat16"),
                                           ("torch-cuda", "bfloat16")])
def test_every_check_holds_and_fails_under_each_of_its_faults(check, member, dtype):
    here = setting(make(member, dtype))
    verdict = check.run(here)
    assert verdict.ok and str(verdict).startswith("holds"), (verdict.saw, verdict.expected, verdict.note)
    seen = caught(check, FAULTS, here, STORING)
    assert seen and all(seen.values()), seen


def test_every_fault_is_a_change_of_the_rules_and_is_assigned():
    ids, here = {check.id for check in checks.CHECKS}, setting(make("numpy"))
    assert {check.case for check in checks.CHECKS} == {11} and len(ids) == len(checks.CHECKS)
    assert len({f.id for f in FAULTS}) == len(FAULTS) >= 12
    for fault in FAULTS:
        assert fault.caught_by and set(fault.caught_by) <= ids and "#" in fault.thread and fault.what and fault.why
        assert under(fault, here, STORING) != (here, STORING)
    assert {name for f in FAULTS for name in f.changes} == {*Storing.__dataclass_fields__, "scale"}


# --- against other libraries ----------------------------------------------------------------------------------------

@given(USUAL, st.sampled_from(sorted(GRANULARITIES)))
def test_e4m3_is_fp8_and_torch_to_the_bit(x, granularity):
    stored = quantize(x, "e4m3", granularity)
    codes, scales = fp8.quantize(x, stored.block)
    np.testing.assert_array_equal(stored.scales, scales)
    np.testing.assert_array_equal(stored.read(), fp8.dequantize(codes, scales, stored.block))
    quotient = torch.from_numpy(x) / torch.from_numpy(stored.each_scale().copy())
    cast = quotient.clamp(-448, 448).to(torch.float8_e4m3fn)
    np.testing.assert_array_equal(codes, cast.view(torch.uint8).numpy())
    np.testing.assert_array_equal(stored.read(), (cast.float() * torch.from_numpy(stored.each_scale().copy())).numpy())


@pytest.mark.parametrize("name, dtype", [
    ("e4m3", "float8_e4m3fn"), ("e3m2", "float6_e3m2fn"), ("e2m1", "float4_e2m1fn")])
def test_the_float_formats_are_those_of_ml_dtypes(name, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.clip(checks.every_bf16(), -FORMATS[name].largest, FORMATS[name].largest)
    cast = x.astype(getattr(ml_dtypes, dtype)).astype(np.float32)
    ours = FORMATS[name].nearest(checks.every_bf16(), STORING)
    np.testing.assert_array_equal(ours, cast)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(cast))
    every = np.arange(2 ** FORMATS[name].bits, dtype=np.uint8).view(getattr(ml_dtypes, dtype)).astype(np.float32)
    np.testing.assert_array_equal(checks.grid(FORMATS[name]), np.unique(np.abs(every[np.isfinite(every)])))


def test_the_integers_are_as_many_as_their_bits_allow():
    """Symmetric, so one code of two's complement is not used."""
    for form in FORMATS.values():
        if form.fraction is None:
            assert 2 * form.largest + 1 == 2**form.bits - 1
            ends = np.array([[form.largest, -form.largest, 10 * form.largest]])
            assert form.nearest(ends, STORING).tolist() == [[form.largest, -form.largest, form.largest]]


def test_ml_dtypes_400_casts_disagree_beyond_448_and_the_clamp_settles_it():
    beyond = np.array([448, 464, 465, 1000], np.float32)
    assert torch.from_numpy(beyond).to(torch.float8_e4m3fn).float().tolist() == [448] * 4
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.isnan(beyond.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).tolist() == [False, False, True, True]
    assert FORMATS["e4m3"].nearest(beyond, STORING).tolist() == [448] * 4


# --- errors ---------------------------------------------------------------------------------------------------------

@given(ROWS, st.sampled_from(sorted(FORMATS)), st.sampled_from(sorted(GRANULARITIES)))
def test_no_value_is_off_by_more_than_half_a_step(x, form, granularity):
    stored = quantize(x, form, granularity)
    assert (np.abs(stored.read().astype(np.float64) - x) <= half_step(x, form, stored)).all()
    assert np.isfinite(stored.read()).all() and (stored.scales > 0).all()
    assert stored.scales.shape == tuple(-(-n // b) for n, b in zip(x.shape, stored.block, strict=True))


@given(st.integers(-40, 40), st.integers(0, 9))
def test_the_band_holds_at_every_size(exponent, seed):
    """1.80 to 3.61 %: not of one sample, but wherever values neither overflow nor underflow."""
    low, high = band("e4m3")
    assert (round(100 * low, 3), round(100 * high, 3)) == (1.804, 3.608)
    for granularity in GRANULARITIES:
        rows = normed(16, 256, seed) * 2.0**exponent
        assert low < relative(quantize(rows, "e4m3", granularity).read(), rows) < high


def test_powers_of_two_are_flashmlas():
    amax = np.array([0, 1e-9, 0.0448, 0.04481, 448, 449, 1, 3.5, 896], np.float32)
    with np.errstate(divide="ignore"):
        theirs = torch.pow(2, (torch.from_numpy(amax) / 448).clamp_min(1e-4).log2().ceil()).numpy()
    np.testing.assert_array_equal(power_of_two(amax, 448.0), theirs)
    assert power_of_two(amax, 448.0)[0] == 2.0**-13
    rows = normed(40)
    plain, power = (relative(quantize(rows, "e4m3", "tile", Storing(block_scale=s)).read(), rows)
                    for s in (STORING.block_scale, power_of_two))
    assert plain < power < band("e4m3")[1]


def test_without_a_scale_small_latents_fall_below_the_smallest_normal_number():
    errors = [relative(quantize(rows, "e4m3", "tensor", Storing(block_scale=one)).read(), rows)
              for rows in (normed(40) * 2.0**-k for k in (0, 3, 6, 9))]
    assert band("e4m3")[0] < errors[0] < errors[1] < errors[2] < errors[3] and errors[0] < band("e4m3")[1] < errors[2]
    # All of them are below it by then: steps of 2^-9, spread evenly, against an rms of the weights' times 2^-9.
    size = float(np.sqrt(np.mean(normed(40) ** 2)))
    assert abs(errors[3] - 1 / 12**0.5 / size) < 0.1 * errors[3]


def test_what_was_measured_on_normed_latents():
    """The facts that notebook 11 states, from other draws than its own."""
    rows = normed(256, seed=5)
    error = {(f, g): relative(quantize(rows, f, g).read(), rows) for f in FORMATS for g in GRANULARITIES}
    assert all(0.02 < error["e4m3", g] < 0.03 for g in GRANULARITIES)
    assert error["int8", "token"] < error["e4m3", "token"] / 2 and error["int6", "tile"] < 1.3 * error["e4m3", "tile"]
    assert all(error[form, "tensor"] > 1.4 * error[form, "tile"] for form in ("int8", "int6", "int4"))
    outlier = with_outlier(64, 30)
    assert relative(quantize(outlier, "int8", "tensor").read()[:, checks.REST], outlier[:, checks.REST]) > 0.1
    assert np.ptp(np.log2(np.abs(not_normed(9, 24)).max(axis=1))) > 20


def test_a_quantised_rope_key_moves_logits_and_little_else():
    backend = make("numpy")
    here = scene(backend, normed(64))
    logits = [through_cache(here, backend, "e4m3", "tile", how)[0].logits for how in ("bf16", "own scale")]
    from mla_lab.serving.carry import exact
    right = exact(here, backend).logits
    assert relative(logits[0], right) < relative(logits[1], right) < 2 * relative(logits[0], right)


# --- the packed row -------------------------------------------------------------------------------------------------

def test_half_a_step_of_bf16_is_what_rounding_moves_a_number_by():
    x = np.linspace(1, 2, 2**12 + 1, dtype=np.float32)
    assert BF16_STEP / 2 * 0.99 < np.max(np.abs(round_to_bfloat16(x) - x) / x) <= BF16_STEP / 2


@given(st.integers(1, 4), st.integers(1, 300), st.integers(0, 40), st.data())
def test_any_bytes_come_back(s, latent, rope, data):
    width = sum(sizes(latent, rope).values())
    assert width == latent + 4 * -(-latent // 128) + 2 * rope
    rows = data.draw(arrays(np.uint8, (s, width)))
    np.testing.assert_array_equal(join(split(rows, latent, rope)), rows)


def test_the_row_is_what_torch_lays_down():
    """The same 656 bytes built with torch's own dtypes and views."""
    c_kv, k_rope = normed(7, seed=3), normed(7, 64, seed=4)
    x = torch.from_numpy(c_kv).float().view(7, 4, 128)
    scale = x.abs().amax(-1) / 448
    codes = (x / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).view(7, 512).view(torch.uint8)
    rope = torch.from_numpy(k_rope).float().bfloat16().view(torch.uint8)
    rows = torch.cat([codes, scale.contiguous().view(torch.uint8), rope], dim=1)
    np.testing.assert_array_equal(pack(c_kv, k_rope), rows.numpy())
    back = unpack(rows.numpy())
    np.testing.assert_array_equal(back[0], (codes.view(torch.float8_e4m3fn).float().view(7, 4, 128)
                                            * scale[..., None]).view(7, 512).numpy())
    np.testing.assert_array_equal(back[1], torch.from_numpy(k_rope).float().bfloat16().float().numpy())


def test_bytes_of_the_formats():
    assert sum(sizes().values()) == fp.row_bytes("fp8-tile", 576, 64) == 656
    assert [fp.bytes_per_token(V3, d) for d in ("fp8", "fp8-tile", "4bit")] == [35_136, 40_016, 26_352]
    assert fp.cache_bytes(V3, 32_768, dtype="q8_0") == 1_223_294_976 == 61 * 32_768 * 576 * 34 // 32
    assert fp.mib(61 * 80_128 * 576 * 2, 5) == "5,369.90625 MiB"


@pytest.mark.parametrize("act, words", [
    (lambda: quantize(np.zeros((2, 3)), "fp9", "tile"), ["format", "'fp9'"]),
    (lambda: quantize(np.zeros((2, 3)), "e4m3", "row"), ["granularity", "'row'"]),
    (lambda: quantize(np.zeros(3), "e4m3", "tile"), ["[tokens, channels]", "(3,)"]),
    (lambda: quantize(np.zeros((0, 3)), "e4m3", "tile"), ["(0, 3)"]),
    (lambda: quantize(np.ones((2, 300)), "e4m3", "tile", scales_from=np.ones((2, 600))), ["do not fit", "tile"]),
    (lambda: quantize(np.array([[np.nan, 1000]]), "e4m3", "tile"), ["finite in float32", "1 of 2"]),
    (lambda: quantize(np.array([[1e300, 1]]), "int8", "token"), ["finite in float32"]),
    (lambda: quantize(np.ones((1, 2)), "int8", "token", scales_from=np.array([[np.inf]])), ["scales_from"]),
    (lambda: pack(np.ones((2, 128)), np.ones((3, 8))), ["k_rope", "(3, 8)", "(2, any)"]),
    (lambda: band("int8"), ["int8", "depends on the data"]),
    (lambda: split(np.zeros((2, 655), np.uint8)), ["656", "655"]),
    (lambda: split(np.zeros((2, 656), np.int8)), ["uint8", "int8"]),
    (lambda: store_rope(np.ones((1, 4)), np.ones((1, 8)), "fp4", "e4m3", STORING), ["rope key", "'fp4'"]),
])
def test_refusals(act, words):
    with pytest.raises(InputError) as caught_:
        act()
    assert all(word in str(caught_.value) for word in words), caught_.value


def test_parts_are_not_interpreted():
    """NaN codes, negative and infinite scales come back as they are."""
    parts = Parts(np.array([[127, 255] * 64], np.uint8), np.array([[-np.inf]], np.float32),
                  np.array([[0x7FC1]], np.uint16))
    again = split(join(parts), 128, 1)
    assert all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in zip(parts, again, strict=True))


def test_a_block_too_small_for_a_scale_is_stored_without_one():
    """amax / 448 is 0 or loses bits below 2^-126; nothing becomes NaN, and nothing is off by more than half a step."""
    rows = np.array([[1e-44, 0, -3e-43], [1e-36, 2e-45, 0], [1, 0, 0]], np.float32)
    for form in FORMATS:
        stored = quantize(rows, form, "token")
        assert stored.scales[0] == 1 and (stored.read()[0] == 0).all()
        assert (np.abs(stored.read().astype(np.float64) - rows) <= half_step(rows, form, stored)).all()
