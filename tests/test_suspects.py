"""The line-up of notebook 07: `diagnose` names each fault, and the usual tests see what the notebook says they see."""
import numpy as np
import pytest

from mla_lab import InputError, diagnose, get_backend, lineup
from mla_lab.diagnosis.observe import observe
from mla_lab.diagnosis.result import conclude
from mla_lab.exercises.find_the_fault import ANSWERS
from mla_lab.suspects import PROTOCOL, SUSPECTS, decode, layer

RUNS = [("numpy", "float64"), ("torch", "float64"), ("torch", "bfloat16")]


def named(implementation, protocol, package="numpy", dtype="float64"):
    if package == "torch":
        pytest.importorskip("torch")
    cases = lineup.cases(protocol)
    found = conclude("?", protocol, dtype, package, cases, observe(implementation, cases, dtype, package))
    assert not found.problems and not found.alike, str(found)
    return found.faults


@pytest.mark.parametrize("package, dtype", RUNS)
@pytest.mark.parametrize("name", SUSPECTS)
def test_diagnose_names_it(name, package, dtype):
    assert set(named(SUSPECTS[name], PROTOCOL[SUSPECTS[name]], package, dtype)) == set(ANSWERS[name])


@pytest.mark.parametrize("body, protocol", [(layer, "layer"), (decode, "decode")])
def test_what_they_share_is_right(body, protocol):
    assert named(body, protocol) == ()


def test_one_after_the_other_says_what_diagnose_says():
    for name in ("suspect_d", "suspect_e"):
        assert lineup.diagnosed(SUSPECTS[name], get_backend("numpy")) == diagnose(SUSPECTS[name], "decode")


def test_one_is_right_one_has_two_faults_and_no_two_are_alike():
    assert sorted(map(len, ANSWERS.values())) == [0, 1, 1, 1, 1, 1, 1, 2]
    assert ANSWERS.keys() == SUSPECTS.keys() and len(set(ANSWERS.values())) == 8


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_what_the_usual_tests_see(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    passed = {name: [ok for _, ok in lineup.usual_tests(f, get_backend(backend)).items()]
              for name, f in SUSPECTS.items()}
    assert passed == {
        "suspect_a": [True, True, True, False], "suspect_d": [True, True, True, True],
        "suspect_e": [True, False, False, False], "suspect_h": [False, False, False, False],
        "suspect_b": [True, True, False, False, True], "suspect_c": [False, False, True, False, False],
        "suspect_f": [True, True, True, True, False], "suspect_g": [True, True, False, False, True],
    }


def test_the_right_bodies_pass_the_usual_tests():
    for body, protocol in ((layer, "layer"), (decode, "decode")):
        assert all(lineup.usual_tests(body, get_backend("numpy"), protocol).values())


def test_far_is_no_small_distance():
    assert lineup.same(np.ones(3), np.ones(3) * 1.0009) and not lineup.same(np.ones(3), np.ones(3) * 1.0011)
    assert not lineup.same(np.array([np.nan]), np.ones(1)) and not lineup.same(np.ones((2, 1)), np.ones(2))
    with pytest.raises(InputError, match="protocol 'module' is not known"):
        lineup.usual_tests(layer, get_backend("numpy"), "module")
