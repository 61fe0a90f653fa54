"""Properties that mistakes planted in the source slipped past when only checks and worked values looked."""
import math
from dataclasses import replace

import numpy as np
import pytest

from mla_lab import exact
from mla_lab.arrays import fresh, get_backend, to_numpy
from mla_lab.attention import (
    Projected,
    project,
    scores_absorb,
    scores_naive,
    values_absorb,
    values_naive,
    visible_keys,
)
from mla_lab.ball import FAILURE, Ball, Rounding
from mla_lab.bounds import ball as exact_ball
from mla_lab.bounds import compare, spectral_radii
from mla_lab.cache import LatentCache
from mla_lab.checks.case2_rank import rank_verdict
from mla_lab.checks.common import BALLS, SMALL, ball_weights
from mla_lab.decode import forward, full_recompute, positions_from
from mla_lab.errors import InputError
from mla_lab.memory import peak_bytes
from mla_lab.recipe import RIGHT, rms_norm
from mla_lab.rope import INTERLEAVED, rotate
from mla_lab.verdict import Setting
from mla_lab.weights import MLAWeights, random_state

EXACT = Rounding(0.0, 0.0)
xp = Ball.namespace


def ball(values, radius):
    values = np.asarray(values, float)
    return Ball(values, EXACT, np.full(values.shape, radius), np.full(values.shape, radius))


@pytest.mark.parametrize("move", [
    lambda x: x.mT, lambda x: x[0], lambda x: -x, lambda x: xp.reshape(x, (4,)), lambda x: xp.permute_dims(x, (1, 0)),
    lambda x: xp.concat([x, x], axis=0), lambda x: xp.stack([x, x], axis=-1), lambda x: xp.astype(x, x.dtype),
    lambda x: xp.where(np.ones((2, 2), bool), x, 0.0), lambda x: xp.where(np.zeros((2, 2), bool), 0.0, x),
])
def test_moving_elements_keeps_their_radii(move):
    got = move(ball([[1.0, 2.0], [3.0, 4.0]], 1e-3))
    for radius in (got.worst, got.spread):
        np.testing.assert_allclose(np.broadcast_to(radius, got.shape), 1e-3)


@pytest.mark.parametrize("function, slope", [(xp.exp, math.exp(2.0)), (xp.log, 1 / 2), (xp.sqrt, 0.5 / math.sqrt(2.0)),
                                             (lambda x: xp.sum(x, axis=0), 1.0)])
def test_functions_pass_a_small_radius_on_by_their_slope(function, slope):
    got = function(ball([2.0], 1e-6))
    for radius in (got.worst, got.spread):
        assert np.asarray(radius).item() == pytest.approx(slope * 1e-6, rel=1e-5)


def test_the_radius_of_exp_is_that_of_the_curve_and_not_of_its_tangent():
    got = xp.exp(ball([1.0], 2.0))
    assert got.worst.item() >= math.exp(3.0) - math.exp(1.0) - 1e-9


def test_a_conversion_and_a_cosine_cost_their_rounding():
    narrow = Ball(np.ones(1), Rounding(2.0**-24, 0.0)).dtype
    assert xp.astype(np.array([3.0]), narrow).worst.item() == pytest.approx(3 * 2.0**-24)
    assert xp.cos(np.array([1000.0])).worst.item() >= 1000 * 2.0**-53  # the angle itself has been rounded


def test_the_likely_radius_of_singular_values_is_tropps():
    x = ball(np.ones((30, 20)), 1e-3)
    want = 1e-3 * math.sqrt(30) * math.sqrt(2 * math.log(50 / FAILURE))
    assert spectral_radii(x)["likely"] == pytest.approx(want, rel=1e-12)


def test_a_rank_whose_last_singular_value_is_not_clear_of_rounding_fails():
    matrix, here = np.diag([1.0, 1e-3, 0.0]), Setting(get_backend(), SMALL)
    for radius, ok in ((1e-4, True), (0.9e-3, False)):  # 1e-3 is above both, but may be noise of the second
        assert rank_verdict("c", here, matrix, {"guarantee": radius, "likely": radius}, 2).ok is ok


def test_residues_fill_the_field(backend):
    values = to_numpy(exact.residues(backend, 0, 4000))
    assert values.min() < exact.PRIME / 100 and values.max() > exact.PRIME * 0.99 and (values == np.round(values)).all()
    assert all(exact.PRIME % d for d in range(2, 1025)) and exact.LARGEST_SUM * (exact.PRIME - 1) ** 2 < 2**53


def test_naive_writes_expanded_keys_and_values_and_absorb_never_does():
    draw, h, t, s, n, p, r, v = fresh(0), 3, 2, 11, 4, 6, 5, 7
    q = Projected(draw(1, h, t, n), draw(1, h, t, p), draw(1, s, r), draw(1, s, p))
    w_uk, w_uv, shares = draw(h, n, r), draw(h, r, v), draw(1, h, t, s)
    def written(work):
        shapes = []
        work(replace(RIGHT, store=lambda x: (shapes.append(x.shape), x)[1]))
        return shapes
    args = q, q.c_kv, q.k_rope, w_uk
    assert (1, h, s, n) in written(lambda recipe: scores_naive(*args, recipe))
    assert (1, h, s, v) in written(lambda recipe: values_naive(shares, q.c_kv, w_uv, recipe))
    absorbed = written(lambda recipe: (scores_absorb(*args, recipe), values_absorb(shares, q.c_kv, w_uv, recipe)))
    assert (1, h, t, r) in absorbed and not any(shape[:3] == (1, h, s) for shape in absorbed)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_peak_bytes_is_the_peak_and_not_what_is_left(name):
    backend = get_backend(name)
    def work():
        first = backend.full((1000, 100), 1.0)
        second = first + 1
        del first
        return second[:1, :] * 2
    assert peak_bytes(backend, work) == pytest.approx(2 * 800_000, rel=0.02)


@pytest.mark.parametrize("at", [4097, 100_003, 1_000_003])
def test_far_positions_turn_as_complex_numbers_do(backend, at):
    x, radians = fresh(1)(1, 8), 1e4 ** (-np.arange(0, 8, 2) / 8)
    got = to_numpy(rotate(backend.asarray(x), backend.xp.asarray([at], device=backend.device), radians, INTERLEAVED))
    want = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * at * radians)
    np.testing.assert_allclose(got[:, 0::2] + 1j * got[:, 1::2], want, atol=1e-9)


def test_the_last_of_many_tokens_sees_all_of_them():
    assert visible_keys((4000,), (5000,), 1000, 5000, np.zeros(1))[0, 0, -1].all()


def test_positions_far_beyond_the_original_context_are_not_wrapped(backend):
    """Rope scores of a layer's own projections at 5,000 and 5,003 are those at 0 and 3."""
    state = random_state(SMALL, backend, 3)
    weights, hidden = MLAWeights.from_hugging_face(state, SMALL), backend.asarray(fresh(4)(1, 2, SMALL.hidden_size))
    def score(*at):
        q = project(hidden, weights, SMALL, backend.xp.asarray([list(at)], device=backend.device))
        return to_numpy(q.q_rope[0, :, 1:, :] @ q.k_rope[:, :1, :].mT)
    assert to_numpy(positions_from((5000, 0), 3, hidden)).tolist() == [[5000, 5001, 5002], [0, 1, 2]]
    np.testing.assert_allclose(score(5000, 5003), score(0, 3), atol=1e-9)
    np.testing.assert_allclose(score(4095, 4098), score(0, 3), atol=1e-9)
    assert np.abs(score(5000, 5002) - score(0, 3)).max() > 1e-3


@pytest.mark.parametrize("run", ["forward", "full_recompute"])
def test_the_mode_that_is_asked_for_is_the_one_that_runs(run):
    backend, shapes = get_backend(), []
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend), SMALL)
    hidden = fresh(5)(1, 7, SMALL.hidden_size)
    for mode in ("naive", "absorb"):
        shapes.clear()
        recipe = replace(RIGHT, store=lambda x: (shapes.append(x.shape), x)[1])
        if run == "forward":
            forward(hidden, weights, SMALL, LatentCache.allocate(SMALL, 1, 7, backend), mode, recipe=recipe)
        else:
            full_recompute(hidden, weights, SMALL, mode, recipe)
        expanded = (1, SMALL.num_attention_heads, 7, SMALL.kv_lora_rank)
        assert (expanded in shapes) == (mode == "absorb")


def test_norms_and_rotations_of_16_bits_are_rounded_once():
    import torch
    x, w = (torch.from_numpy(fresh(6)(*s)) for s in ((4, 32), (32,)))
    narrow = x.bfloat16(), w.bfloat16()
    exact = rms_norm(narrow[0].double(), narrow[1].double(), 1e-6)
    assert torch.equal(rms_norm(*narrow, 1e-6), exact.float().bfloat16())
    at, radians = torch.arange(4) + 900, 1e4 ** (-np.arange(0, 32, 2) / 32)
    assert torch.equal(rotate(narrow[0], at, radians), rotate(narrow[0].double(), at, radians).float().bfloat16())


@pytest.mark.parametrize("gate", [None, "head"])
def test_the_outputs_of_padding_are_zero_whatever_padding_holds(backend, gate):
    config = replace(SMALL, attention_bias=True, output_gate=gate)
    weights = MLAWeights.from_hugging_face(random_state(config, backend, 7), config)
    hidden = to_numpy(backend.asarray(fresh(8)(2, 3, config.hidden_size))).copy()
    hidden[1, 1:] = np.nan
    cache = LatentCache.allocate(config, 2, 3, backend)
    out, _ = forward(backend.asarray(hidden), weights, config, cache, counts=(3, 1))
    assert (to_numpy(out)[1, 1:] == 0).all() and np.isfinite(to_numpy(out)).all()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_bias_in_bfloat16_is_rounded_where_its_ball_says(name):
    backend, config = get_backend(name, "bfloat16"), replace(SMALL, attention_bias=True)
    state = random_state(config, backend, 9)
    hidden = backend.asarray(fresh(10)(1, 5, config.hidden_size))
    got = full_recompute(hidden, MLAWeights.from_hugging_face(state, config), config,
                         recipe=replace(RIGHT, store=backend.store))
    sphere = full_recompute(exact_ball(hidden, Rounding.of(backend)), ball_weights(state, config, backend), config,
                            recipe=BALLS)
    assert compare(got, sphere.value, sphere, sphere).ok


def test_a_bad_mode_or_cache_is_refused_before_the_cache_is_written(backend):
    weights = MLAWeights.from_hugging_face(random_state(SMALL, backend), SMALL)
    hidden, cache = backend.asarray(fresh(11)(2, 1, SMALL.hidden_size)), LatentCache.allocate(SMALL, 2, 3, backend)
    with pytest.raises(InputError, match="mode"):
        forward(hidden, weights, SMALL, cache, "absorbed")
    assert (to_numpy(cache.rows) == 0).all()
    with pytest.raises(InputError, match="cache"):
        forward(hidden, weights, SMALL, LatentCache.allocate(SMALL, 3, 3, backend))
    for counts in ((1.9, 1), "12", 3):
        with pytest.raises(InputError, match="counts"):
            forward(hidden, weights, SMALL, cache, counts=counts)


def test_a_float_that_float32_cannot_hold_is_no_exact_number():
    x = Ball(np.ones(1), Rounding(2.0**-24, 0.0))
    assert (x * 33554435.0).worst.item() >= 2 * 33554435.0 * 2.0**-24 * 0.99
    assert (x * 2.0).worst.item() == pytest.approx(2 * 2.0**-24)
