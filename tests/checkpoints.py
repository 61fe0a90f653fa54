"""Small checkpoints in the layouts that are published, written with safetensors' own package, and torch's reading.

Every dimension is another one, none is a multiple of 128, and most that block scales cut are above it, so that the last
block of an axis is cut short.
"""
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mla_lab.checkpoint import read_layer
from mla_lab.config import MLAConfig
from mla_lab.errors import InputError
from mla_lab.weights import NAMES, shapes

CONFIG = MLAConfig(hidden_size=300, num_attention_heads=3, q_lora_rank=200, kv_lora_rank=136, qk_nope_head_dim=20,
                   qk_rope_head_dim=14, v_head_dim=46)
DIRECT = MLAConfig(hidden_size=300, num_attention_heads=3, kv_lora_rank=136, qk_nope_head_dim=20, qk_rope_head_dim=14,
                   v_head_dim=46)
HUGGING_FACE, DEEPSEEK = "model.layers.{}.self_attn.", "layers.{}.attn."
OWN = {n.hugging_face: n.deepseek for n in NAMES}


def values(config=CONFIG, seed=0, dtype=torch.float32):
    """Random weights under Hugging Face's names; norms are not uniform."""
    draw = torch.Generator().manual_seed(seed)
    return {name: (torch.randn(shape, generator=draw) * 0.05 + (len(shape) == 1)).to(dtype)
            for name, shape in shapes(config).items()}


def to_fp8(weight, block=(128, 128), seed=0):
    """Codes and scales; every block has another scale, and not the one that fits best."""
    down, across = -(-weight.shape[0] // block[0]), -(-weight.shape[1] // block[1])
    scales = torch.rand((down, across), generator=torch.Generator().manual_seed(seed)) * 0.001 + 0.0005
    return (weight / spread(scales, weight.shape, block)).clamp(-448, 448).to(torch.float8_e4m3fn), scales


def spread(scales, shape, block):
    return scales.float().repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def dequantised(codes, scales, block=(128, 128)):
    return codes.float() * spread(scales, codes.shape, block)


def quantised(state, block=(128, 128), name="weight_scale_inv"):
    """Matrices in block-scaled FP8 and norms in bfloat16, as DeepSeek-V3 is published; and what torch makes of them."""
    stored, read = {}, {}
    for seed, (leaf, weight) in enumerate(state.items()):
        if weight.ndim == 1:
            stored[leaf] = weight.bfloat16()
            read[leaf] = stored[leaf].float()
        else:
            scale = leaf.removesuffix("weight") + name
            stored[leaf], stored[scale] = to_fp8(weight, block, seed)
            read[leaf] = dequantised(stored[leaf], stored[scale], block)
    return stored, read


def fused(state):
    """The two down-projections as one matrix, and their biases as one vector."""
    parts, rest = ("q_a_proj.", "kv_a_proj_with_mqa."), {}
    for name, tensor in state.items():
        if not name.startswith(parts):
            rest[name] = tensor
        elif name.startswith(parts[0]):
            kind = name.rpartition(".")[2]
            rest[f"fused_qkv_a_proj_with_mqa.{kind}"] = torch.cat([tensor, state[parts[1] + kind]])
    return rest


def named(state, layer, prefix=HUGGING_FACE):
    """``state`` under its names in a checkpoint; DeepSeek's prefix brings DeepSeek's names and its ``scale``."""
    own = {k.removesuffix(".weight"): v.removesuffix(".weight") for k, v in OWN.items()} if prefix == DEEPSEEK else {}
    found = {}
    for leaf, tensor in state.items():
        stem, _, kind = leaf.rpartition(".")
        kind = "scale" if own and kind == "weight_scale_inv" else kind
        found[f"{prefix.format(layer)}{own.get(stem, stem)}.{kind}"] = tensor.contiguous()
    return found


def write(folder: Path, *shards, index=True, change=lambda weight_map: None):
    """Shards and their index; ``change`` may spoil the index."""
    folder.mkdir(exist_ok=True)
    weight_map = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):06}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    change(weight_map)
    if index:
        total = sum(t.nbytes for shard in shards for t in shard.values())
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(text)
    return folder


def refuses(where, *words, layer=0, config=CONFIG, **how):
    with pytest.raises(InputError) as error:
        read_layer(where, layer, config, **how)
    text = str(error.value)
    assert all(str(word) in text for word in words), text
    assert text.endswith(".") and "\n" not in text, text


def one(folder, tensors):
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder
