"""Published models: the dimensions that decide what they cache, each with the place it was read."""
from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .config import MLAConfig, Yarn
from .errors import InputError, unknown
from .footprint import elements

SOURCE_KINDS = {
    "checkpoint_config_copy": "config copy",  # of the released config.json
    "reference_code_config": "reference code",  # a configuration inside somebody's code
    "class_default": "class default",  # what a class assumes; the released config.json may differ
    "test_config": "test config",  # what somebody's test assumes
    "config_file": "config file",  # read here and now by `mla_lab.read_config`
}


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
        Repository and file; one of `SOURCE_KINDS`.
    index_head_dim, index_layers : int or None
        Width of the key that the indexer of DeepSeek's sparse attention (DSA) caches, and how many of the main layers
        have an indexer of their own.
    weight_block_size : (int, int) or None
        Rows and columns of a weight that share a scale.
    quantization : str
        How the weights are stored, in a word or two.
    unsupported : str
        What its layer has that the mathematics here lacks, as the second half of a sentence; such a model is counted
        but not verified.
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
    index_head_dim: int | None = None
    index_layers: int | None = None
    weight_block_size: tuple[int, int] | None = None
    quantization: str = ""
    unsupported: str = ""

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


def _data(file: str) -> list | dict:
    return json.loads((Path(__file__).parent / "data" / file).read_text(encoding="utf-8"))


@cache
def models() -> tuple[Model, ...]:
    """Every model of ``data/models.json``, in its order."""
    return tuple(map(_model, _data("models.json")))


@cache
def refused() -> dict[str, str]:
    """Models that are known by name and not counted, each with the reason."""
    return _data("refused.json")


def get_model(name: str) -> Model:
    """The model called ``name`` or one of its aliases; upper and lower case and an owner's prefix do not matter."""
    wanted = str(name).rsplit("/", 1)[-1].lower()
    for model in models():
        if wanted in {n.lower() for n in (model.name, *model.aliases)}:
            return model
    for known, why in refused().items():
        if wanted == known.lower():
            raise InputError(f"{known} is not counted here: {why}.")
    raise unknown("model", name, [m.name for m in models()])


def get_mla(name: str) -> Model:
    """`get_model`, refusing a model whose layer cannot be verified."""
    model = get_model(name)
    if model.mla is None:
        mla = ", ".join(m.name for m in models() if m.mla)
        raise InputError(f"{model.name} uses {model.attention.upper()}, not MLA; models with MLA: {mla}.")
    return verifiable(model)


def verifiable(model: Model) -> Model:
    """``model``, or an `InputError` that says why its layer cannot be verified."""
    if model.mla is None:
        raise InputError(f"{model.name} is not MLA: no kv_lora_rank; `footprint` counts its {model.attention.upper()}.")
    lacking = model.unsupported
    if model.mla.qk_rope_head_dim == 0:
        lacking = "qk_rope_head_dim is 0, and many of the claims are about a rope key"
    if lacking:
        raise InputError(f"{model.name} can be counted but not verified: {lacking}.")
    return model
