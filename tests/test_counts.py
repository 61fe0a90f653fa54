"""FLOPs and bytes against published numbers, against torch's own counter, and against arrays that really exist."""
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mla_lab.config import MLAConfig
from mla_lab.errors import InputError
from mla_lab.kernels import counts
from mla_lab.kernels.counts import Work, absorb, absorbed_kernel, attention, crossover, expand, mha_kernel
from mla_lab.kernels.roofline import DEVICES, Device, intensity_limit
from mla_lab.models import get_mla

V3 = get_mla("DeepSeek-V3").mla
SMALL = MLAConfig(hidden_size=29, num_attention_heads=3, kv_lora_rank=17, qk_nope_head_dim=7, qk_rope_head_dim=4,
                  v_head_dim=5, q_lora_rank=11)


def test_intensity_of_decode_is_the_published_one():
    assert intensity_limit(V3) == pytest.approx(241.8, abs=0.05)
    for tokens in (64, 4096, 10**8):
        # 2 h 1088 S / (1152 S + 2 h 1088), h = 128
        assert absorbed_kernel(V3, 1, tokens - 1).intensity == pytest.approx(
            2 * 128 * 1088 * tokens / (1152 * tokens + 2 * 128 * 1088))
    assert absorbed_kernel(V3, 1, 10**8).intensity == pytest.approx(intensity_limit(V3), rel=1e-4)
    assert intensity_limit(V3, new=2) == 2 * intensity_limit(V3)
    assert intensity_limit(V3, itemsize=4) == intensity_limit(V3) / 2
    assert absorbed_kernel(V3, 1, 0).flops == 2 * 128 * 1088


def test_mha_decode_has_one_flop_a_byte():
    work = mha_kernel(V3, 1, 10**6)
    assert work.intensity == pytest.approx(1, rel=1e-4)
    assert work.bytes // (10**6 + 1) == 81_920


def test_a_batch_is_counted_as_flash_mla_counts_it():
    b, s, t, h = 128, 4096, 2, 128
    work = b * absorbed_kernel(V3, t, s - t, causal=False)
    assert work.flops == b * h * t * 2 * (576 + 512) * s
    assert work.bytes == b * (t * h * 576 * 2 + s * 576 * 2 + t * h * 512 * 2)


def test_naive_decode_costs_121_times_the_flops():
    assert expand(V3, 1).flops == 33_554_432
    assert absorbed_kernel(V3, 1, 0).flops == 278_528
    long = 10**7
    ratio = attention(V3, 1, long, "naive").flops / attention(V3, 1, long).flops
    assert ratio == pytest.approx(120.8, abs=0.05)


@pytest.mark.parametrize(("tokens", "alone", "with_projections"), [
    (512, 1.92, 1.13), (2048, 2.71, 1.44), (8192, 3.18, 2.13), (32768, 3.34, 2.88)])
def test_prefill_prefers_the_naive_form(tokens, alone, with_projections):
    absorbed, naive = (attention(V3, tokens, 0, form) for form in ("absorbed", "naive"))
    assert absorbed.flops / naive.flops == pytest.approx(alone, abs=0.005)
    shared = counts.projections(V3, tokens)
    assert (absorbed + shared).flops / (naive + shared).flops == pytest.approx(with_projections, abs=0.005)
    assert naive.flops == attention(V3, tokens, 0, "mha").flops


def test_works_add_up():
    assert Work(1, 2) + Work(10, 20) == Work(11, 22) and 3 * Work(1, 2) == Work(1, 2) * 3 == Work(3, 6)
    assert counts.projections(SMALL, 1, 4).bytes == 4 * (counts.projections(SMALL, 1).flops // 2 + sum(
        [29 + 11, 11 + 3 * 11, 29 + 17 + 4, 3 * 5 + 29]))


def test_projections_and_the_online_service():
    assert counts.projections(V3, 1).flops == pytest.approx(340.7e6, rel=1e-3)
    each = absorbed_kernel(V3, 1, 4989 - 1)
    assert 61 * each.flops == pytest.approx(84.8e9, rel=1e-3)
    assert round(61 * 4989 * 1152 / 1e6) == 351


def test_the_crossover_is_170_7_whatever_the_heads():
    assert crossover(V3) == pytest.approx(131072 / 768) == pytest.approx(170.67, abs=0.01)
    assert crossover(replace(V3, num_attention_heads=16, hidden_size=1)) == crossover(V3)
    found = [round(crossover(V3, cached)) for cached in (128, 512, 1024, 4096, 16384)]
    assert found == [117, 149, 158, 167, 170]
    assert crossover(V3, 0) == 0
    assert crossover(replace(V3, kv_lora_rank=128)) == np.inf


@given(cached=st.integers(1, 10**6), n=st.integers(1, 64), r=st.integers(1, 200), v=st.integers(1, 64))
def test_the_crossover_is_where_the_flops_cross(cached, n, r, v):
    config = replace(V3, qk_nope_head_dim=n, kv_lora_rank=r, v_head_dim=v)
    at = crossover(config, cached)
    for new in {max(1, int(min(at, 10**7)) + k) for k in (-1, 0, 1, 2)}:
        absorbed, naive = (attention(config, new, cached, form).flops for form in ("absorbed", "naive"))
        if abs(new - at) > 1e-6 * at:
            assert (absorbed < naive) == (new < at)


def test_premultiplied_weights():
    found = counts.premultiplied(V3)
    assert found.query_merged / found.query_factored == pytest.approx(3.0)
    assert found.output_merged / found.output_factored == pytest.approx(3.73, abs=0.005)
    assert [round(f / 1e6, 1) for f in found.flops] == [318.8, 1140.9]
    assert found.ratio == pytest.approx(3.58, abs=0.005)
    lite = get_mla("DeepSeek-V2-Lite").mla
    assert counts.premultiplied(lite).query_merged == 16 * 2048 * 512


def test_premultiplied_counts_the_elements_of_real_matrices():
    h, q, n, r, v, d = 3, 11, 7, 17, 5, 29
    w_uq, w_uk, w_uv, w_o = (np.ones(s) for s in ((h, q, n), (h, n, r), (h, r, v), (h, v, d)))
    found = counts.premultiplied(SMALL)
    assert found.query_factored == w_uq.size + w_uk.size and found.query_merged == (w_uq @ w_uk).size
    assert found.output_factored == w_uv.size + w_o.size and found.output_merged == (w_uv @ w_o).size


def test_bytes_are_those_of_real_arrays():
    h, n, p, r, v, new, cached = 3, 7, 4, 17, 5, 2, 9
    size = lambda *shapes: sum(np.ones(s, dtype=np.float32).nbytes for s in shapes)
    s = new + cached
    assert absorbed_kernel(SMALL, new, cached, 4).bytes == size((new, h, r + p), (s, r + p), (new, h, r))
    assert mha_kernel(SMALL, new, cached, 4).bytes == size((new, h, n + p), (s, h, n + p), (s, h, v), (new, h, v))
    assert expand(SMALL, s, 4).bytes == size((s, r + p), (h, r, n), (h, r, v), (s, h, n + p), (s, h, v))
    assert absorb(SMALL, new, 4).bytes == size((h, r, n), (h, r, v), (new, h, n), (new, h, r), (new, h, r), (new, h, v))


@pytest.mark.parametrize("new", [1, 3])
@pytest.mark.parametrize("form", ["absorbed", "naive"])
def test_flops_are_those_that_torch_counts(form, new):
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from mla_lab.attention import Projected, attend
    h, n, p, r, v, s = 3, 7, 4, 17, 5, 12
    make = lambda *shape: torch.ones(shape)
    q = Projected(make(1, h, new, n), make(1, h, new, p), make(1, s, r), make(1, s, p))
    with FlopCounterMode(display=False) as counter:
        attend(q, q.c_kv, q.k_rope, make(h, n, r), make(h, r, v), SMALL, torch.ones(1, 1, new, s, dtype=torch.bool),
               {"absorbed": "absorb"}.get(form, form))
    assert counter.get_total_flops() == attention(SMALL, new, s - new, form, causal=False).flops


def test_flops_of_the_kernel_are_those_that_torch_counts():
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from mla_lab.kernels import decode
    with FlopCounterMode(display=False) as counter:
        decode(torch.ones(1, 1, 3, 21), torch.ones(1, 12, 21), [12], 0.1, 17, kernel="rows")
    assert counter.get_total_flops() == absorbed_kernel(SMALL, 1, 11).flops


def test_causal_pairs_are_those_of_the_mask():
    for new, cached in ((1, 0), (1, 5), (4, 0), (3, 6)):
        mask = np.arange(cached + new)[None, :] <= cached + np.arange(new)[:, None]
        assert counts.visible_pairs(new, cached) == mask.sum()
        assert counts.visible_pairs(new, cached, causal=False) == mask.size


def test_bad_sizes_and_forms_are_refused():
    for call in (lambda: attention(V3, 0, 5), lambda: attention(V3, 1, -1), lambda: attention(V3, 1, 1, "mqa"),
                 lambda: crossover(V3, -1)):
        with pytest.raises(InputError):
            call()


# --- the roofline ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "ridge", "rows", "bound"), [
    ("H800", 295.5, 156.5, "memory"), ("H800, throttled", 258.2, 136.7, "memory"), ("H200", 206.3, 109.2, "compute"),
    ("H200, measured", 183.7, 97.3, "compute"), ("H20", 37.0, 19.6, "compute"), ("B200", 281.3, 148.9, "memory")])
def test_which_side_of_the_ridge(name, ridge, rows, bound):
    device = DEVICES[name]
    assert device.ridge == pytest.approx(ridge, abs=0.06)
    assert device.rows_at_ridge(V3) == pytest.approx(rows, abs=0.06)
    assert device.bound(intensity_limit(V3)) == bound
    below, above = (intensity_limit(replace(V3, num_attention_heads=int(rows) + k)) for k in (0, 1))
    assert below < device.ridge < above


def test_the_roof_has_two_slopes_that_meet_at_the_ridge():
    device = Device("x", 100.0, 4.0, "")
    assert [device.attainable(i) for i in (1, 25, 50)] == [4, 100, 100]
    assert device.seconds(Work(1000, 8)) == 10 and device.seconds(Work(8, 1000)) == 250
    assert DEVICES["H800, throttled"].attainable(intensity_limit(V3)) == pytest.approx(810e12, rel=1e-3)
    at = [device.attainable(i) for i in np.linspace(1, 60, 50)]
    assert all(a <= b for a, b in pairwise(at))
