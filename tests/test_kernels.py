"""Every kernel on every case of `mla_lab.kernels.conformance`; the judge's own faults are in test_kernel_mutants.py."""
import subprocess
import sys

import numpy as np
import pytest
from kernels import HAS_CUDA, HAS_TRITON, ON_CPU, ON_CUDA, Place

from mla_lab.arrays import get_backend, to_numpy
from mla_lab.errors import InputError
from mla_lab.kernels import KERNELS, Scratch, decode, rows
from mla_lab.kernels.conformance import CASES, GARBAGE, Case, build, judge
from mla_lab.memory import peak_bytes

NUMPY = Place("rows", "numpy", "float32")
IN_PARTS = [place for place in ON_CPU if place.package == "torch" and place.kernel in ("rows", "tiled")]


def verdict(place, case):
    problem = build(case, place.convert)
    # torch's fused attention takes exp with the accuracy of 16 bits where the output has 16 bits
    rounded = place.kernel == "sdpa" and place.dtype.endswith("16")
    return judge(*place.run(problem), problem, case, rounded)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("place", ON_CPU, ids=str)
def test_conforms(place, case):
    found = verdict(place, case)
    assert found.ok, found


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("place", IN_PARTS, ids=str)
def test_conforms_with_products_in_parts(place, case, monkeypatch):
    """On torch's CPU long products are cut into batches of keys; here even short ones are."""
    monkeypatch.setattr(rows, "SHORT", 7)
    assert rows.parts(place.convert(np.ones((20, 3)))) == 2
    found = verdict(place, case)
    assert found.ok, found


@pytest.mark.parametrize("place", ON_CUDA, ids=str)
def test_conforms_on_a_gpu(place):
    """No GPU has run this yet."""
    wrong = {str(case): str(found) for case in CASES if not (found := verdict(place, case)).ok}
    assert not wrong


def test_the_cases_hold_the_traps_they_are_for():
    """A case without its trap is held by any kernel."""
    lengths = [n for case in CASES for n in case.lengths]
    assert 0 in lengths and 1 in lengths
    assert any(n < case.tokens for case in CASES for n in case.lengths if n)
    assert {case.heads for case in CASES} >= {1, 3, 9, 16, 63, 126, 128}
    for case in CASES:
        problem = build(case, NUMPY.convert)
        cache = problem.kv_cache
        assert case.latent != case.rope and np.isnan(cache).any()
        if case.page is None:
            continue
        assert np.isnan(cache).all(axis=(1, 2)).any(), "a page nobody uses"
        table = problem.block_table
        for row, length in zip(table, case.lengths, strict=True):
            used = -(-length // case.page)
            assert (row[used:] == GARBAGE).all() and len(row) > used
        used = np.concatenate([row[: -(-n // case.page)] for row, n in zip(table, case.lengths, strict=True)])
        assert len(used) < 4 or (np.diff(used) < 0).any(), "pages in order"


@pytest.mark.parametrize("place", [p for p in ON_CPU if p.kernel in ("rows", "tiled")], ids=str)
def test_memory_grows_with_tokens_only_where_it_is_said(place):
    """`tiled` needs the same buffers for four times the tokens, `rows` a score for each."""
    def peak(tokens):
        problem = build(Case("long", 4, (tokens,), latent=32, rope=8), place.convert)
        work = lambda: place.run(problem)
        work()
        return peak_bytes(get_backend(place.package), work)

    short, long = peak(2048), peak(8192)
    scores = 4 * 8192 * (8 if place.dtype == "float64" else 4)
    if place.kernel == "rows":
        assert long > scores
    else:
        assert long < min(short * 1.02 + 4096, scores), (short, long)


@pytest.mark.parametrize("package", ["numpy", "torch"])
def test_tiled_stays_below_16_mib_at_the_size_of_deepseek_v3(package):
    place = Place("tiled", package, "float32")
    rows = np.ones((1, 16384, 576))
    q, cache = place.convert(rows[:, :1, None, :].repeat(128, axis=2)), place.convert(rows)
    peak = peak_bytes(get_backend(package), lambda: decode(q, cache, [16384], 0.1, 512, kernel="tiled"))
    assert 2**20 < peak < 2**24


def test_scratch_is_reused_and_changes_no_result():
    scratch, case = Scratch(), CASES[3]
    problem = build(case, NUMPY.convert)
    first, again = (NUMPY.run(problem, scratch=scratch) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert np.shares_memory(scratch("scores", (3,), problem.q), scratch("scores", (2, 2), problem.q))
    wide = scratch("scores", (3,), problem.q.astype(np.float64))
    assert wide.dtype == np.float64 and wide.shape == (3,)


def test_auto_is_one_of_the_kernels():
    problem = build(CASES[1], NUMPY.convert)
    auto = decode(problem.q, problem.kv_cache, problem.lengths, problem.scale, problem.latent, problem.block_table)
    assert judge(*auto, problem, CASES[1]).ok
    long = np.ones((1, 40000, 3), dtype=np.float32)
    q = np.ones((1, 2, 64, 3), dtype=np.float32)
    peak = peak_bytes(get_backend("numpy"), lambda: decode(q, long, [40000], 0.1, 2))
    assert peak < 2**24 < 2 * 64 * 40000 * 4, "scores that do not fit are taken in tiles"


def test_torch_tensors_that_require_gradients_are_taken():
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 1, 2, 5, requires_grad=True)
    output, _ = decode(q, torch.ones(1, 3, 5), torch.tensor([3]), 0.5, 4)
    assert not output.requires_grad and to_numpy(output).shape == (1, 1, 2, 4)


def test_more_splits_than_keys_cost_nothing():
    assert np.allclose(decode(**GOOD, kernel="tiled", splits=10**9)[1], decode(**GOOD)[1])


@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.parametrize(("how", "words"), [({"m": 5}, "m must be a whole"), ({"n": 48}, "n must be a power of two"),
                                            ({"splits": 0}, "splits"), ({"stages": 1.5}, "stages")])
def test_a_launch_that_cannot_run_is_refused(how, words):
    from mla_lab.kernels.triton_decode import Launch
    with pytest.raises(InputError, match=words):
        Launch(**how)


def test_an_infinite_query_gives_nan_and_no_warning():
    q, cache = np.ones((1, 1, 2, 5), dtype=np.float32), np.ones((1, 3, 5), dtype=np.float32)
    q[0, 0, 1, 2] = np.inf
    output, lse = decode(q, cache, [3], 0.5, 4)
    assert np.isnan(output[0, 0, 1]).all() and np.isnan(lse[0, 0, 1])
    assert np.isfinite(output[0, 0, 0]).all()


GOOD = {"q": np.ones((2, 1, 3, 5)), "kv_cache": np.ones((2, 4, 5)), "lengths": [4, 2], "scale": 0.5, "latent": 4}
PAGED = {"kv_cache": np.ones((6, 2, 5)), "block_table": np.array([[5, 1], [0, 2147480000]])}


@pytest.mark.parametrize(("change", "words"), [
    ({"q": np.ones((2, 3, 5))}, "q has shape (2, 3, 5)"),
    ({"q": np.ones((2, 0, 3, 5))}, "at least one request, token, head"),
    ({"q": np.ones((2, 1, 3, 5), dtype=np.float32)}, "share one dtype"),
    ({"q": np.ones((2, 1, 3, 5), dtype=int), "kv_cache": np.ones((2, 4, 5), dtype=int)}, "floating-point"),
    ({"kv_cache": np.ones((3, 4, 5))}, "kv_cache has shape (3, 4, 5)"),
    ({"kv_cache": np.ones((2, 4, 6))}, "kv_cache has shape (2, 4, 6)"),
    ({"lengths": [4, 5]}, "from 0 to 4"),
    ({"lengths": [4, -1]}, "from 0 to 4"),
    ({"lengths": [4, 1.5]}, "whole numbers"),
    ({"lengths": [4]}, "each of 2 requests"),
    ({"latent": 6}, "latent must be at most"),
    ({"latent": 0}, "latent"),
    ({"scale": np.ones(1)}, "Python float"),
    ({"scale": 0.0}, "scale"),
    ({"scale": float("nan")}, "scale"),
    ({"kernel": "tile"}, "did you mean 'tiled'"),
    ({"kernel": "sdpa"}, "torch"),
    ({"kernel": "tiled", "block": 0}, "block"),
    ({"kernel": "tiled", "splits": 0}, "splits"),
    ({"kernel": "rows", "block": 3}, "kernel 'rows' has no option 'block'; it has none"),
    ({"kernel": "tiled", "blocks": 3}, "it has block, splits"),
    ({"kernel": ["rows"]}, "kernel \"['rows']\" is not known"),
    ({"q": [[[[1.0]]]]}, "must be arrays, not list"),
    ({"scale": 10**400}, "scale"),
    (PAGED | {"lengths": [4, 5]}, "from 0 to 4 (the tokens there is room for)"),  # in a table, not in the whole pool
    (PAGED | {"block_table": np.zeros((1, 2), dtype=int)}, "block_table has shape (1, 2)"),
    (PAGED | {"block_table": np.array([[5, 6], [0, 0]])}, "names page 6, but the cache has pages 0 to 5"),
    (PAGED | {"block_table": np.array([[5, -1], [0, 0]])}, "names page -1"),
    (PAGED | {"block_table": np.array([[5, 1.5], [0, 0]])}, "whole numbers, not float64"),
    (PAGED | {"block_table": [[5, 1], [0, 0]]}, "whole numbers, not list"),
    (PAGED | {"kv_cache": np.ones((6, 0, 5)), "lengths": [0, 0]}, "at least one token"),
])
def test_what_does_not_fit_is_said_in_one_sentence(change, words):
    decode(**GOOD)
    decode(**GOOD | PAGED)
    with pytest.raises(InputError, match=r"[.;]") as error:
        decode(**GOOD | change)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.skipif(not HAS_TRITON or HAS_CUDA, reason="says what is missing where it is")
def test_triton_says_where_it_does_not_run():
    torch = pytest.importorskip("torch")
    kernel = lambda x: decode(x(2, 1, 3, 5), x(2, 4, 5), [4, 2], 0.5, 4, kernel="triton")
    with pytest.raises(InputError, match="float64"):
        kernel(lambda *shape: torch.ones(*shape, dtype=torch.float64))
    with pytest.raises(InputError, match="bfloat16"):
        kernel(lambda *shape: torch.ones(*shape, dtype=torch.bfloat16))
    with pytest.raises(InputError, match="CUDA"):
        kernel(lambda *shape: np.ones(shape))
    with pytest.raises(InputError, match="contiguous"):
        decode(torch.ones(2, 1, 3, 5), torch.ones(2, 5, 4).mT, [4, 2], 0.5, 4, kernel="triton")


def test_only_a_kernel_that_is_called_loads_its_library():
    command = ("import sys, numpy as np, mla_lab.kernels as k; k.decode(np.ones((1, 1, 2, 3)), np.ones((1, 4, 3)), "
               "[4], 0.5, 2); print(*sorted({'torch', 'triton', 'matplotlib'} & set(sys.modules)))")
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
    assert set(KERNELS) == {place.kernel for place in ON_CPU}


@pytest.mark.skipif(not HAS_CUDA, reason="no CUDA GPU")
def test_a_captured_step_on_a_gpu_gives_what_the_step_gives():
    import torch

    from mla_lab.kernels.graph import captured
    place = Place("triton", "torch", "bfloat16", "cuda")
    case = Case("graph", 16, (70, 33), page=64, latent=512, rope=64)
    problem, scratch = build(case, place.convert), Scratch()
    replay, (output, lse) = captured(lambda: place.run(problem, scratch=scratch))
    output.zero_()
    replay()
    torch.cuda.synchronize()
    assert judge(output, lse, problem, case).ok


def test_a_graph_without_a_gpu_is_refused():
    pytest.importorskip("torch")
    if HAS_CUDA:
        pytest.skip("there is one")
    from mla_lab.kernels.graph import captured
    with pytest.raises(InputError, match="CUDA GPU"):
        captured(lambda: None)
