"""How results are shown: numbers as text, tables for a terminal, JSON that appears only when it is complete."""
from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import zip_longest
from numbers import Integral, Real
from typing import TextIO

from .errors import InputError


def plain(value: object) -> object:
    """``value`` as what JSON can hold: arrays as lists, fractions as numbers, NaN and infinities as text."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        return number if abs(number) < float("inf") else str(number)
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)


def brief(value: object) -> str:
    """``value`` for a table cell."""
    value = plain(value)
    if isinstance(value, dict):
        return "; ".join(f"{key}: {brief(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " | ".join(map(brief, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def seen(saw: object, expected: object, bound: float | None) -> str:
    """What a check saw; with a bound, also what it expected, unless that is a distance of zero."""
    if isinstance(expected, str):
        return f"{brief(saw)} ({expected})"
    return brief(saw) if bound is None or expected == 0 else f"{brief(saw)} (expected {brief(expected)})"


def number(value: int | Fraction) -> str:
    """An exact count, with decimals only where it is an average."""
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.2f}"


TEXT = ("besides", "kind", "source")  # headings of columns that hold text


def print_table(heading: list[str], lines: list[list[str]], left: int) -> None:
    """Columns as wide as their content, the first ``left`` and those of `TEXT` flush left."""
    widths = [max(map(len, column)) for column in zip(heading, *lines, strict=True)]
    for line in (heading, *lines):
        cells = (cell.ljust(w) if i < left or heading[i] in TEXT else cell.rjust(w)
                 for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        print("  ".join(cells).rstrip())


def columns(widest_id: int) -> tuple[int, ...]:
    """Column widths: the claim and what was seen share what the terminal leaves."""
    fixed = (max(widest_id, 2), 7, 7, 13)
    left = shutil.get_terminal_size((120, 24)).columns - sum(fixed) - 2 * 5
    claim = max(20, left * 6 // 11)
    return fixed[0], claim, max(16, left - claim), *fixed[1:]


def row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of one table row, every cell wrapped to its column."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(cells, widths, strict=True)]
    lines = zip_longest(*wrapped, fillvalue="")
    return ["  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def listed(label: str, names: Sequence[str], widths: Sequence[int]) -> list[str]:
    """``names`` under a row of the table, indented to its second column."""
    indent = " " * (widths[0] + 2)
    whole = sum(widths) + 2 * (len(widths) - 1)
    return textwrap.wrap(f"{label}: {', '.join(names)}", whole, initial_indent=indent, subsequent_indent=indent + "  ",
                         break_long_words=False) if names else []


def spare_inputs(target: str | None, read: dict[str, object]) -> None:
    """Refuse a report that would replace what an option reads: a file, or the configuration or weights in a folder."""
    if not isinstance(target, str) or not os.path.isfile(target):
        return
    folder, name = os.path.split(os.path.realpath(target))
    weights = name == "config.json" or ".safetensors" in name
    for option, value in read.items():
        for path in value if isinstance(value, list) else [value]:
            paths = {path, path.rpartition(":")[0]} if isinstance(path, str) else ()  # as in file.py:function
            if any(os.path.exists(p) and (os.path.samefile(p, target) or (weights and os.path.realpath(p) == folder))
                   for p in paths):
                raise InputError(f"--json {target} would replace the {option} that is read; take another name.")


@contextlib.contextmanager
def json_target(path: str | None) -> Iterator[TextIO | None]:
    """Where the report goes: opened before the run, under its own name only once it is complete."""
    if path is None or path == "-":
        yield sys.stdout if path else None
        return
    path = os.path.realpath(path)
    direct = os.path.exists(path) and not os.path.isfile(path)  # a device or a pipe must not be renamed over
    written = path if direct else f"{path}.{os.getpid()}.part"
    try:
        file = open(written, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}.") from None
    try:
        with file:
            yield file
        if not direct:
            os.replace(written, path)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InputError(f"cannot write {path}: {error.strerror}.") from None
    finally:
        if not direct:
            with contextlib.suppress(FileNotFoundError):
                os.remove(written)
