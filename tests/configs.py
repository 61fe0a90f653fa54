"""Configurations as they are published, with pairwise distinct dimensions, for the tests of the reader."""
import pytest

from mla_lab.errors import InputError
from mla_lab.read_config import read_config

SMALL = {
    "model_type": "deepseek_v3", "hidden_size": 96, "num_hidden_layers": 12, "num_attention_heads": 5,
    "num_key_value_heads": 5, "kv_lora_rank": 24, "q_lora_rank": 36, "qk_nope_head_dim": 14, "qk_rope_head_dim": 6,
    "v_head_dim": 10, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 4000,
}
YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096}
V3 = SMALL | {
    "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "rope_scaling": YARN, "num_nextn_predict_layers": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}
QWEN2 = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
         "num_key_value_heads": 4, "rope_theta": 10000, "sliding_window": 4096, "use_sliding_window": False}
V4 = {"model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 64,
      "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024, "qk_rope_head_dim": 64, "o_lora_rank": 1024,
      "compress_ratios": [0, 4, 128, 4, 0]}


def without(config: dict, *keys: str) -> dict:
    return {key: value for key, value in config.items() if key not in keys}


def refused(config, *words):
    with pytest.raises(InputError) as caught:
        read_config(config)
    text = str(caught.value)
    assert all(word in text for word in words), text
    assert text.endswith(".") and "\n" not in text and len(text) < 300, text
