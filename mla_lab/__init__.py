"""Claims about Multi-Head Latent Attention as checks that can fail.

Names are loaded when they are first used: ``import mla_lab`` loads neither NumPy nor torch nor matplotlib.
"""
from __future__ import annotations

from importlib import import_module

__version__ = "0.1.0"

_HOME = {name: module for module, names in {
    "arrays": "get_backend to_numpy",
    "attention": "attend project",
    "cache": "LatentCache",
    "checkpoint": "read_layer",
    "config": "MLAConfig Yarn",
    "decode": "forward full_recompute",
    "diagnosis": "Diagnosis diagnose",
    "errors": "InputError",
    "footprint": "bytes_per_token cache_bytes expanded_elements gb gib gqa_elements kib mha_elements mib mla_elements "
                 "mqa_elements per_gpu_elements percent saving tokens_that_fit",
    "models": "Model get_model",
    "recipe": "RIGHT Recipe",
    "suite": "run run_check summary",
    "verdict": "Check Setting Verdict",
    "weights": "MLAWeights",
}.items() for name in names.split()}
__all__ = sorted(["__version__", *_HOME])


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'mla_lab' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("." + _HOME[name], __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__
