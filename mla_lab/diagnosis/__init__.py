"""Which fault is in somebody's MLA: run it over a battery, and find the known fault that reproduces what it gives."""
from __future__ import annotations

from collections.abc import Callable

from ..arrays import DTYPES
from ..config import MLAConfig
from ..errors import InputError, unknown
from .isolate import LIBRARIES, PROTOCOLS, battery, callable_for, run_isolated, takes_torch
from .observe import observe
from .result import conclude
from .search import Search
from .words import Diagnosis

# Widths of the layer that is drawn for a given configuration, pairwise distinct with p = 64: large layers take minutes.
MOST = {"num_attention_heads": 5, "hidden_size": 200, "q_lora_rank": 112, "kv_lora_rank": 128, "qk_nope_head_dim": 32,
        "v_head_dim": 40}


def reduced(config: MLAConfig) -> MLAConfig:
    """``config`` with no width above `MOST`, so that a diagnosis takes seconds; every convention stays."""
    from dataclasses import replace
    return replace(config, **{name: min(getattr(config, name), most) for name, most in MOST.items()
                              if getattr(config, name) is not None})


def diagnose(
    implementation: Callable | str, protocol: str = "layer", config: MLAConfig | None = None, dtype: str = "float64",
    arrays: str | None = None, fp8: bool = False, seconds: float = 120.0, whole: bool = False,
) -> Diagnosis:
    """Say which known fault an implementation has, or that it has none.

    Parameters
    ----------
    implementation : callable or str
        A function, an ``nn.Module`` or its factory (protocol 'module'), or ``FILE.py:FUNCTION``, which is run in a
        process of its own; a callable runs in this one.
    protocol : {'layer', 'decode', 'module'}
        ``layer(hidden, weights, config, cache=None) -> (output, cache)``: hidden [b, t, d]; weights a dict under
        Hugging Face's names without prefix; config a dict of config.json's fields; causal; called for a prefill and
        then with its own cache for more tokens.
        ``decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale) -> output`` or ``(output, lse)``: q_nope
        [b, t, h, n], q_rope [b, t, h, p] rotated, kv_cache [b, s, r+p] with NaN beyond lengths [b] (which count the t
        new tokens), w_uk [h, n, r], w_uv [h, r, v]; output [b, t, h, v], natural-log lse [b, t, h].
        'module': an attention module of Hugging Face's signature, or ``make(config)`` that returns one.
    config : MLAConfig, optional
        Dimensions and conventions to test with instead of the battery's own.
    dtype : {'float64', 'float32', 'bfloat16'}
    arrays : {'numpy', 'torch'}, optional
        What arrays are handed over; by default torch if the function's module imports it.
    fp8 : bool
        Add a layer whose weights are FP8 codes with block scales.
    seconds : float
        Time limit for a function from a file.
    whole : bool
        Keep all widths of ``config``; without it they are cut to those of `MOST`.

    Returns
    -------
    Diagnosis
        ``str()`` of it is the report.

    Raises
    ------
    InputError
        For an unknown protocol, dtype or kind of arrays, or a file that cannot be loaded.
    """
    for name, value, known in (("protocol", protocol, PROTOCOLS), ("dtype", dtype, DTYPES),
                               ("arrays", arrays or "numpy", LIBRARIES)):
        if value not in known:
            raise unknown(name, value, known)
    if protocol == "module" and arrays == "numpy":
        raise InputError("protocol 'module' takes torch tensors, so arrays must be torch, not numpy.")
    config = config if config is None or whole else reduced(config)
    if protocol == "module" and config is None and hasattr(implementation, "state_dict"):
        raise InputError("an nn.Module needs the config that it was made for; give config, or a factory make(config).")
    cases = battery(protocol, config, fp8)
    if isinstance(implementation, str):
        def meanwhile() -> Search:  # it fills the memory of predictions
            return Search(cases, {case.name: () for case in cases}, dtype)
        seen, arrays = run_isolated(implementation, protocol, config, dtype, arrays, fp8, seconds, cases, meanwhile)
        name = implementation
    else:
        if not callable(implementation):
            raise InputError(f"implementation must be a function or a module, not {type(implementation).__name__}.")
        arrays = arrays or ("torch" if takes_torch(implementation, protocol) else "numpy")
        seen = observe(callable_for(implementation, protocol), cases, dtype, arrays)
        name = getattr(implementation, "__qualname__", type(implementation).__name__)
    return conclude(name, protocol, dtype, arrays, cases, seen)
