"""Published models: the dimensions that decide what they cache, each with the place it was read."""
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .config import MLAConfig, Yarn
from .errors import InputError, unknown
from .footprint import elements


@dataclass(frozen=True)
class Model:
    """One published model. None means that the field does not apply or was not read.

    Parameters
    ----------
    name, attention : str
        ``attention`` is mla, gqa, mqa or mha: a label. What is counted follows from ``mla`` alone.
    num_hidden_layers, cache_layers : int
        All layers, and those whose cache grows with the context; they differ in hybrids.
    num_attention_heads, num_key_value_heads, head_dim : int or None
        ``head_dim`` and ``num_key_value_heads`` are None for MLA, whose configurations carry numbers there that
        describe no cache.
    mla : MLAConfig or None
    num_nextn_predict_layers : int or None
        Multi-token-prediction layers, cached only while they run.
    source, source_kind : str
        Repository and file; ``checkpoint_config_copy`` (a copy of the released config.json) or
        ``reference_code_config`` (a configuration inside somebody's code).
    """

    name: str
    attention: str
    num_hidden_layers: int
    cache_layers: int
    num_attention_heads: int
    source: str
    source_kind: str
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    mla: MLAConfig | None = None
    num_nextn_predict_layers: int | None = None
    notes: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def elements_per_token_per_layer(self) -> int:
        """Numbers cached for a token in each cached layer."""
        return elements(self)


def _model(row: dict) -> Model:
    row = {**row, "aliases": tuple(row.get("aliases", ()))}
    if "mla" in row:
        dims = dict(row["mla"])
        yarn = dims.pop("rope_scaling", None)
        row["mla"] = MLAConfig(**dims, rope_scaling=Yarn(**yarn) if yarn else None)
    return Model(**row)


@cache
def models() -> tuple[Model, ...]:
    """Every model of ``data/models.json``, in its order."""
    text = (Path(__file__).parent / "data" / "models.json").read_text(encoding="utf-8")
    return tuple(map(_model, json.loads(text)))


def get_model(name: str) -> Model:
    """The model called ``name`` or one of its aliases; upper and lower case and an owner's prefix do not matter."""
    wanted = str(name).rsplit("/", 1)[-1].lower()
    for model in models():
        if wanted in {n.lower() for n in (model.name, *model.aliases)}:
            return model
    raise unknown("model", name, [m.name for m in models()])


def get_mla(name: str) -> Model:
    """`get_model`, refusing a model without MLA."""
    model = get_model(name)
    if model.mla is None:
        mla = ", ".join(m.name for m in models() if m.mla)
        raise InputError(f"{model.name} uses {model.attention.upper()}, not MLA; models with MLA: {mla}.")
    return model
