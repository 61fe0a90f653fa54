"""The Triton kernels, compiled for a Hopper GPU on a machine that has none: what the interpreter cannot see."""
import json
import os
import re
import subprocess
import sys

import pytest
from kernels import HAS_TRITON

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")

# In a process of its own, where the interpreter is off. Prints shared memory and the PTX of each kernel.
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mla_lab.kernels.triton_decode import attend_split, merge_splits

def build(kernel, pointers, constants, **options):
    kinds = {name: f"*{pointers[name]}" if name in pointers else "constexpr" if name in constants else
             "fp32" if name == "scale_log2" else "i32" for name in kernel.arg_names}
    at = {name: (i,) for i, name in enumerate(kernel.arg_names)}
    aligned = {at[name]: [["tt.divisibility", 16]] for name in at
               if name in pointers or name in ("page_stride", "row_stride", "page_size", "R")}
    aligned = {key: value for key, value in aligned.items() if key not in {at[name] for name in constants}}
    source = ASTSource(fn=kernel, signature=kinds, constexprs={at[k]: v for k, v in constants.items()}, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options | {"enable_fp_fusion": True})
    return {"shared": made.metadata.shared, "ptx": made.asm["ptx"]}

dtype, m, n, warps, stages = sys.argv[1], *map(int, sys.argv[2:])
split = {"q": dtype, "cache": dtype, "table": "i32", "lengths": "i32", "out": "fp32", "lse": "fp32"}
merge = {"parts": "fp32", "part_lse": "fp32", "out": dtype, "lse": "fp32"}
print(json.dumps([
    build(attend_split, split, {"R": 512, "P": 64, "BR": 512, "BP": 64, "M": m, "N": n}, num_warps=warps,
          num_stages=stages),
    build(merge_splits, merge, {"BS": 8, "BR": 512})]))
"""


@pytest.mark.parametrize(("dtype", "m", "n", "warps", "stages"), [("bf16", 64, 64, 8, 2), ("fp16", 16, 64, 4, 2)])
def test_the_kernels_compile_for_hopper(dtype, m, n, warps, stages, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    argv = [sys.executable, "-W", "ignore", "-c", COMPILE, dtype, *map(str, (m, n, warps, stages))]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False,
                         env=environment | {"TRITON_CACHE_DIR": str(tmp_path)})
    assert ran.returncode == 0, ran.stderr[-2000:]
    split, merge = json.loads(ran.stdout)
    assert 64 * 1024 < split["shared"] <= 227 * 1024, "more shared memory than a block may have, or none"
    matrix = r"wgmma\.mma_async\S*\.f32\." if m == 64 else r"mma\.sync\S*\.f32\."
    assert re.search(matrix + dtype.replace("fp", "f"), split["ptx"]), "no matrix instruction with float32 sums"
    assert "cp.async" in split["ptx"], "loads do not run ahead of the products"
    assert "ex2.approx" in split["ptx"] and not re.search(r"\bwgmma|mma\.sync", merge["ptx"])
