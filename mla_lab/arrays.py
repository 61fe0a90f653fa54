"""Where the maths runs: an array namespace, a device and a dtype. The formulas themselves are written once.

Arrays are NumPy arrays, torch tensors, array-api-strict arrays, or `mla_lab.ball.Ball`: whatever
``array_api_compat.array_namespace`` understands.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from .errors import InputError, unknown

Array = Any

DTYPES = ("float64", "float32", "bfloat16")
BACKENDS = ("numpy", "torch", "torch-cuda")
# Largest relative error of one rounding to nearest: half of the distance from 1 to the next number.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8}


@dataclass(frozen=True)
class Backend:
    """A namespace, a device and a dtype; ``name`` is what ``--backend`` takes.

    NumPy has no bfloat16. There it is emulated: a float32 array whose numbers are all representable in bfloat16,
    rounded again by ``store`` wherever a kernel would write a tensor to memory.
    """

    name: str
    dtype: str
    xp: Any
    native: Any  # the namespace's own dtype object
    device: Any = None
    store: Callable[[Array], Array] = lambda x: x

    def asarray(self, values: np.ndarray) -> Array:
        """``values`` (drawn in NumPy float64, so every backend starts from the same numbers) in this dtype."""
        return self.store(self.xp.asarray(values, dtype=self.native, device=self.device))

    def full(self, shape: tuple[int, ...], value: float) -> Array:
        """A new array of ``shape`` with every element equal to ``value``."""
        return self.xp.full(shape, value, dtype=self.native, device=self.device)

    @property
    def unit(self) -> float:
        """Unit roundoff of what is stored."""
        return UNIT_ROUNDOFF[self.dtype]

    @property
    def accumulator_unit(self) -> float:
        """Unit roundoff of sums: a bfloat16 product accumulates in float32."""
        return min(self.unit, UNIT_ROUNDOFF["float32"])

    def with_dtype(self, dtype: str) -> Backend:
        """The same backend in another dtype."""
        return strict_backend(dtype) if self.name == "array-api-strict" else get_backend(self.name, dtype)


def get_backend(name: str | None = None, dtype: str = "float64") -> Backend:
    """The backend called ``name`` (default: ``MLA_LAB_BACKEND`` or numpy) in ``dtype``.

    Raises
    ------
    InputError
        For an unknown name or dtype, a missing torch, or ``torch-cuda`` where no GPU is visible.
    """
    name = name or os.environ.get("MLA_LAB_BACKEND") or "numpy"
    if name not in BACKENDS:
        raise unknown("backend", name, BACKENDS)
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    if name == "numpy":
        import array_api_compat.numpy as xp
        emulated = dtype == "bfloat16"
        native = np.float32 if emulated else getattr(np, dtype)
        return Backend(name, dtype, xp, native, **({"store": round_to_bfloat16} if emulated else {}))
    try:
        import array_api_compat.torch as xp
        import torch
    except ImportError:
        raise InputError(
            f"backend {name!r} needs PyTorch, which is not installed; use numpy or install torch."
        ) from None
    if name == "torch-cuda":
        if not torch.cuda.is_available():
            raise InputError("backend 'torch-cuda' needs a CUDA GPU, and torch sees none here; use numpy or torch.")
        # Otherwise float32 products would round their inputs to 10 mantissa bits, and bfloat16 their partial sums.
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return Backend(name, dtype, xp, getattr(torch, dtype), "cuda" if name == "torch-cuda" else "cpu")


def strict_backend(dtype: str = "float64") -> Backend:
    """array-api-strict, which refuses what the standard does not promise. For tests."""
    import array_api_strict as xp
    return Backend("array-api-strict", dtype, xp, getattr(xp, dtype))


def round_to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Round a float32 array to the nearest bfloat16 (ties to even) and keep it in float32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def to_numpy(x: Array) -> np.ndarray:
    """``x`` in NumPy with exactly its values; bfloat16, float16 and float8 tensors come as float32."""
    if is_torch_array(x):
        x = x.detach().cpu()
        return (x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x).numpy()
    return np.asarray(x)


def wide(x: Array) -> Array:
    """``x`` in float32 if its dtype is narrower: softmax, norms and rotations never run in 16 bits."""
    xp = array_namespace(x)
    return xp.astype(x, xp.float32) if xp.finfo(x.dtype).bits < 32 else x


def narrow(x: Array, like: Array) -> Array:
    """``x`` in the dtype of ``like``."""
    return x if x.dtype == like.dtype else array_namespace(like).astype(x, like.dtype)


def same_kind(**named: Array) -> None:
    """Refuse arrays of different libraries, dtypes or devices: they would be promoted in silence."""
    kinds = {name: f"{type(x).__module__.split('.')[0]} {x.dtype} on {device(x)}" for name, x in named.items()}
    if len(set(kinds.values())) > 1:
        said = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise InputError(f"arrays must share one dtype, library and device, but {said}.")


def expect_shape(name: str, x: Array, shape: tuple[int | None, ...], meaning: str) -> None:
    """Refuse an array whose shape is not ``shape`` (None: any size), naming both shapes."""
    if x.ndim != len(shape) or any(want not in (None, got) for got, want in zip(x.shape, shape, strict=True)):
        want = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{name} has shape {tuple(x.shape)}, but {meaning} needs ({want}).")


def fresh(seed: int = 0) -> Callable[..., np.ndarray]:
    """A source of standard normal float64 draws, the same on every machine: ``fresh(0)(2, 3)`` has shape (2, 3)."""
    rng = np.random.default_rng(seed)
    return partial(_draw, rng)


def _draw(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)
