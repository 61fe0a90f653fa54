"""Where kernels run in the tests: a package, a device and a dtype, and how Triton is made to run without a GPU."""
import importlib.util
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from mla_lab.kernels.conformance import Problem

HAS_TORCH, HAS_TRITON = (importlib.util.find_spec(name) is not None for name in ("torch", "triton"))
if HAS_TORCH:
    import torch
HAS_CUDA = HAS_TORCH and torch.cuda.is_available()
if not HAS_CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported


@dataclass(frozen=True)
class Place:
    """A kernel with its options, and what its arrays are."""

    kernel: str
    package: str
    dtype: str
    device: str = "cpu"
    options: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.kernel, self.package, self.dtype, self.device, *(f"{k}={v}" for k, v in self.options)])

    @property
    def convert(self) -> Callable[[np.ndarray], object]:
        """A float64 array in this package, dtype and device; skips the test where they are missing."""
        if self.package == "numpy":
            return lambda x: x.astype(self.dtype)
        if not HAS_TORCH or (self.kernel == "triton" and not HAS_TRITON):
            pytest.skip(f"{self.kernel} needs {'triton' if HAS_TORCH else 'torch'}")
        if self.device == "cuda" and not HAS_CUDA:
            pytest.skip("no CUDA GPU")
        if self.kernel == "triton" and self.device == "cpu" and HAS_CUDA:
            pytest.skip("Triton compiles for the GPU here, so its interpreter is off")
        return lambda x: torch.tensor(x, dtype=getattr(torch, self.dtype), device=self.device)

    def arguments(self) -> dict:
        """Options of `decode`; ``launch`` is given as a tuple, because Triton must not be imported to collect tests."""
        options = dict(self.options)
        if "launch" in options:
            from mla_lab.kernels.triton_decode import Launch
            options["launch"] = Launch(*options["launch"])
        return options

    def run(self, problem: Problem, **more: object) -> tuple[object, object]:
        from mla_lab.kernels import decode
        p = problem
        with warnings.catch_warnings():
            if self.kernel == "triton":  # the interpreter's NumPy remarks on rows of NaN
                warnings.simplefilter("ignore", RuntimeWarning)
            return decode(p.q, p.kv_cache, p.lengths, p.scale, p.latent, p.block_table, kernel=self.kernel,
                          **self.arguments(), **more)


BLOCKS = (("block", 16),)
SPLIT = (("block", 48), ("splits", 3))
LAUNCHES = [(("launch", launch),) for launch in ((16, 16, 1), (16, 32, 3), (64, 16, 2))]
ON_CPU = [
    Place("rows", "numpy", "float32"), Place("rows", "numpy", "float64"), Place("rows", "numpy", "float16"),
    Place("tiled", "numpy", "float32", options=BLOCKS), Place("tiled", "numpy", "float64", options=SPLIT),
    Place("rows", "torch", "float32"), Place("rows", "torch", "bfloat16"),
    Place("tiled", "torch", "float32", options=SPLIT), Place("tiled", "torch", "bfloat16", options=BLOCKS),
    Place("sdpa", "torch", "float32"), Place("sdpa", "torch", "float32", options=(("splits", 3),)),
    Place("sdpa", "torch", "float16"), Place("sdpa", "torch", "bfloat16"),
    Place("triton", "torch", "float32", options=LAUNCHES[0]), Place("triton", "torch", "float32", options=LAUNCHES[1]),
    Place("triton", "torch", "float16", options=LAUNCHES[2]),
]
ON_CUDA = [
    *(Place(kernel, "torch", dtype, "cuda") for kernel in ("rows", "tiled", "sdpa")
      for dtype in ("float32", "bfloat16")),
    *(Place("triton", "torch", dtype, "cuda", options) for dtype in ("float32", "float16", "bfloat16")
      for options in LAUNCHES),
    Place("triton", "torch", "bfloat16", "cuda"),  # tuned
]
