"""Case 8 holds on every backend, and fails under each planted fault exactly where it is said to."""
import pytest

from mla_lab.arrays import get_backend
from mla_lab.kernels import checks08_roofline as case
from mla_lab.kernels.checks08_roofline import CHECKS, PLANTED, RIGHT, V3, executed
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
