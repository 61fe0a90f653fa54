"""What the exercises of notebooks 10 and 11 take for right is what the package computes."""
import numpy as np

from mla_lab.exercises import fp8_latent, paged_cache
from mla_lab.serving.blocks import BlockTables
from mla_lab.serving.quantize import quantize


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
