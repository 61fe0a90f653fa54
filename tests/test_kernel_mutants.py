"""Faults planted in the kernels' own sources: the conformance cases must turn red on every one of them."""
import importlib.util
import inspect
import sys
import warnings
from functools import partial

import numpy as np
import pytest
from kernels import HAS_CUDA, HAS_TORCH, HAS_TRITON, Place

from mla_lab import kernels
from mla_lab.kernels import keys as keys_module
from mla_lab.kernels import rows, tiled
from mla_lab.kernels.conformance import CASES, build, judge

TILED = {"block": 16}
SPLIT = {"block": 16, "splits": 3}
MUTANTS = [  # module, what is replaced, by what
    # the mask
    ("rows", "length - t + i + 1 - low", "length - t + i - low", {}),  # a query does not see itself
    ("rows", "length - t + i + 1 - low", "i + 1 - low", {}),  # aligned top-left
    ("rows", "length - t + i + 1 - low", "length - low", {}),  # no mask among the new tokens
    ("rows", "(i + 1) * heads", "(i + 2) * heads", {}),  # masks the next query as well
    # the scale
    ("rows", "blind)) * scale", "blind)) * q.shape[-1] ** -0.5", {}),
    ("rows", "blind)) * scale", "blind))", {}),
    ("tiled", "widened(q[i]) * scale", "widened(q[i]) * q.shape[-1] ** -0.5", TILED),
    # the value
    ("rows", "k[:, :r], scratch", "k[:, -r:], scratch", {}),
    # the LSE and the maximum
    ("rows", "xp.log(total) + top", "xp.log2(total) + top", {}),
    ("rows", "xp.log(total) + top", "xp.log(total)", {}),
    ("rows", "logits -= top", "pass", {}),
    # queries that see no key
    ("rows", 'EMPTY = -float("inf")', 'EMPTY = float("inf")', {}),  # FlashMLA's LSE
    ("rows", "max(0, t - length) * h", "0", {}),
    ("rows", "max(0, t - length) * h", "max(0, t - length)", {}),
    ("rows", "= 0.0, EMPTY", "= 1.0, EMPTY", {}),
    ("rows", "= 0.0, EMPTY", "= 0.0, 0.0", {}),
    ("tiled", "nothing, EMPTY, xp", "nothing, 0.0, xp", SPLIT),
    ("tiled", "namespace(top).where(top == EMPTY, 0.0, top)", "top", SPLIT),
    # online softmax
    ("tiled", "self.total *= shrink", "pass", TILED),
    ("tiled", "self.summed *= shrink", "pass", TILED),
    ("tiled", "xp.exp(self.top - shift)", "xp.exp(shift - self.top)", TILED),  # the sign of FlashMLA's blog
    ("tiled", "self.top = top", "pass", TILED),
    ("tiled", "xp.maximum(self.top, xp.max(logits, axis=-1, keepdims=True))",
     "xp.max(logits, axis=-1, keepdims=True)", TILED),
    ("tiled", "summed[...] = 0.0", "pass", TILED),  # what the request before left behind
    ("tiled", "hide(logits, heads, length, low)", "hide(logits, heads, length)", TILED),
    ("tiled", "min(low + starts.step, length)", "low + starts.step", TILED),  # reads past the end
    # splits and merge
    ("tiled", "-(-len(starts) // splits)", "len(starts) // splits", SPLIT),  # the last blocks are lost
    ("tiled", "(n + 1) * each", "(n + 1) * each + 1", SPLIT),  # blocks are counted twice
    ("tiled", "merge_by_lse(parts)", "(sum(p[0] for p in parts) / len(parts), parts[0][1])", SPLIT),
    ("tiled", "merge_by_lse(parts)", "merge_by_lse([(p[0], p[1] * 1.4427) for p in parts])", SPLIT),  # log2 LSE
    ("tiled", "merge_by_lse(parts)", "merge_by_lse([(p[0], p[1].astype(np.float16)) for p in parts])", SPLIT),
    ("tiled", "self.summed / safe", "xp.divide(self.summed, safe, out=self.summed)", SPLIT),  # parts in one buffer
    # pages
    ("keys", "self.pages[i][first", "sorted(self.pages[i])[first", {}),
    ("keys", "self.pages[i][first", "self.pages[0][first", {}),
    ("keys", "[low - first * page : high - first * page, :]", "[: high - low, :]", TILED),
    ("keys", "first = low // page", "first = -(-low // page)", TILED),
    ("keys", "self.cache[i, low:high, :]", "self.cache[i, low : high + 1, :]", {}),
]
TRITON_MUTANTS = [  # none may read or write outside its arrays, which would end the interpreter
    ("length - tokens + row // heads + 1", "length - tokens + row // heads", (16, 16, 1)),
    ("length - tokens + row // heads + 1", "length - tokens + row % heads + 1", (16, 16, 1)),  # swapped
    ("logits * scale_log2", "logits * scale_log2 * 0.6931", (16, 16, 1)),  # exp2 of what was meant for exp
    ("total * shrink", "total", (16, 16, 1)),
    ("summed * shrink[:, None]", "summed", (16, 16, 1)),
    ("tl.exp2(top - shift)", "tl.exp2(shift - top)", (16, 16, 1)),
    ("at + r[None, :], mask=real[:, None] & (r < R)[None, :]", "at + r[None, :], mask=(r < R)[None, :]", (16, 16, 1)),
    ("tl.cdiv(tl.cdiv(length, N), splits) * N", "tl.cdiv(length, N) // splits * N", (16, 16, 3)),
    ("page * page_stride", "(key // page_size) * page_stride", (16, 16, 1)),  # pages in order
    ("(tl.log2(safe) + top) * LN2", "tl.log2(safe) + top", (16, 16, 1)),
    ("(tl.log2(safe) + top) * LN2", "tl.log2(safe) + top", (16, 16, 3)),
    ("weights = tl.exp(lses - top)", "weights = tl.exp2(lses - top)", (16, 16, 3)),
    ("here * splits + split", "here * splits", (16, 16, 3)),
]


def planted(folder, monkeypatch, name, old, new):
    """The module with one thing replaced, imported from a file (Triton reads a kernel's source there)."""
    source = inspect.getsource(importlib.import_module(f"mla_lab.kernels.{name}"))
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {name}"
    file = folder / "mutant.py"
    head = "from __future__ import annotations\n"
    file.write_text(source.replace(old, new).replace(head, head + "import numpy as np\n", 1))
    spec = importlib.util.spec_from_file_location("mla_lab.kernels.mutant", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def caught(decode, place, cases, make_keys=keys_module.Keys):
    """The first case that turns red, or None."""
    scratch = kernels.Scratch()
    for case in cases:
        p = build(case, place.convert)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                keys = make_keys(p.kv_cache, p.lengths, p.block_table, len(case.lengths), p.latent)
                verdict = judge(*decode(p.q, keys, p.scale, scratch), p, case)
            except Exception as error:  # a kernel that crashes is caught as well
                verdict = error
        if isinstance(verdict, Exception) or not verdict.ok:
            return case.name
    return None


@pytest.mark.parametrize(("module", "old", "new", "options"), MUTANTS, ids=lambda x: str(x)[:40])
def test_a_planted_fault_turns_a_case_red(module, old, new, options, tmp_path, monkeypatch):
    place, mutant = Place("rows", "numpy", "float32"), planted(tmp_path, monkeypatch, module, old, new)
    decode = mutant.decode if module != "keys" else tiled.decode if options else rows.decode
    assert caught(partial(decode, **options), place, CASES, getattr(mutant, "Keys", keys_module.Keys))


@pytest.mark.skipif(not HAS_TRITON or HAS_CUDA, reason="runs in Triton's interpreter")
@pytest.mark.parametrize(("old", "new", "launch"), TRITON_MUTANTS, ids=lambda x: str(x)[:40])
def test_a_fault_planted_in_the_triton_kernel_turns_a_case_red(old, new, launch, tmp_path, monkeypatch):
    mutant = planted(tmp_path, monkeypatch, "triton_decode", old, new)
    few = [CASES[n] for n in (1, 2, 3, 10)]
    assert caught(partial(mutant.decode, launch=mutant.Launch(*launch)), Place("triton", "torch", "float32"), few)


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize(("old", "new"), [
    ("0.0, False, scale=scale)\n    else", "0.0, False)\n    else"),  # the default: (r+p)^-1/2
    ("length - t + j + 1", "length - t + j"),
    ("outs[..., :latent]", "outs[..., -latent:]"),
    ("q.new_zeros", "q.new_ones"),
    ("other_lse - lse)", "lse - other_lse)"),
    ("torch.logaddexp(lse, other_lse)", "lse + other_lse"),
    ("parts.append(attend(q, k[each * splits :], 1, scale))", "pass"),
], ids=["scale", "mask", "value", "no key", "weights", "LSE", "rest"])
def test_a_fault_planted_in_the_fused_call_turns_a_case_red(old, new, tmp_path, monkeypatch):
    mutant = planted(tmp_path, monkeypatch, "sdpa", old, new)
    assert any(caught(partial(mutant.decode, splits=n), Place("sdpa", "torch", "float32"), CASES) for n in (1, 3))


@pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
@pytest.mark.parametrize(("old", "new"), [
    ("even = s - s % n  # keys", "even = s - s % n - n  # keys"),
    ("since(k, even % s), q.mT", "since(k, 0), q.mT"),
    (".sum(0)", "[0]"),
    ("xp.addmm(summed, p[:, even:], values[even:], out=summed)", "summed"),
    ("if even < s or n == 1", "if n == 1"),
], ids=["few", "twice", "first", "rest", "logits"])
def test_a_fault_planted_in_the_parts_of_a_product_turns_a_case_red(old, new, tmp_path, monkeypatch):
    mutant = planted(tmp_path, monkeypatch, "rows", old, new)
    mutant.SHORT = 7
    assert caught(mutant.decode, Place("rows", "torch", "float32"), CASES)


def test_the_same_harness_is_green_without_a_fault():
    place = Place("rows", "numpy", "float32")
    for decode in (rows.decode, partial(tiled.decode, **TILED), partial(tiled.decode, **SPLIT)):
        assert caught(decode, place, CASES) is None


@pytest.mark.parametrize(("spoil", "measure"), [
    (lambda out, lse: (out.astype(np.float64), lse), "kinds"),
    (lambda out, lse: (out, lse.astype(np.float16)), "kinds"),
    (lambda out, lse: (out[:, :1], lse), "kinds"),
    (lambda out, lse: (out, np.where(np.isinf(lse), -1e30, lse)), "masks"),
    (lambda out, lse: (np.where(out == 0, np.nan, out), lse), "masks"),
    (lambda out, lse: (out, lse + 1e-2), "lse"),
    (lambda out, lse: (out * np.float32(1 + 1e-2), lse), "output"),
])
def test_each_measure_of_the_judge_can_fail(spoil, measure):
    case = CASES[3]
    p = build(case, Place("rows", "numpy", "float32").convert)
    good = kernels.decode(p.q, p.kv_cache, p.lengths, p.scale, p.latent, p.block_table)
    assert judge(*good, p, case).ok
    verdict = judge(*spoil(*good), p, case)
    assert not verdict.ok and str(verdict)
    value = getattr(verdict, measure)
    assert not (value if isinstance(value, bool) else value.ok)


def test_many_small_errors_that_each_pass_are_caught_by_their_sum():
    case = CASES[9]
    p = build(case, Place("rows", "numpy", "float32").convert)
    output, lse = kernels.decode(p.q, p.kv_cache, p.lengths, p.scale, p.latent, p.block_table)
    verdict = judge(output * np.float32(1 + 2e-3), lse, p, case)
    assert verdict.output.ok and verdict.cosine > verdict.cosine_bound and not verdict.ok
