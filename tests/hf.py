"""transformers' attention layers at tiny dimensions, pairwise distinct, beside the same layers here.

Their norms, rotary tables and eager softmax run in float32 whatever the dtype of the layer. `in_float64` widens that
dtype and leaves every one of their formulas alone, so that what remains is a difference of conventions or nothing.
"""
from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from mla_lab.arrays import fresh, get_backend
from mla_lab.config import MLAConfig, Yarn
from mla_lab.weights import MLAWeights, shapes

torch = pytest.importorskip("torch", reason="transformers' layers are torch modules")
pytest.importorskip("transformers", minversion="5.24", reason="the comparison with transformers needs transformers")

BACKEND = get_backend("torch", "float64")
DIMS = {"hidden_size": 42, "num_attention_heads": 3, "q_lora_rank": 20, "kv_lora_rank": 28, "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 8, "v_head_dim": 11}
# YaRN whose ramp runs from pair 0.6 to 2.7 of 4, rounded outwards: one kept, two blended, one divided by the factor.
ORIGINAL = 12
PLAIN = {"rope_type": "default", "rope_theta": 20.0}
YARN = {"rope_type": "yarn", "rope_theta": 20.0, "factor": 40.0, "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 1.2, "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.707}


@dataclass(frozen=True)
class Family:
    """One attention class of transformers, and what makes its layer another one than DeepSeek's."""

    module: str
    config: str
    attention: str
    theirs: dict = field(default_factory=dict)  # fields of their configuration
    ours: dict = field(default_factory=dict)  # fields of `MLAConfig`
    from_module: str = ""  # where the attention is, if not where the configuration is
    rope: tuple = (PLAIN, YARN)
    adapt: Callable[[dict], dict] = dict  # their weights under the names of ours
    widened_by: ClassVar[pytest.MonkeyPatch | None] = None  # what puts their code back, while it runs in float64

    def load(self, name: str, configuration: bool = False):
        kind = "configuration" if configuration else "modeling"
        module = self.module if configuration else (self.from_module or self.module)
        return getattr(importlib.import_module(f"transformers.models.{module}.{kind}_{module}"), name)

    @property
    def code(self):
        """The module that holds their layer."""
        return inspect.getmodule(self.load(self.attention))


HALF = {"rope_interleave": False}
SPARSE = {"index_topk": 2048, "index_n_heads": 2, "index_head_dim": 16, "num_hidden_layers": 1}
ONE_MLA = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
LLAMA4 = (YARN | {"llama_4_scaling_beta": 0.3},)
FAMILIES = {
    "deepseek_v2": Family("deepseek_v2", "DeepseekV2Config", "DeepseekV2Attention"),
    "deepseek_v2 lite": Family("deepseek_v2", "DeepseekV2Config", "DeepseekV2Attention", {"q_lora_rank": None}),
    "deepseek_v3": Family("deepseek_v3", "DeepseekV3Config", "DeepseekV3Attention"),
    "deepseek_v3 half-split": Family("deepseek_v3", "DeepseekV3Config", "DeepseekV3Attention", HALF, HALF),
    "deepseek_v3 biases": Family("deepseek_v3", "DeepseekV3Config", "DeepseekV3Attention", {"attention_bias": True},
                                 {"attention_bias": True}),
    "kimi_k25": Family("kimi_k25", "Kimi_K25Config", "DeepseekV3Attention", from_module="deepseek_v3"),
    "sarvam_mla": Family("sarvam_mla", "SarvamMLAConfig", "DeepseekV3Attention", {"q_lora_rank": None},
                         from_module="deepseek_v3"),
    "youtu": Family("youtu", "YoutuConfig", "YoutuAttention"),
    "youtu half-split": Family("youtu", "YoutuConfig", "YoutuAttention", HALF, HALF),
    "axk1": Family("axk1", "AXK1Config", "AXK1Attention"),
    "glm4_moe_lite": Family("glm4_moe_lite", "Glm4MoeLiteConfig", "Glm4MoeLiteAttention"),
    "minicpm3": Family("minicpm3", "MiniCPM3Config", "MiniCPM3Attention", ours=HALF),
    "longcat_flash": Family("longcat_flash", "LongcatFlashConfig", "LongcatFlashMLA", {"head_dim": 8, "num_layers": 1},
                            {"mla_scale_q_lora": True, "mla_scale_kv_lora": True}),
    "mistral4": Family("mistral4", "Mistral4Config", "Mistral4Attention", rope=LLAMA4),
    "kimi_linear": Family("kimi_linear", "KimiLinearConfig", "KimiLinearAttention", ONE_MLA, {"mla_use_nope": True},
                          rope=(None,)),
    "bailing_hybrid": Family("bailing_hybrid", "BailingHybridConfig", "BailingHybridAttention",
                             ONE_MLA | {"rope_theta": PLAIN["rope_theta"]}, {"output_gate": "head"}),
    "deepseek_v32 dense": Family("deepseek_v32", "DeepseekV32Config", "DeepseekV32Attention", SPARSE),
    "glm_moe_dsa dense": Family("glm_moe_dsa", "GlmMoeDsaConfig", "GlmMoeDsaAttention", SPARSE),
}
CASES = [(name, rope) for name, family in FAMILIES.items() for rope in range(len(family.rope))]
IDS = [f"{name} {'yarn' if FAMILIES[name].rope[i] is not PLAIN else 'plain'}" if FAMILIES[name].rope[i] else name
       for name, i in CASES]


class Wide:
    """The torch module with ``float`` and ``float32`` meaning float64."""

    def __getattr__(self, name: str):
        return torch.float64 if name in ("float", "float32") else getattr(torch, name)


def in_float64(monkeypatch, *modules) -> None:
    """Let what these modules of transformers do in float32 be done in float64."""
    import transformers.modeling_rope_utils as rope
    for module in (rope, *modules):
        monkeypatch.setattr(module, "torch", Wide())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)  # the caller puts float32 back


@pytest.fixture(params=["as they are", "in float64"])
def tolerance(request, monkeypatch):
    """How far apart the two may be, relative to the largest element, in the world where that holds."""
    wide = request.param == "in float64"
    Family.widened_by = monkeypatch if wide else None
    yield 1e-12 if wide else 1e-6
    Family.widened_by = None
    torch.set_default_dtype(torch.float32)


def yarn_of(rope: dict | None) -> Yarn | None:
    """Their ``rope_parameters`` as `Yarn`, by their rules.

    Without either coefficient they multiply the table by ``mscale(factor, 1)``; ``mscale_all_dim`` alone acts on the
    softmax.
    """
    if rope is None or rope["rope_type"] != "yarn":
        return None
    given = {k: rope[k] for k in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                                  "attention_factor", "llama_4_scaling_beta") if k in rope}
    both = rope.get("mscale") and rope.get("mscale_all_dim")
    given |= {"mscale": rope["mscale"] if both else 1.0, "mscale_all_dim": rope.get("mscale_all_dim") or 0.0}
    if not both and rope.get("mscale_all_dim"):
        from mla_lab.rope import mscale
        given.setdefault("attention_factor", mscale(rope["factor"], 1.0))
    return Yarn(**given)


@dataclass
class Pair:
    """Their layer and ours, with the same weights."""

    layer: object
    rotary: object
    theirs: object  # their configuration
    config: MLAConfig
    weights: MLAWeights
    also: dict = field(default_factory=dict)  # further arguments of their layer

    def run(self, hidden, positions=None, cache=None, padding=None):
        """Their output for ``hidden [b, t, d]`` behind what ``cache`` holds; ``padding [b]`` keys on the left are not
        there."""
        b, t, _ = hidden.shape
        before = cache.get_seq_length() if cache is not None else 0
        at = torch.arange(before, before + t)
        padding = torch.zeros(b, dtype=torch.int64) if padding is None else torch.as_tensor(padding)
        positions = (at[None] - padding[:, None]).clamp(min=0) if positions is None else positions
        key = torch.arange(before + t)
        seen = (key <= at[:, None])[None] & (key >= padding[:, None, None])
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min).to(torch.float64)[:, None]
        given = {"hidden_states": hidden, "attention_mask": mask, "cache": cache, "position_ids": positions}
        if self.rotary is not None:
            given["position_embeddings"] = self.rotary(hidden, positions)
        with torch.no_grad():
            return self.layer(**given, **self.also)[0]


def theirs_and_ours(family: Family, rope: dict | None) -> Pair:
    """The layer of a family with random weights, non-uniform norms among them, and ours with its configuration."""
    if Family.widened_by is not None:
        in_float64(Family.widened_by, family.code)
    given = DIMS | {"max_position_embeddings": 40 * ORIGINAL, "rms_norm_eps": 1e-6} | family.theirs
    if rope is not None:
        given["rope_parameters"] = dict(rope)
    theirs = family.load(family.config, configuration=True)
    given["num_key_value_heads"] = given["num_attention_heads"]
    if family.config == "Kimi_K25Config":
        theirs = theirs(text_config=given | {"model_type": "kimi_k2"}).text_config
    else:
        theirs = theirs(**given)
    theirs._attn_implementation = "eager"
    layer = family.load(family.attention)(theirs, 0).double().eval()
    draw = fresh(20)
    with torch.no_grad():
        for weight, tensor in layer.named_parameters():
            noise = torch.from_numpy(draw(*tensor.shape))
            size = 0.5 if weight.endswith("bias") else 1.5 / tensor.shape[-1] ** 0.5
            tensor.copy_(1 + 0.3 * noise if "norm" in weight and weight.endswith("weight") else size * noise)
    rotary = rope and family.load(re.sub("(Attention|MLA)$", "RotaryEmbedding", family.attention))(theirs)
    config = our_config({k: given[k] for k in DIMS} | family.ours, rope)
    state = family.adapt({k: v for k, v in layer.state_dict().items() if not k.startswith("indexer.")})
    assert set(state) == set(shapes(config))  # nothing of theirs is left out, nothing of ours is missing
    return Pair(layer, rotary, theirs, config, MLAWeights.from_hugging_face(state, config))


def our_config(fields: dict, rope: dict | None) -> MLAConfig:
    return MLAConfig(**fields, rope_theta=rope["rope_theta"] if rope else 10000.0, rope_scaling=yarn_of(rope))


def draw_hidden(batch: int, tokens: int, seed: int = 21):
    """Hidden states ``[b, t, d]`` of norm 1 a channel."""
    return BACKEND.asarray(fresh(seed)(batch, tokens, DIMS["hidden_size"]))


def off(got, want) -> float:
    """Largest distance, relative to the largest element of ``want``; a NaN is infinitely far."""
    distance = (got - want).abs().max() / want.abs().max()
    return float("inf") if not torch.isfinite(distance) else distance.item()
