"""A bound is worth something only if results stay inside it, wrong ones do not, and an empty one is refused."""
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_lab.arrays import get_backend, round_to_bfloat16
from mla_lab.ball import Ball, Rounding, gamma
from mla_lab.bounds import ball, compare, light_ball, spectral_radii
from mla_lab.bounds import store as store_ball

SINGLE = Rounding.of(get_backend("numpy", "float32"))
xp = Ball.namespace


def chain(a, b, w, xp, store):
    """A product chain, a softmax and a norm: every operation that the layer uses."""
    x = store(store(a @ b) @ w) * 0.3
    top = xp.max(x, axis=-1, keepdims=True)
    e = xp.exp(x - top)
    p = e / xp.sum(e, axis=-1, keepdims=True)
    y = store(p @ w.mT)
    z = xp.concat([y, y * y, -y], axis=-1)
    return z / xp.sqrt(xp.sum(z * z, axis=-1, keepdims=True) + 1e-6), xp.log(xp.sum(e, axis=-1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 40))
def test_float32_results_stay_inside_both_radii(seed, n, r):
    rng = np.random.default_rng(seed)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, n), (n, r), (r, r))]
    backend = get_backend("numpy", "float32")
    got = chain(*arrays, backend.xp, backend.store)
    spheres = chain(*(ball(x, SINGLE) for x in arrays), xp, store_ball)
    for result, sphere in zip(got, spheres, strict=True):
        off = np.abs(result.astype(np.float64) - sphere.value)
        assert result.dtype == np.float32 and (off <= sphere.worst).all() and (off <= sphere.likely()).all()
        assert (sphere.spread <= sphere.worst * (1 + 1e-12)).all()


def test_the_bound_of_one_product_is_highams():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((4, 50)), rng.standard_normal((50, 6))
    got = ball(a, SINGLE) @ ball(b, SINGLE)
    u = 2.0**-24 + 2.0**-53
    np.testing.assert_allclose(got.worst, 50 * u / (1 - 50 * u) * (np.abs(a) @ np.abs(b)), rtol=1e-12)
    np.testing.assert_allclose(got.spread, math.sqrt(50) * u * (np.abs(a) @ np.abs(b)), rtol=1e-12)
    assert gamma(50, 1.0) == math.inf


def test_a_worst_case_reaches_most_of_the_guarantee():
    """Summing 1 and many halves of its unit loses them all, so the guarantee cannot be made much smaller."""
    n, u = 4096, 2.0**-24
    a = np.concatenate([[1.0], np.full(n - 1, u)]).astype(np.float32)
    total = np.float32(0)
    for x in a:
        total = np.float32(total + x)
    sphere = ball(a[None], SINGLE) @ ball(np.ones((n, 1)), SINGLE)
    lost = sphere.value.item() - float(total)
    assert 0.9 * (n - 1) * u < lost < sphere.worst.item()


@pytest.mark.parametrize("operation", ["product", "sum", "exp", "divide", "store"])
def test_a_radius_grows_with_each_operation(operation):
    x = ball(np.array([[0.5, 2.0]]), Rounding(1e-3, 1e-2))
    grown = {"product": lambda: x @ x.mT, "sum": lambda: x + x, "exp": lambda: xp.exp(x), "divide": lambda: x / 3.1,
             "store": lambda: store_ball(x)}[operation]()
    assert np.all(grown.worst > 0) and np.all(grown.spread > 0)


@pytest.mark.parametrize("combine, slopes", [
    (lambda a, b: a * b, (5.0, 3.0)), (lambda a, b: a + b, (1, 1)), (lambda a, b: a - b, (1, 1)),
    (lambda a, b: a / b, (1 / 5, 3 / 25)), (lambda a, b: a[None] @ b[:, None], (5.0, 3.0)),
])
@pytest.mark.parametrize("side", [0, 1])
def test_each_operand_passes_its_radius_on(combine, slopes, side):
    """With exact arithmetic, a radius of 1e-6 in one operand comes out times the slope of the operation there."""
    exact = Rounding(0.0, 0.0)
    operands = [Ball(np.array([x]), exact) for x in (3.0, 5.0)]
    operands[side] = Ball(operands[side].value, exact, np.array([1e-6]), np.array([1e-6]))
    got = combine(*operands)
    for radius in (got.worst, got.spread):
        assert np.asarray(radius).item() == pytest.approx(slopes[side] * 1e-6, rel=1e-5)


def test_a_divisor_that_may_be_zero_has_no_bound():
    wide = Ball(np.array([1.0]), SINGLE, np.array([2.0]), np.array([2.0]))
    assert (ball(np.array([1.0]), SINGLE) / wide).worst.item() == math.inf


def test_a_light_ball_has_the_radii_of_a_full_one_to_a_percent():
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((3, 30), (30, 20), (20, 20))]
    full, light = (chain(*(make(x, SINGLE) for x in arrays), xp, store_ball)[0] for make in (ball, light_ball))
    assert (light_ball(arrays[0], SINGLE) @ arrays[1]).value.dtype == np.float32
    np.testing.assert_allclose(light.worst, full.worst, rtol=0.01)
    np.testing.assert_allclose(light.spread, full.spread, rtol=0.01)


def test_rounding_of_each_dtype():
    units = {d: Rounding.of(get_backend("numpy", d)) for d in ("float64", "float32", "bfloat16")}
    assert units["float64"].sums == 2.0**-52 and units["float64"].stored == 0  # its own and the reference's
    assert units["float32"].sums == pytest.approx(2.0**-24) and units["float32"].stored == 0
    assert units["bfloat16"].sums == pytest.approx(2.0**-24) and units["bfloat16"].stored == 2.0**-8


def test_singular_values_move_no_further_than_their_radii():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((60, 9)), rng.standard_normal((9, 40))
    sphere = store_ball(ball(a, Rounding(2.0**-24, 2.0**-8)) @ ball(b, SINGLE))
    rounded = round_to_bfloat16(a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)
    moved = np.abs(np.linalg.svd(rounded, compute_uv=False) - np.linalg.svd(a @ b, compute_uv=False)).max()
    radii = spectral_radii(sphere)
    assert moved < radii["likely"] and moved < radii["guarantee"]


def test_the_likely_radius_of_singular_values_wins_on_large_matrices():
    x = store_ball(ball(np.random.default_rng(4).standard_normal((400, 300)), Rounding(2.0**-24, 2.0**-8)))
    radii = spectral_radii(x)
    assert radii["likely"] < radii["guarantee"] / 2


# --- compare ---

def sphere(worst, spread, value=(1.0, -2.0)):
    return Ball(np.array(value), SINGLE, np.full(2, worst), np.full(2, spread))


def test_compare_passes_inside_and_fails_outside():
    want = np.array([1.0, -2.0])
    near, far = compare(want + 1e-3, want, sphere(2e-3, 1e-3)), compare(want + 3e-3, want, sphere(2e-3, 1e-3))
    assert near.ok and near.share == pytest.approx(0.5) and near.kind == "guarantee"
    assert not far.ok and far.share == pytest.approx(1.5)


def test_compare_falls_back_to_the_likely_radius_and_says_so():
    got = compare(np.array([1.0, -2.0]), np.array([1.0, -2.0]), sphere(50.0, 1e-3))
    assert got.ok and got.kind == "likely" and "independent" in got.note


def test_a_vacuous_bound_fails_even_a_perfect_result():
    got = compare(np.array([1.0, -2.0]), np.array([1.0, -2.0]), sphere(50.0, 50.0))
    assert not got.ok and got.kind == "vacuous" and "vacuous" in got.note


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_infinitely_far(bad):
    assert not compare(np.array([1.0, bad]), np.array([1.0, -2.0]), sphere(1e-3, 1e-4)).ok


def test_equal_infinities_agree_and_different_ones_do_not():
    want, s = np.array([1.0, -np.inf]), sphere(1e-3, 1e-4)
    assert compare(want, want, s).ok
    assert not compare(-want, want, s).ok and not compare(np.array([1.0, 0.0]), want, s).ok


def test_a_result_of_another_shape_fails():
    assert not compare(np.ones(3), np.ones(2), sphere(1e-3, 1e-4)).ok
