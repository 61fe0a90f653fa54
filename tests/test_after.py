"""Notebook 15: checks and planted faults, the pieces by hand, the figure."""
import itertools

import numpy as np
import pytest

from mla_lab import exact
from mla_lab.after import checks15_after as case15
from mla_lab.after import convert, plots, sizes, sparse, split
from mla_lab.arrays import get_backend, strict_backend, to_numpy
from mla_lab.checks.common import SMALL
from mla_lab.errors import InputError
from mla_lab.serving.common import caught
from mla_lab.verdict import Setting

CHECKS = {check.id: check for check in case15.CHECKS}


@pytest.mark.parametrize("id", CHECKS)
def test_each_check_holds_and_catches_what_it_must(backend, id):
    setting = Setting(backend, SMALL, "small")
    verdict = CHECKS[id].run(setting)
    assert verdict.ok, str(verdict)
    assert all(caught(CHECKS[id], case15.FAULTS, setting, case15.RIGHT).values())


def test_every_check_has_a_fault_and_every_fault_a_check():
    assert {id for fault in case15.FAULTS for id in fault.caught_by} == set(CHECKS)
    assert all(fault.why and "#" in fault.thread for fault in case15.FAULTS)


def test_a_fault_turns_red_the_checks_that_it_names_and_no_other():
    setting = Setting(get_backend("numpy"), SMALL, "small")
    for fault, check in itertools.product(case15.FAULTS, case15.CHECKS):
        seen = check.run(setting, fault.spoil(case15.RIGHT))
        assert seen.ok == (check.id not in fault.caught_by), (fault.id, check.id)


def test_the_strict_namespace_gives_the_same_choice():
    xp = strict_backend().xp
    scores, visible = xp.asarray([[[1.0, 5.0, 5.0, 9.0]]]), xp.asarray([[[True, True, True, False]]])
    assert to_numpy(sparse.best_visible(scores, visible, 2)).tolist() == [[[False, True, True, False]]]


def test_rank_factors_by_hand():
    matrix = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 1.0, 1.0]])
    up, down = convert.rank_factors(matrix)
    assert down.tolist() == [[1, 0, 1], [0, 1, 1]] and up.tolist() == [[1, 2], [2, 4], [0, 1]]
    wide = exact.residues(get_backend("numpy"), 1, 7, 12)
    up, down = convert.rank_factors(wide)
    assert up.shape == (7, 7) and not np.any((up @ down - wide) % exact.PRIME)


def test_hadamard_keeps_lengths():
    h = split.hadamard(16)
    assert np.array_equal(h @ h.T, 16 * np.eye(16)) and set(np.unique(h)) == {-1, 1}


def test_what_does_not_divide_is_refused_and_zeros_have_rank_zero():
    """With 8 channels on 3 ranks two would be of no rank, and nobody would see it."""
    with pytest.raises(InputError, match="8 channels cannot be dealt out evenly to 3 ranks"):
        split.shard_scores(np.ones((1, 2, 1, 8)), np.ones((1, 4, 8)), 3)
    for n in (0, 3, 2.0):
        with pytest.raises(InputError, match="n must be"):
            split.hadamard(n)
    up, down = convert.rank_factors(np.zeros((3, 4)))
    assert (up.shape, down.shape) == ((3, 0), (0, 4))


def test_sources_stand_beside_every_number():
    assert len({method.name for method in sizes.METHODS}) == len(sizes.METHODS)
    assert all("arXiv" in m.source or "@" in m.source for m in sizes.METHODS)
    text = str(repr(plots.cache_of_each(8)))
    assert "GLA-2: 576; 320; 2 (r / 2) + p; arXiv 2505.21487" in text and "MLA + DSA: 704; 704" in text
