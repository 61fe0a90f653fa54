"""Arrays whose numbers are not neighbours in memory: a kernel that takes them for neighbours is wrong in silence."""
from dataclasses import replace

import pytest
from kernels import ON_CPU

from mla_lab.errors import InputError
from mla_lab.kernels.conformance import CASES, build, judge

PLACES = [place for place in ON_CPU if (place.package, place.dtype) == ("torch", "float32")]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("which", ["q", "kv_cache"])
def test_channels_that_are_not_neighbours_in_memory_are_read_in_their_order(place, which):
    """torch's fused operators read neighbours, whatever the strides say; only the public function looks."""
    case = next(case for case in CASES if case.page is None and case.heads > 1)
    problem = build(case, place.convert)
    x = getattr(problem, which)
    spread = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), float("nan"))[..., ::2]
    spread[...] = x
    strided = replace(problem, **{which: spread})
    if (place.kernel, which) == ("triton", "kv_cache"):
        with pytest.raises(InputError, match="contiguous"):
            place.run(strided)
    else:
        assert judge(*place.run(strided), strided, case).ok


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("name", ["lengths", "block_table"])
def test_lengths_and_page_ids_may_be_every_other_number_of_a_tensor(place, name):
    case = next(c for c in CASES if (c.page is None) == (name == "lengths") and len(c.lengths) > 1 and c.heads > 1)
    problem = build(case, place.convert)
    doubled = getattr(problem, name).repeat_interleave(2, -1)
    doubled[..., 1::2] = 3  # a length and a page that exist: who reads them is wrong, and no more than that
    strided = replace(problem, **{name: doubled[..., ::2]})
    assert judge(*place.run(strided), strided, case).ok
