"""The one exception for bad input: a sentence for a person, never a traceback."""
from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, said in one sentence that names the field, the value and what would be right."""


def short(value: object) -> str:
    """``value`` as Python writes it, cut where a message would be flooded."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a number too long to print"
    return text if len(text) <= 60 else text[:57] + "..."


def unknown(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of ``known``, with the nearest one suggested."""
    known = list(known)
    lowered = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(name)[:60].lower(), lowered, n=1, cutoff=0.5)
    hint = f"did you mean {lowered[near[0]]!r}?" if near else f"known: {', '.join(known)}."
    return InputError(f"{kind} {short(name)} is not known; {hint}")


def positive_int(field: str, value: object, least: int = 1) -> int:
    """``value`` as an int of at least ``least``, or an `InputError` that names the field."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise InputError(f"{field} must be a whole number of at least {least}, not {short(value)}.")
    return int(value)
