"""The safetensors format, read with NumPy alone: nothing in such a file is ever executed.

A file is a whole number n (8 bytes, little-endian), n bytes of JSON that give each tensor's dtype, shape and place, and
the numbers themselves (little-endian, last axis fastest), one tensor after the other without holes. The ``safetensors``
package is not used: it cannot hand bfloat16 or 8-bit floats to NumPy.
"""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import InputError
from .fp8 import BLOCK, E4M3, E8M0, spread

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
         "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
LARGEST_HEADER = 100_000_000  # the limit of the format's own library
AT_ONCE = 2**16  # elements decoded at a time, so that reading needs little more than its result


def _bfloat16(raw: np.ndarray) -> np.ndarray:
    return (raw.astype(np.uint32) << 16).view(np.float32)


DECODE: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    **{name: (raw, lambda x: x) for name, raw in (("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"))},
    "BF16": ("<u2", _bfloat16), "F8_E4M3": ("u1", E4M3.__getitem__), "F8_E8M0": ("u1", E8M0.__getitem__)}


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: ``start`` counts bytes from the beginning of its file."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    def __str__(self) -> str:
        return f"{self.name!r} in {self.path.name}"

    @property
    def decoded(self) -> np.dtype:
        """The NumPy dtype that holds its values exactly."""
        return np.dtype({"F64": np.float64, "F16": np.float16}.get(self.dtype, np.float32))


def damaged(path: Path, what: str) -> InputError:
    """The error for a file that breaks the format."""
    return InputError(f"{path} is no complete safetensors file: {what}; download it again.")


def read_json(path: Path) -> object:
    """A JSON file, in which no key may stand twice."""
    try:
        if path.stat().st_size > LARGEST_HEADER:
            raise InputError(f"{path} is larger than {LARGEST_HEADER:,} bytes, which no index or config is.")
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    return _parse(text, path)


def _parse(text: bytes, path: Path) -> object:
    def once(pairs: list[tuple[str, object]]) -> dict:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the JSON in {path} cannot be read: {str(error).splitlines()[0]}.") from None


def read_header(path: Path) -> dict[str, Tensor]:
    """Every tensor of a file, after checking that they fill it exactly. The numbers themselves are not read."""
    if not path.is_file():
        raise InputError(f"{path} is not a file.")
    try:
        with open(path, "rb") as file:
            total, first = os.fstat(file.fileno()).st_size, file.read(8)
            if first == b"version ":
                raise InputError(f"{path} is a Git LFS pointer and not the weights; run: git lfs pull.")
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > total - 8:
                raise damaged(path, f"its header needs {8 + length:,} bytes and the file has {total:,}")
            if length > LARGEST_HEADER:
                raise damaged(path, f"a header of {length:,} bytes is larger than the format allows")
            header = _parse(file.read(length), path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    header.pop("__metadata__", None)
    places = sorted((_place(path, name, entry), name) for name, entry in header.items())
    at, data = 0, total - 8 - length
    for (begin, end), name in places:
        if begin != at:
            raise damaged(path, f"the bytes of {name!r} begin at {begin:,} instead of {at:,}")
        at = end
    if at != data:
        raise damaged(path, f"its tensors need {at:,} bytes and {data:,} follow the header")
    return {name: Tensor(path, name, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
            for name, entry in header.items()}


def _place(path: Path, name: str, entry: object) -> tuple[int, int]:
    """First byte of a tensor and the one after its last, which must be as far apart as dtype and shape say."""
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sound = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or not name.isprintable():
        raise damaged(path, f"{name!r} needs a dtype, a shape, two data_offsets and a name that can be printed")
    if end < begin or (dtype in SIZES and end - begin != math.prod(shape) * SIZES[dtype]):
        raise damaged(path, f"{name!r} is {dtype} of shape {tuple(shape)} and takes {end - begin:,} bytes")
    return begin, end


def read_rows(tensor: Tensor, start: int, stop: int, dtype: np.dtype | None = None,
              scales: np.ndarray | None = None, block: tuple[int, int] = BLOCK) -> np.ndarray:
    """Rows ``start`` to ``stop`` in ``dtype``, times the scales of their blocks (counted from row 0) if there are any.

    Only those rows are read, and memory beyond the result stays below a few MiB.
    """
    raw_type, decode = DECODE[tensor.dtype]
    out = np.empty((stop - start, *tensor.shape[1:]), tensor.decoded if dtype is None else dtype)
    columns = math.prod(tensor.shape[1:])
    step = max(1, AT_ONCE // max(columns, 1))
    try:
        with open(tensor.path, "rb") as file:
            file.seek(tensor.start + start * columns * np.dtype(raw_type).itemsize)
            for at in range(start, stop, step):
                part = out[at - start : at - start + step]
                raw = np.empty(part.size, raw_type)
                if file.readinto(raw.view(np.uint8)) != raw.nbytes:
                    raise damaged(tensor.path, f"it ends inside {tensor.name!r}")
                values = decode(raw).reshape(part.shape)
                if scales is not None:
                    values = values * spread(scales, at, at + len(part), columns, block)
                if not np.isfinite(values).all():
                    raise InputError(f"{tensor} holds NaN or infinity, and no claim can be checked on that.")
                part[...] = values
    except OSError as error:
        raise InputError(f"cannot read {tensor.path}: {error.strerror}.") from None
    return out
