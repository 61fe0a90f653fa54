"""Exercises of notebook 06: from a configuration to its numbers."""
from __future__ import annotations

import numpy as np

from .registry import exercise


@exercise("06", "recall", right="kv_lora_rank", wrong={
    "model_type": "a Qwen2 that is called DeepSeek has none, and names of new models are not known in advance",
    "q_lora_rank": "DeepSeek-V4 has it and is not MLA; DeepSeek-V2-Lite lacks it and is",
    "num_key_value_heads": "in an MLA file it equals the number of heads and says nothing",
    "head_dim": "whatever the class needed for its rotary table; most MLA files have none",
    "qk_rope_head_dim": "DeepSeek-V4 has it and is not MLA",
})
def check_the_key(answer):
    """The key of a config.json by which an MLA model is recognised."""
    return answer


_REBUILT, _NAIVE, _ABSORBED = 512 * (128 + 128), 128 + 64 + 128, 2 * 512 + 64


@exercise("06", "compute", close=3e-3, right=_REBUILT / (_ABSORBED - _NAIVE), wrong={
    _REBUILT / (2 * (512 + 64) - _NAIVE):  # the same as with n + v for the naive pair
        "a pair costs 2r + p absorbed (the sum is r wide, not r + p) and n + p + v naive: p cancels",
    _REBUILT / (2 * 512 - _NAIVE): "the rope term costs the same on both sides, so count it on both or on neither",
    _REBUILT / (512 + 64 - _NAIVE): "the latent is used twice, as key and as value: 2r + p, not r + p",
    128 * _REBUILT / (_ABSORBED - _NAIVE): "both sides have the factor of the heads, so it cancels",
    _REBUILT / (_ABSORBED - _NAIVE) / 128: "both sides have the heads, so they cancel",
    512 * 128 / (_ABSORBED - _NAIVE): "values are rebuilt as well as keys: r (n + v)",
    2 * _REBUILT / (_ABSORBED - _NAIVE): "a multiplication and an addition are two FLOP on both sides",
    (_ABSORBED - _NAIVE) / _REBUILT:
        "that is the inverse: rebuilding is paid once a cached token, the difference once a pair",
})
def check_crossover(answer):
    """New tokens from which rebuilding takes fewer FLOP: r = 512, n = 128, p = 64, v = 128, 128 heads, long context.

    The fraction, its rounding and the first whole number above it are all right.
    """
    return answer


def _count(config, per_layer=lambda c: c["kv_lora_rank"] + c["qk_rope_head_dim"], nested=True, size=2):
    c = config.get("text_config", config) if nested else config
    return size * c["num_hidden_layers"] * per_layer(c)


@exercise("06", "implement", right=lambda config: _count(config), wrong={
    lambda config: _count(config, nested=False):
        "the language model of a multimodal file stands in text_config; what the outer level says is not it",
    lambda config: _count(config, lambda c: 2 * (c["kv_lora_rank"] + c["qk_rope_head_dim"])):
        "the latent is key and value at once: no factor 2 besides the 2 bytes",
    lambda config: _count(config, lambda c: 2 * c["num_key_value_heads"] * c["v_head_dim"]):
        "nothing per head is cached, whatever num_key_value_heads says",
    lambda config: _count(config, lambda c: c["kv_lora_rank"]): "the rope key is cached too",
    lambda config: _count(config, size=1): "bf16 takes 2 bytes a number",
    lambda config: _count(config) // config.get("text_config", config)["num_hidden_layers"]: "that is one layer",
})
def check_reader(answer):
    """A function (config: dict of a config.json) -> bytes a token that an MLA model caches, bf16, all layers."""
    v3 = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
          "v_head_dim": 128, "num_attention_heads": 128, "num_key_value_heads": 128, "head_dim": 192}
    small = v3 | {"num_hidden_layers": 62, "kv_lora_rank": 256, "qk_rope_head_dim": 32, "num_key_value_heads": 40,
                  "v_head_dim": 64}
    outer = v3 | {"num_hidden_layers": 27, "kv_lora_rank": 1024, "text_config": v3}
    return [answer(config) for config in (v3, small, outer)]


def _read_back(codes, scales, block, up=(True, True), how=np.multiply):
    out = codes.copy()
    rows, columns = (-(-size // block) if whole else size // block for size, whole in zip(codes.shape, up, strict=True))
    for i in range(rows):
        for j in range(columns):
            here = slice(i * block, (i + 1) * block), slice(j * block, (j + 1) * block)
            out[here] = how(out[here], scales[i, j])
    return out


@exercise("06", "find the bug", right=lambda codes, scales, block: _read_back(codes, scales, block), wrong={
    lambda codes, scales, block: _read_back(codes, scales, block, (False, False)):
        "still rounded down: the last block is cut short, and its elements are left without a scale",
    lambda codes, scales, block: _read_back(codes, scales, block, (True, False)):
        "columns end in a short block as well",
    lambda codes, scales, block: _read_back(codes, scales, block, (False, True)):
        "rows end in a short block as well",
    lambda codes, scales, block: _read_back(codes, scales, block, how=np.divide):
        "despite the name weight_scale_inv the code is multiplied by the scale",
    lambda codes, scales, block: codes * scales[0, 0]: "every block has a scale of its own",
})
def check_read_back(answer):
    """Repair (codes [m, k], scales, block) -> codes times the scale of their block, whatever the sizes."""
    def given(m, k, block):
        scales = 1 + np.arange(-(-m // block) * -(-k // block), dtype=float).reshape(-(-m // block), -1)
        return 1 + np.arange(m * k, dtype=float).reshape(m, k), scales, block
    return [answer(*given(*sizes)) for sizes in ((4, 4, 2), (9, 6, 4), (5, 7, 3))]
