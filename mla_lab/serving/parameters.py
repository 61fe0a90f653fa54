"""How many weights a model has and which of them a token uses, from the fields of its ``config.json``."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ..config_fields import Fields, language_model, load
from ..errors import InputError
from ..models import Model
from ..read_layers import MOST_LAYERS

# Only where every matrix of a layer is known: a guess at another architecture would be a wrong number, not a rough one.
ROUTED = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")
DENSE = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Parameters:
    """Numbers of weights, grouped by where they live and how they are stored.

    Parameters
    ----------
    by_head : int
        Attention matrices that can be dealt out by head.
    for_all_heads : int
        MLA's down-projections and the indexer of sparse attention: every tensor-parallel GPU has them whole.
    mlp : int
        Dense MLPs and shared experts.
    experts : int
        Routed experts of all layers.
    small : int
        Norms, biases and routers, which stay in 16 bit or wider.
    embedding, head : int
        Input embedding and output head; ``head`` is 0 where they are one matrix.
    hidden_size, moe_layers, experts_per_layer, experts_per_token : int
    mtp : int
        Weights of the multi-token-prediction layers, which are counted apart; embedding and head are not theirs.
    max_position_embeddings : int or None
        Tokens that a context of the model may have at most; None where that was not read.
    source, repository : str
        Where the fields were read; the model's name on Hugging Face, where it is known.
    """

    by_head: int
    for_all_heads: int
    mlp: int
    experts: int
    small: int
    embedding: int
    head: int
    hidden_size: int
    moe_layers: int = 0
    experts_per_layer: int = 1
    experts_per_token: int = 1
    mtp: int = 0
    max_position_embeddings: int | None = None
    source: str = ""
    repository: str = ""

    @property
    def total(self) -> int:
        """All weights but those of multi-token prediction."""
        return self.by_head + self.for_all_heads + self.mlp + self.experts + self.small + self.embedding + self.head

    @property
    def active(self) -> int:
        """Weights that a token is multiplied by: a row of the embedding is looked up, so it does not count."""
        used = self.experts * self.experts_per_token // self.experts_per_layer
        return self.by_head + self.for_all_heads + self.mlp + used + self.small + (self.head or self.embedding)

    def experts_touched(self, tokens: float) -> float:
        """Experts of a layer that at least one of ``tokens`` chooses, if each chooses uniformly: E(1 - (1 - k/E)^n)."""
        e = self.experts_per_layer
        return e * (1 - (1 - self.experts_per_token / e) ** tokens)


@cache
def _table() -> tuple[dict, ...]:
    path = Path(__file__).parent.parent / "data" / "parameters.json"
    return tuple(json.loads(path.read_text(encoding="utf-8")))


def published() -> dict[str, dict]:
    """What makers say of their models' sizes, by model name: ``total``, ``active`` and the ``source``, as text."""
    return {_short(name): row["published"] for row in _table() for name in row["repositories"] if "published" in row}


def _short(repository: str) -> str:
    return repository.rpartition("/")[2]


def parameters(model: Model, config: str | os.PathLike | Mapping | None = None) -> Parameters:
    """The weights of ``model``, by its ``config.json`` or else by the table of this package.

    Raises
    ------
    InputError
        If a field is missing, or the architecture is not one whose matrices are all known.
    """
    if config is not None:
        raw, where, _ = load(config)
        return count(language_model(raw, []), model, where)
    for row in _table():
        for repository in row["repositories"]:
            if model.name == _short(repository):
                return replace(count(Fields(row["fields"]), model, row["source"]), repository=repository)
    names = ", ".join(_short(name) for row in _table() for name in row["repositories"])
    raise InputError(f"the weights of {model.name} are not in this package's table ({names}); give its config.json "
                     "(--config) or the size of its weights (--weights-gb).")


def count(f: Fields, model: Model, source: str) -> Parameters:
    """The weights that the fields of a configuration describe."""
    kind = f.text("model_type")
    if kind not in ROUTED + DENSE:
        raise InputError(f"the weights of model_type {kind!r} are not counted here (known: "
                         f"{', '.join(ROUTED + DENSE)}); give their size (--weights-gb).")
    d, vocabulary, n = f.whole("hidden_size"), f.whole("vocab_size"), model.num_hidden_layers
    by_head, for_all, norms = _attention(f, model, d, kind)
    indexer, index_norms = _indexer(f, model, d)
    dense_mlp, layers = 3 * d * f.whole("intermediate_size"), range(n)
    expert = moe = shared = router = 0
    routed = f.whole("n_routed_experts", 0, least=0) if kind in ROUTED else 0
    if routed:
        expert = 3 * d * f.whole("moe_intermediate_size")
        shared = expert * f.whole("n_shared_experts", 0, least=0)
        router = routed * (d + (f.text("topk_method") == "noaux_tc"))  # and a bias that balances the load
        first, every = f.whole("first_k_dense_replace", 0, least=0, most=MOST_LAYERS), f.whole("moe_layer_freq", 1)
        moe = sum(i >= first and i % every == 0 for i in layers)
    chosen = f.whole("num_experts_per_tok") if routed else 1
    if routed and chosen > routed:
        raise f.wrong("num_experts_per_tok", f"at most n_routed_experts {routed}")
    block = by_head + for_all + (indexer if model.index_layers else 0) + shared + routed * expert + norms + router
    extra = model.num_nextn_predict_layers or 0  # and the two norms, the projection and the last norm of each
    return Parameters(
        by_head=n * by_head,
        for_all_heads=n * for_all + (model.index_layers or 0) * indexer,
        mlp=(n - moe) * dense_mlp + moe * shared,
        experts=moe * routed * expert,
        small=n * norms + (model.index_layers or 0) * index_norms + moe * router + d,
        embedding=vocabulary * d,
        head=0 if f.flag("tie_word_embeddings", False) else vocabulary * d, hidden_size=d,
        moe_layers=moe, experts_per_layer=routed or 1, experts_per_token=chosen,
        mtp=extra * (block + index_norms + 2 * d * d + 3 * d),
        max_position_embeddings=f.whole("max_position_embeddings", None), source=source)


def _attention(f: Fields, model: Model, d: int, kind: str) -> tuple[int, int, int]:
    """Weights of a layer's attention: those that belong to heads, those that serve all of them, and its norms."""
    if model.mla:
        from ..weights import shapes
        sizes = {name: math.prod(shape) for name, shape in shapes(model.mla).items()}
        small = sum(n for name, n in sizes.items() if name.endswith(("norm.weight", "bias")))
        heads = sum(sizes.get(f"{name}.weight", 0) for name in ("q_proj", "q_b_proj", "kv_b_proj", "o_proj", "g_proj"))
        return heads, sum(sizes.values()) - heads - small, small + 2 * d
    queries, keys = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    biased = f.flag("attention_bias", kind == "qwen2")
    biases = biased * (queries + 2 * keys + (d if kind == "llama" else 0))
    return 2 * d * (queries + keys), 0, 2 * d + biases + (2 * model.head_dim if kind == "qwen3" else 0)


def _indexer(f: Fields, model: Model, d: int) -> tuple[int, int]:
    """Matrices and norms of one indexer of DeepSeek's sparse attention (DeepSeek-V3.2-Exp, inference/model.py)."""
    if not model.index_layers:
        return 0, 0
    heads, width = f.whole("index_n_heads"), f.whole("index_head_dim")
    return model.mla.q_lora_rank * heads * width + d * width + d * heads, 2 * width
