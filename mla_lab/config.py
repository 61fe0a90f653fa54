"""The dimensions of one MLA layer, under the field names of Hugging Face's ``config.json``."""
from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

from .errors import InputError, positive_int

DIMENSIONS = (
    "hidden_size",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)


@dataclass(frozen=True)
class Yarn:
    """YaRN's context extension (Peng et al., arXiv 2309.00071), as DeepSeek's ``rope_scaling`` block states it.

    Parameters
    ----------
    factor : float
        New context length over ``original_max_position_embeddings``.
    original_max_position_embeddings : int
        Context length of pre-training, in tokens.
    beta_fast, beta_slow : float
        Rotations over the original context above which a frequency is kept, below which it is divided by ``factor``.
    mscale, mscale_all_dim : float
        Temperature coefficients. ``mscale_all_dim`` alone acts on the softmax scale (squared); the rotary table is
        multiplied by the quotient of the two, which is 1 in every released DeepSeek model.
    attention_factor : float, optional
        What the rotary table is multiplied by, where a configuration says it outright.
    llama_4_scaling_beta : float
        Growth of the query with its position (Mistral 4); see `mla_lab.rope.query_scale`. 0 in DeepSeek's models.
    """

    factor: float
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0
    attention_factor: float | None = None
    llama_4_scaling_beta: float = 0.0

    def __post_init__(self):
        positive_int("rope_scaling.original_max_position_embeddings", self.original_max_position_embeddings)
        for name in ("factor", "beta_fast", "beta_slow"):
            _real(f"rope_scaling.{name}", getattr(self, name), above=0, most=1e9)
        for name in ("mscale", "mscale_all_dim", "llama_4_scaling_beta"):
            _real(f"rope_scaling.{name}", getattr(self, name), above=-1e-300, most=1e3)
        if self.attention_factor is not None:
            _real("rope_scaling.attention_factor", self.attention_factor, above=0, most=1e3)


@dataclass(frozen=True)
class MLAConfig:
    """One layer of Multi-Head Latent Attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).

    The letters used in the comments of this package stand behind each field. ``q_lora_rank`` None means that the
    query is projected directly, as in DeepSeek-V2-Lite. ``rope_interleave`` says how the *weights* pair their
    rotary channels: True is DeepSeek's own (0, 1), (2, 3), ...; False is half-split (0, p/2), (1, p/2 + 1), ...

    The fields after ``rms_norm_eps`` say where a model departs from DeepSeek's layer:

    * ``attention_bias``: biases on both down-projections and on the output projection;
    * ``mla_use_nope``: the rope channels exist and are never rotated (Kimi-Linear), or do not exist (p = 0);
    * ``mla_scale_q_lora``, ``mla_scale_kv_lora``: normed latents times sqrt(d/q) and sqrt(d/r) (LongCat-Flash);
    * ``output_gate``: head outputs times a sigmoid of the layer's input, one "head" at a time (Ling 3) or one "value"
      at a time (Kimi-K3).
    """

    hidden_size: int  # d
    num_attention_heads: int  # h
    kv_lora_rank: int  # r
    qk_nope_head_dim: int  # n
    qk_rope_head_dim: int  # p; 0 only with mla_use_nope
    v_head_dim: int  # v
    q_lora_rank: int | None = None
    rope_theta: float = 10000.0
    rope_scaling: Yarn | None = None
    rope_interleave: bool = True
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mla_use_nope: bool = False
    mla_scale_q_lora: bool = False
    mla_scale_kv_lora: bool = False
    output_gate: str | None = None

    def __post_init__(self):
        for name in DIMENSIONS:
            positive_int(name, getattr(self, name), least=int(name != "qk_rope_head_dim" or not self.mla_use_nope))
        if self.q_lora_rank is not None:
            positive_int("q_lora_rank", self.q_lora_rank)
        if self.qk_rope_head_dim % 2:
            raise InputError(f"qk_rope_head_dim must be even, because RoPE turns pairs, not {self.qk_rope_head_dim}.")
        _real("rope_theta", self.rope_theta, above=1)
        _real("rms_norm_eps", self.rms_norm_eps, above=-1e-300)
        if self.mla_scale_q_lora and self.q_lora_rank is None:
            raise InputError("mla_scale_q_lora needs a q_lora_rank, which is None.")
        if self.output_gate not in (None, "head", "value"):
            raise InputError(f"output_gate must be None, 'head' or 'value', not {self.output_gate!r}.")

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head as trained: n + p. The softmax scale comes from this and nothing else."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def cached_width(self) -> int:
        """Values cached for a token in a layer: r + p."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def __str__(self) -> str:
        return ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))


def _real(field: str, value: object, above: float, most: float = math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not above < value <= most:
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise InputError(f"{field} must be a finite number above {above:g}{limit}, not {value!r}.")
