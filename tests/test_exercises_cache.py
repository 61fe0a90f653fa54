"""Exercises of notebooks 10 and 11: four levels each, the right answer accepted, every wrong one with its own hint."""
import numpy as np
import pytest

from mla_lab.exercises import all_exercises, fp8_latent, paged_cache
from mla_lab.serving.blocks import BlockTables
from mla_lab.serving.quantize import quantize

MINE = [e for e in all_exercises() if e.notebook in ("10", "11")]


def test_all_four_levels_in_each_notebook():
    for notebook, module in (("10", paged_cache), ("11", fp8_latent)):
        here = [e for e in MINE if e.notebook == notebook]
        assert {e.level for e in here} == {"recall", "compute", "implement", "find the bug"} and len(here) >= 4
        assert {e.name for e in here} == {name for name in vars(module) if name.startswith("check_")}


@pytest.mark.parametrize("made", MINE, ids=lambda e: e.name)
def test_right_wrong_and_open_answers(made):
    assert made(made.right) == "right" and made(None) == made(...) == "not answered yet"
    assert len(made.wrong) >= 3 and len(set(made.wrong.values())) == len(made.wrong)
    for mistake, hint in made.wrong.items():
        assert made(mistake) == f"not yet: {hint}"
    for nonsense in ("seventy", 1e99, lambda *_: "no", [[]], object()):
        said = made(nonsense)
        assert said != "right" and said and "\n" not in said


def test_the_right_answers_are_what_the_package_gives():
    tables = BlockTables(20, 64)
    tables.begin("a")
    tables.extend("a", 1000, list(range(1000)))
    assert 64 * len(tables["a"].blocks) - 1000 == 24
    assert tables.begin("b", [*range(1000), 5, 5, 5]) == paged_cache.check_found_tokens.right == 960
    rows = np.random.default_rng(0).standard_normal((4, 384)).astype(np.float32)
    rows[0, :128] = 0
    np.testing.assert_allclose(fp8_latent.check_tile_scales.right(rows), quantize(rows, "e4m3", "tile").scales,
                               rtol=1e-6)
    assert fp8_latent.check_tile_scales(lambda x: quantize(x, "e4m3", "tile").scales) == "right"
