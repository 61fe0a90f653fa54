"""Case 8 holds on every backend, and fails under each planted fault exactly where it is said to."""
import numpy as np
import pytest

from mla_lab.arrays import get_backend
from mla_lab.kernels import checks08_roofline as case
from mla_lab.kernels import measured
from mla_lab.kernels import roofline_plots as plots
from mla_lab.kernels.checks08_roofline import CHECKS, PLANTED, RIGHT, V3, executed
from mla_lab.kernels.roofline import Device
from mla_lab.verdict import Setting

BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.id)
@pytest.mark.parametrize("name, dtype", [("numpy", "float64"), ("torch", "float64"), ("torch", "float32")])
def test_it_holds(check, name, dtype):
    verdict = check.run(Setting(get_backend(name, dtype), V3))
    assert verdict.ok and verdict.claim == check.claim, (str(verdict), verdict.saw, verdict.expected)


@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f.id)
def test_a_planted_fault_turns_its_checks_red_and_no_other(fault):
    setting = Setting(get_backend("numpy"), V3)
    red = {check.id for check in CHECKS if not check.run(setting, fault.spoil(RIGHT)).ok}
    assert red == set(fault.caught_by)


def test_products_are_counted_one_by_one():
    c = V3  # absorbed decode over s keys, by hand: W_UK, latent and rope logits, values, W_UV
    want = 128 * (128 * 512 + 7 * 512 + 7 * 64 + 7 * 512 + 512 * 128) * 2
    assert executed(c, 1, 6, "absorb") == want


def test_every_check_but_the_equality_has_a_fault():
    assert {i for fault in PLANTED for i in fault.caught_by} == set(BY_ID) - {"8.same_query"}


def test_another_query_is_not_the_same(monkeypatch):
    compare = case.compare
    monkeypatch.setattr(case, "compare", lambda merged, factored, *radii: compare(merged[::-1], factored, *radii))
    assert not BY_ID["8.same_query"].run(Setting(get_backend("numpy"), V3)).ok


def test_both_orders_of_products_are_one_function():
    backend, rows = get_backend("numpy"), (7, V3.cached_width)
    q, k = (measured.numbers(backend, *shape) for shape in ((2, 3, V3.qk_head_dim), rows))
    w_uk, w_uv = (measured.numbers(backend, *shape) for shape in ((2, 128, 512), (2, 512, 128)))
    np.testing.assert_allclose(measured.rebuilt(q, k, w_uk, w_uv), measured.absorbed(q, k, w_uk, w_uv), rtol=1e-9,
                               atol=1e-6)


def test_what_was_measured_is_in_no_text():
    def texts(x):
        yield plots.measured_roof(Device("this machine", 3e10 * x, 1e10 / x, ""), {1: 1e9 * x, 16: 2e10 * x}, 4096, 4)
        yield plots.measured_crossover({64: (1.0 * x, 0.5), 256: (1.0, 2.0 * x)}, 1024)
        yield plots.measured_merge({"W_UQ W_UK": (1.0, 2.0 * x), "W_UV W_O": (1.0, 3.0 * x)})

    for one, other in zip(texts(1.0), texts(1.7), strict=True):
        assert (one.alt, one.numbers) == (other.alt, other.numbers)
        assert one.png() != other.png()


def test_the_machine_is_measured_in_flop_and_bytes_a_second():
    backend = get_backend("numpy", "float32")
    product, copy = measured.machine(backend, side=64, elements=1000)
    assert product.work.flops == 2 * 64**3 and copy.work.bytes == 2 * 4 * 1000
    copy.run()
    product.seconds, copy.seconds = [2.0, 1.0], [3.0]
    assert measured.rate(product) == 2 * 64**3 and measured.fastest(copy) == 3
