"""The weights of one MLA layer, and the table of the names they have elsewhere."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace

from .arrays import Array, Backend, expect_shape, same_kind
from .config import MLAConfig
from .errors import InputError
from .recipe import RIGHT, Recipe


@dataclass(frozen=True)
class Name:
    """One row of the name table: the paper's symbols, and where Hugging Face and DeepSeek's own code keep them."""

    symbols: tuple[str, ...]
    hugging_face: str
    deepseek: str
    shape: str


NAMES = (
    Name(("w_q",), "q_proj.weight", "wq.weight", "[h(n+p), d]"),
    Name(("w_dq",), "q_a_proj.weight", "wq_a.weight", "[q, d]"),
    Name(("norm_q",), "q_a_layernorm.weight", "q_norm.weight", "[q]"),
    Name(("w_uq", "w_qr"), "q_b_proj.weight", "wq_b.weight", "[h(n+p), q]"),
    Name(("w_dkv", "w_kr"), "kv_a_proj_with_mqa.weight", "wkv_a.weight", "[r+p, d]"),
    Name(("norm_kv",), "kv_a_layernorm.weight", "kv_norm.weight", "[r]"),
    Name(("w_uk", "w_uv"), "kv_b_proj.weight", "wkv_b.weight", "[h(n+v), r]"),
    Name(("w_o",), "o_proj.weight", "wo.weight", "[d, h v]"),
)
# Only where the configuration asks for them, by ``attention_bias`` and ``output_gate``.
OPTIONAL = (
    Name(("b_dq",), "q_a_proj.bias", "wq_a.bias", "[q]"),
    Name(("b_dkv", "b_kr"), "kv_a_proj_with_mqa.bias", "wkv_a.bias", "[r+p]"),
    Name(("b_o",), "o_proj.bias", "wo.bias", "[d]"),
    Name(("w_gate",), "g_proj.weight", "", "[h, d] or [h v, d]"),
)


def shapes(config: MLAConfig) -> dict[str, tuple[int, ...]]:
    """Shapes under the Hugging Face names, ``Linear.weight`` being [out, in]."""
    h, d, r, q = config.num_attention_heads, config.hidden_size, config.kv_lora_rank, config.q_lora_rank
    query = {"q_proj.weight": (h * config.qk_head_dim, d)} if q is None else {
        "q_a_proj.weight": (q, d), "q_a_layernorm.weight": (q,), "q_b_proj.weight": (h * config.qk_head_dim, q)}
    extra = {}
    if config.attention_bias:
        extra = {"kv_a_proj_with_mqa.bias": (config.cached_width,), "o_proj.bias": (d,)}
        extra |= {} if q is None else {"q_a_proj.bias": (q,)}
    if config.output_gate is not None:
        extra["g_proj.weight"] = (h * (config.v_head_dim if config.output_gate == "value" else 1), d)
    return query | {
        "kv_a_proj_with_mqa.weight": (config.cached_width, d),
        "kv_a_layernorm.weight": (r,),
        "kv_b_proj.weight": (h * (config.qk_nope_head_dim + config.v_head_dim), r),
        "o_proj.weight": (d, h * config.v_head_dim),
    } | extra


@dataclass(frozen=True)
class MLAWeights:
    """Weights under the paper's symbols (arXiv 2405.04434, eq. 9-18), [out, in] unless said.

    Either ``w_dq``, ``norm_q`` and the two query up-projections are there, or (``q_lora_rank`` None) the last two act
    on the hidden state itself.
    """

    w_uq: Array  # [h, n, q] or [h, n, d]
    w_qr: Array  # [h, p, q] or [h, p, d]
    w_dkv: Array  # [r, d]
    w_kr: Array  # [p, d]
    norm_kv: Array  # [r]
    w_uk: Array  # [h, n, r]
    w_uv: Array  # [h, r, v]
    w_o: Array  # [d, h v]
    w_dq: Array | None = None  # [q, d]
    norm_q: Array | None = None  # [q]
    b_dq: Array | None = None  # [q]
    b_dkv: Array | None = None  # [r]
    b_kr: Array | None = None  # [p]
    b_o: Array | None = None  # [d]
    w_gate: Array | None = None  # [h, 1, d] or [h, v, d]

    @classmethod
    def from_hugging_face(cls, state: Mapping[str, Array], config: MLAConfig, recipe: Recipe = RIGHT) -> MLAWeights:
        """Split the joint matrices of a checkpoint, whose names are the second column of `NAMES`.

        Raises
        ------
        InputError
            If a matrix is missing, has another shape than `shapes` says, or has a dtype of its own.
        """
        for name, shape in shapes(config).items():
            if name not in state:
                raise InputError(f"weight {name!r} is missing; it should have shape {shape}.")
            expect_shape(name, state[name], shape, "this configuration")
        for name in {n.hugging_face for n in OPTIONAL} & set(state) - set(shapes(config)):
            field = "attention_bias" if name.endswith("bias") else "output_gate"
            raise InputError(f"weight {name!r} is there, but {field} is {getattr(config, field)}: it would be ignored.")
        same_kind(**{name.removesuffix(".weight"): state[name] for name in shapes(config)})
        xp = array_namespace(state["o_proj.weight"])
        n, r = config.qk_nope_head_dim, config.kv_lora_rank
        query = state["q_proj.weight" if config.q_lora_rank is None else "q_b_proj.weight"]
        query = xp.reshape(query, (config.num_attention_heads, config.qk_head_dim, query.shape[-1]))
        down, b_down = state["kv_a_proj_with_mqa.weight"], state.get("kv_a_proj_with_mqa.bias")
        gate = state.get("g_proj.weight")
        if gate is not None:
            gate = xp.reshape(gate, (config.num_attention_heads, -1, config.hidden_size))
        w_uk, w_uv = recipe.split_kv_b(state["kv_b_proj.weight"], config)
        return cls(
            xp.asarray(query[:, :n, :], copy=True),  # packed once, or every product would pack it anew
            xp.asarray(query[:, n:, :], copy=True),
            down[:r, :],
            down[r:, :],
            state["kv_a_layernorm.weight"],
            w_uk,
            w_uv,
            state["o_proj.weight"],
            *(None if config.q_lora_rank is None else state.get(name)
              for name in ("q_a_proj.weight", "q_a_layernorm.weight", "q_a_proj.bias")),
            None if b_down is None else b_down[:r],
            None if b_down is None else b_down[r:],
            state.get("o_proj.bias"),
            gate,
        )


def exact_noise(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Noise with mean 0 and a variance near 1/shape[-1], float32: odd whole numbers times a power of two.

    The numbers are exact in bfloat16, float32 and float64 alike, so that a comparison of dtypes measures arithmetic and
    not the rounding of its inputs; and the 187 million weights of a DeepSeek-V3 layer take a second to draw.
    """
    unit = np.float32(2.0 ** -round(math.log2(math.sqrt((256**2 - 1) / 3 * shape[-1]))))
    noise = np.frombuffer(rng.bytes(math.prod(shape)), np.int8).reshape(shape) * (2 * unit)
    noise += unit  # -255, -253, ..., 255 units
    return noise


def random_state(config: MLAConfig, backend: Backend, seed: int = 0) -> dict[str, Array]:
    """Weights under Hugging Face names, by `exact_noise`, so that activations keep their size.

    Norm weights are spread over [0.5, 1.5): with equal ones, applying a norm twice would look like applying it once.
    """
    rng, state = np.random.default_rng(seed), {}
    for name, shape in shapes(config).items():
        norm = name.endswith("norm.weight")
        state[name] = backend.asarray(1 + rng.integers(-64, 64, shape) / 128 if norm else exact_noise(rng, *shape))
    return state
