"""A config.json as fields that know their own names, so that a wrong one is refused in a sentence that names it."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

from .errors import InputError, short

MOST = 10**9  # larger than any dimension, and products of a few of them can still be printed
LANGUAGE = ("text_config", "language_config", "llm_config")  # where multimodal configurations keep the language model
REQUIRED = object()


@dataclass(frozen=True)
class Fields:
    """The keys of one JSON object. ``null`` counts as absent, as it does in transformers.

    Parameters
    ----------
    values : mapping
    where : str
        What stands before a key in a message, such as ``text_config.``.
    """

    values: Mapping
    where: str = ""

    def get(self, key: str, default: object = None) -> object:
        """What stands at ``key``, of whatever type."""
        found = self.values.get(key)
        return default if found is None else found

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _found(self, key: str, default: object, right: str) -> object:
        found = self.get(key, default)
        if found is REQUIRED:
            raise InputError(f"{self.where}{key} is missing; it must be {right}.")
        return found

    def said(self, key: str) -> str:
        """The key and its value, for a message."""
        return f"{self.where}{key} {short(self.values.get(key))}"

    def wrong(self, key: str, right: str) -> InputError:
        """The error for the value at ``key``."""
        return InputError(f"{self.where}{key} must be {right}, not {short(self.values.get(key))}.")

    def whole(self, key: str, default: object = REQUIRED, least: int = 1, most: int = MOST) -> int:
        """A whole number; 512.0 and "512" are not."""
        right = f"a whole number from {least} to {most:,}"
        value = self._found(key, default, right)
        if value is not default and (isinstance(value, bool) or not isinstance(value, int)
                                     or not least <= value <= most):
            raise self.wrong(key, right)
        return value

    def real(self, key: str, default: object = REQUIRED, above: float = 0.0, zero: bool = False) -> float:
        """A finite number above ``above``, or 0 with ``zero``; 40 and 40.0 are the same."""
        right = "a finite number of at least 0" if zero else f"a finite number above {above:g}"
        value = self._found(key, default, right)
        if value is default:
            return value
        try:
            number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or (number <= above and not (zero and number == 0)):
            raise self.wrong(key, right)
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.get(key, default)
        if not isinstance(value, str) or not value.isprintable():
            raise self.wrong(key, "printable text")
        return value

    def object(self, key: str) -> Fields:
        """The object at ``key``, an empty one without."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(value, f"{self.where}{key}.")

    def wholes(self, key: str, least: int, most: int) -> list[int]:
        """A list of whole numbers."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)) or any(
                isinstance(i, bool) or not isinstance(i, int) or not least <= i <= most for i in value):
            raise self.wrong(key, f"a list of whole numbers from {least} to {most}")
        return list(value)

    def agreed(self, *keys: str, default: object = None) -> object:
        """The one value of all those ``keys`` that are there."""
        there = [key for key in keys if self.has(key)]
        for key in there[1:]:
            if self.values[key] != self.values[there[0]]:
                raise InputError(f"{self.said(there[0])} and {self.said(key)} disagree; only one of them can be right.")
        return self.values[there[0]] if there else default


LARGEST = 16 * 2**20


def parse(text: str, where: str) -> dict:
    """The JSON object that ``text`` is; ``where`` it stood, for a message."""
    def once(pairs: list[tuple[str, object]]) -> dict:
        keys = [key for key, _ in pairs]
        twice = next((key for i, key in enumerate(keys) if key in keys[:i]), None)
        if twice is not None:
            raise InputError(f"{where} is no configuration: the key {short(twice)} stands twice.")
        return dict(pairs)

    try:
        if len(text) > LARGEST:
            raise InputError(f"{where} is larger than {LARGEST:,} bytes, which no config.json is.")
        found = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=once)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        raise InputError(f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where} is no configuration: a number is too long or objects are nested too deep.") from None
    if not isinstance(found, dict):
        raise InputError(f"{where} must be a JSON object, not {'null' if found is None else type(found).__name__}.")
    return found


def fit_to_show(name: str) -> str:
    """What to call a model that says it is called ``name``: what can be printed of it, on one line."""
    return "".join(filter(str.isprintable, name)).strip()[:60] or "this model"


def own_name(raw: Mapping) -> str:
    """What a configuration calls its model: the end of ``_name_or_path``, or ``name``."""
    found = (raw.get(key) for key in ("_name_or_path", "name"))
    return next((end for x in found if isinstance(x, str) and (end := x.strip("/ ").rpartition("/")[2]).strip(".")), "")


def shown(path: Path, most: int = 46) -> str:
    """The path, or its end where it is longer."""
    return str(path) if len(str(path)) <= most else "..." + str(path)[3 - most:]


def load(source: str | os.PathLike | Mapping) -> tuple[Mapping, str, str]:
    """The JSON object in a file, or in the ``config.json`` of a folder; where it was read; what to call the model."""
    if isinstance(source, Mapping):
        return source, "a dictionary", fit_to_show(own_name(source))
    path, folder = Path(source), Path(source).resolve().name
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a file; --config takes a config.json.")
        if path.exists() and path.stat().st_size > LARGEST:
            raise InputError(f"{path} is larger than {LARGEST:,} bytes, which no config.json is.")
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; --config takes a config.json.") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not JSON: it is not even UTF-8 text.") from None
    raw = parse(text, str(path))
    if path.name != "config.json":
        named = path.stem.removesuffix("_config").rpartition("--")[2]
    elif not (named := own_name(raw)):  # a folder that was given is a name; one in which a file happens to lie is none
        named = folder.rpartition("--")[2] if path != Path(source) else f"the model of {shown(path)}"
    return raw, str(path), fit_to_show(named)


def language_model(raw: Mapping, notes: list[str]) -> Fields:
    """The part that describes the language model. Where it and the outer level disagree it wins, and a note says so."""
    outer = Fields(raw)
    inner = next((outer.object(key) for key in LANGUAGE if outer.has(key)), None)
    if inner is None:
        return outer
    for key in sorted(MATTERS & raw.keys() & inner.values.keys()):
        if raw[key] is not None and raw[key] != inner.values[key]:
            notes.append(f"{inner.said(key)} is taken, not the outer {outer.said(key)}")
    return inner


MATTERS = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "kv_lora_rank",
    "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "rope_theta", "rope_scaling",
    "rope_parameters", "rope_interleave", "rms_norm_eps", "num_nextn_predict_layers", "index_head_dim", "layer_types",
}
