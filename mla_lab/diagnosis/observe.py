"""Run somebody's implementation over the battery, and keep what it gave or where it broke."""
from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..arrays import to_numpy
from ..errors import InputError
from .cases import Case, DecodeCase, LayerCase, config_dict
from .predict import Outputs


@dataclass(frozen=True)
class Problem:
    """A call that gave no output of the right form."""

    case: str
    call: str
    what: str
    shapes: str

    def __str__(self) -> str:
        return f"case {self.case}, {self.call}: {self.what} ({self.shapes})"


def converter(arrays: str, dtype: str) -> Callable[[np.ndarray], Any]:
    """From NumPy's float64 to what the implementation is given."""
    if arrays == "torch":
        import torch
        return lambda x: torch.from_numpy(np.array(x)).to(getattr(torch, dtype))
    if dtype == "bfloat16":
        raise InputError("dtype bfloat16 needs arrays of torch, because NumPy has no bfloat16; say --arrays torch.")
    return lambda x: np.array(x, dtype=dtype)


def fp8_weights(state: Mapping[str, np.ndarray], arrays: str) -> dict[str, Any]:
    """Codes as e4m3 of NumPy's or torch's arrays, scales as float32."""
    coded = [name.removesuffix("_scale_inv") for name in state if name.endswith("_scale_inv")]
    if arrays == "torch":
        import torch
        return {**{name: torch.from_numpy(state[name].copy()).view(torch.float8_e4m3fn) for name in coded},
                **{name + "_scale_inv": torch.from_numpy(state[name + "_scale_inv"].copy()) for name in coded}}
    try:
        from ml_dtypes import float8_e4m3fn
    except ImportError:
        raise InputError("FP8 weights as NumPy arrays need the package ml_dtypes; install it or say --arrays torch."
                         ) from None
    return {name: state[name].view(float8_e4m3fn) if name in coded else state[name]
            for name in [*coded, *(name + "_scale_inv" for name in coded)]}


def described(**named: Any) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items() if hasattr(x, "shape"))


class Unfit(Exception):
    """The implementation returned something of another form."""


def as_output(name: str, x: Any, shape: tuple[int, ...]) -> np.ndarray:
    """``x`` in float64, or one sentence on what is wrong with it."""
    if not hasattr(x, "shape") or not hasattr(x, "dtype"):
        raise Unfit(f"{name} is {type(x).__name__}, which is no array")
    try:
        array = to_numpy(x).astype(np.float64)
    except Exception as error:
        raise Unfit(f"{name} cannot be read as numbers ({type(error).__name__}: {error})") from None
    if array.shape != shape:
        raise Unfit(f"{name} has shape {array.shape}, but needs {shape}")
    return array


def observe_layer(layer: Callable, case: LayerCase, convert: Callable, arrays: str, notes: list[str]
                  ) -> tuple[Outputs, list[int]]:
    """The outputs of each call, and the number of elements in the cache after each."""
    weights = {name: convert(w) for name, w in case.state.items() if not name.endswith("_scale_inv")
               and w.dtype != np.uint8} | fp8_weights(case.state, arrays)
    config, cache, outputs, sizes = config_dict(case.config), None, [], []
    if case.name == "fp8":
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
    for label, x in zip(case.labels, case.hidden, strict=True):
        try:
            result = layer(convert(x), weights, config) if cache is None else layer(convert(x), weights, config, cache)
            if not isinstance(result, (tuple, list)) or len(result) != 2:
                raise Unfit(f"returned {type(result).__name__}, but needs (output, cache)")
            output, cache = result
            outputs.append(as_output("output", output, x.shape))
            if cache is None:
                raise Unfit("returned no cache to go on with")
        except (Exception, SystemExit) as error:
            raise Broken(case.name, label, error, "inputs: " + described(hidden=x)) from error
        sizes.append(elements(cache))
    if case.name == "full":
        unchanged(notes, convert, {name: (weights[name], w) for name, w in case.state.items()})
    return tuple(outputs), sizes


def observe_decode(decode: Callable, case: DecodeCase, convert: Callable, arrays: str, notes: list[str]) -> Outputs:
    """The output and, if it is returned, the LSE."""
    names = ("q_nope", "q_rope", "kv_cache", "w_uk", "w_uv")
    inputs = {name: convert(getattr(case, name)) for name in names}
    lengths = np.array(case.lengths)
    if arrays == "torch":
        import torch
        lengths = torch.from_numpy(lengths)
    from ..rope import softmax_scale
    b, t, h, _ = case.q_nope.shape
    try:
        result = decode(*inputs.values(), lengths, softmax_scale(case.config))
        output, *lse = result if isinstance(result, (tuple, list)) else (result,)
        outputs = [as_output("output", output, (b, t, h, case.config.v_head_dim))]
        if lse:
            outputs.append(as_output("lse", lse[0], (b, t, h)))
    except (Exception, SystemExit) as error:
        shapes = f"inputs: {described(**inputs)}, lengths {case.lengths}"
        raise Broken(case.name, "decode", error, shapes) from error
    if case.name == "full":
        unchanged(notes, convert, {name: (inputs[name], getattr(case, name)) for name in names})
    return tuple(outputs)


def unchanged(notes: list[str], convert: Callable, inputs: Mapping[str, tuple[Any, np.ndarray]]) -> None:
    """Note the inputs that the implementation has written to."""
    written = [name for name, (now, before) in inputs.items()
               if not np.array_equal(to_numpy(now), to_numpy(convert(before)), equal_nan=True)]
    if written:
        notes.append(f"it writes to its inputs in place: {', '.join(written)}")


def printable(text: str) -> str:
    """``text`` with everything that a terminal would not show, or could not encode, written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Broken(Exception):
    """An exception of the implementation, with the call in which it came."""

    def __init__(self, case: str, call: str, error: BaseException, shapes: str):
        what = str(error) if isinstance(error, Unfit) else f"raised {type(error).__name__}: {error}"
        self.problem = Problem(case, call, printable(" ".join(what.split())[:400]), shapes)
        super().__init__(str(self.problem))


def elements(cache: Any, depth: int = 0) -> int:
    """Numbers in every array that ``cache`` holds, as far as it can be looked into."""
    if hasattr(cache, "shape") and hasattr(cache, "dtype"):
        return int(np.prod(cache.shape))
    if depth > 4:
        return 0
    if isinstance(cache, Mapping):
        cache = cache.values()
    elif hasattr(cache, "__dict__"):
        cache = vars(cache).values()
    return sum(elements(x, depth + 1) for x in cache) if isinstance(cache, Iterable) and not isinstance(
        cache, (str, bytes)) else 0


@dataclass
class Observed:
    """What an implementation gave in each case, and what kept it from giving more."""

    outputs: dict[str, Outputs]
    problems: list[Problem]
    cached: float | None = None  # elements a token, where the cache grows with the tokens
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict:
        return {"problems": [asdict(p) for p in self.problems], "cached": self.cached, "notes": self.notes}


def observe(implementation: Callable, cases: Iterable[Case], dtype: str, arrays: str,
            keep: Callable[[str, Outputs], None] = lambda name, outputs: None) -> Observed:
    """Run all ``cases``; nothing that is printed gets out, and an exception ends its case only."""
    convert, seen = converter(arrays, dtype), Observed({}, [])
    for case in cases:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                if isinstance(case, DecodeCase):
                    outputs = observe_decode(implementation, case, convert, arrays, seen.notes)
                else:
                    outputs, sizes = observe_layer(implementation, case, convert, arrays, seen.notes)
                    if case.name == "full":
                        b, t = case.hidden[1].shape[:2]
                        grown = (sizes[1] - sizes[0]) / (b * t)
                        seen.cached = grown if grown > 0 else None
        except Broken as broken:
            seen.problems.append(broken.problem)
            continue
        seen.outputs[case.name] = outputs
        keep(case.name, outputs)
    return seen
