"""A decode step small enough to follow by hand: two heads, three tokens, whole numbers."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from .arrays import Array, Backend
from .config import MLAConfig
from .recipe import RIGHT, Recipe

CONFIG = MLAConfig(
    hidden_size=19, num_attention_heads=2, kv_lora_rank=3, qk_nope_head_dim=2, qk_rope_head_dim=4, v_head_dim=1
)

LATENTS = ((1, 0, 2), (0, 1, -1), (1, 1, 0))  # c_kv of tokens 0, 1, 2
ROPE_KEYS = ((1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 0, 0))  # before their rotation
Q_NOPE = ((1, 1), (2, 0))  # one row a head, the same for every token
Q_ROPE = ((1, 0, 1, 0), (0, 1, 0, 1))  # before its rotation
KV_B = ((1, 0, 0), (0, 1, 0), (1, 2, 0), (0, 0, 1), (1, -1, 0), (0, 1, 1))  # per head: two W_UK rows, one W_UV row
W_O = ((1, 1), (1, -1))


def without_norm(recipe: Recipe = RIGHT) -> Recipe:
    """``recipe`` with the latent's RMSNorm left out, so that the latents stay whole numbers."""
    return replace(recipe, norm_kv=lambda latent, rope_key, weight, eps: (latent, rope_key))


def hidden(backend: Backend) -> Array:
    """``[1, 3, 19]``: each token carries its latent, its rope key and its queries side by side."""
    query = np.concatenate([np.array(Q_NOPE), np.array(Q_ROPE)], axis=1).reshape(-1)
    rows = [np.concatenate([c, k, query]) for c, k in zip(LATENTS, ROPE_KEYS, strict=True)]
    return backend.asarray(np.array([rows], dtype=np.float64))


def state(backend: Backend) -> dict[str, Array]:
    """Weights under Hugging Face names whose projections pick those parts out again."""
    one = np.eye(19)
    w_o = np.zeros((19, 2))
    w_o[:2] = W_O
    return {name: backend.asarray(np.array(values, dtype=np.float64)) for name, values in {
        "q_proj.weight": one[7:], "kv_a_proj_with_mqa.weight": one[:7], "kv_a_layernorm.weight": np.ones(3),
        "kv_b_proj.weight": KV_B, "o_proj.weight": w_o}.items()}
