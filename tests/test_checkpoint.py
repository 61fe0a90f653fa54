"""Checkpoints in the layouts that are published come back bit for bit as torch reads them; nothing else is read."""
import io
import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import CONFIG, DEEPSEEK, DIRECT, HUGGING_FACE, dequantised, fused, named, quantised, values, write
from safetensors.torch import save_file

from mla_lab import safetensors_file
from mla_lab.arrays import get_backend, to_numpy
from mla_lab.checkpoint import read_layer, to_backend
from mla_lab.config import MLAConfig
from mla_lab.decode import full_recompute
from mla_lab.shards import report
from mla_lab.weights import MLAWeights, shapes


def same(read, wanted, dtype=np.float32):
    assert list(read) == list(wanted)
    for name, tensor in wanted.items():
        assert read[name].dtype == dtype, name
        np.testing.assert_array_equal(read[name], tensor.to(getattr(torch, np.dtype(dtype).name)).numpy(), name)


# --- numbers --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stored, read", [(torch.float64, np.float64), (torch.float32, np.float32),
                                          (torch.float16, np.float16), (torch.bfloat16, np.float32)])
@pytest.mark.parametrize("config", [CONFIG, DIRECT], ids=["compressed query", "direct query"])
def test_one_file(tmp_path, config, stored, read):
    state = values(config, dtype=stored)
    save_file(named(state, 3) | {"lm_head.weight": torch.ones(5, 7)}, tmp_path / "model.safetensors")
    for where in (tmp_path, tmp_path / "model.safetensors", str(tmp_path)):
        same(read_layer(where, 3, config), state, read)


def test_a_layer_of_mixed_dtypes_takes_the_widest_and_keeps_every_value(tmp_path):
    state = values(dtype=torch.float16)
    state["kv_a_layernorm.weight"] = torch.linspace(0.5, 1.7, 136, dtype=torch.float32)
    state["o_proj.weight"] = state["o_proj.weight"].bfloat16()
    save_file(named(state, 0), tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 0, CONFIG), state)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu])
def test_block_scaled_fp8_is_what_torch_makes_of_it(tmp_path, kind):
    stored, read = quantised(values())
    for name in [k for k in stored if k.endswith("scale_inv")]:
        stored[name] = stored[name].to(kind)
        read[name.removesuffix("_scale_inv")] = dequantised(stored[name.removesuffix("_scale_inv")], stored[name])
    save_file(named(stored, 11), tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 11, CONFIG), read)


@pytest.mark.parametrize("nested", [False, True])
def test_blocks_are_those_of_the_config(tmp_path, nested):
    block = (96, 160)
    stored, read = quantised(values(), block)
    save_file(named(stored, 0), tmp_path / "model.safetensors")
    said = {"quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": said} if nested else said))
    same(read_layer(tmp_path, 0, CONFIG), read)
    (tmp_path / "config.json").unlink()
    same(read_layer(tmp_path, 0, CONFIG, block), read)


def test_transformers_36026_576_rows_are_not_a_multiple_of_the_block(tmp_path):
    """DeepSeek-V3's kv_a: 5 x 56 scales, rows 512 to 575 under the last of the five."""
    config = MLAConfig(hidden_size=7168, num_attention_heads=1, q_lora_rank=6, kv_lora_rank=512, qk_nope_head_dim=4,
                       qk_rope_head_dim=64, v_head_dim=2)
    stored, read = quantised({k: torch.ones(shape) for k, shape in shapes(config).items()})
    scales = torch.arange(1.0, 281.0).reshape(5, 56)
    stored |= {"kv_a_proj_with_mqa.weight": torch.full((576, 7168), 2.0).to(torch.float8_e4m3fn),
               "kv_a_proj_with_mqa.weight_scale_inv": scales}
    save_file(named(stored, 0), tmp_path / "model.safetensors")
    kv_a = read_layer(tmp_path, 0, config)["kv_a_proj_with_mqa.weight"]
    np.testing.assert_array_equal(kv_a[512:, 0], np.full(64, 2 * scales[4, 0]))
    assert kv_a[575, 7167] == 2 * scales[4, 55] and kv_a[511, 7167] == 2 * scales[3, 55]
    np.testing.assert_array_equal(kv_a, dequantised(stored["kv_a_proj_with_mqa.weight"], scales).numpy())


# --- names and layouts ----------------------------------------------------------------------------------------------

PREFIXES = [HUGGING_FACE, DEEPSEEK, "language_model.model.layers.{}.self_attn.", "layers.{}.self_attn.",
            "model.language_model.layers.{}.self_attn.", "model.layers.{}.attn."]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("eight_bit", [False, True], ids=["bf16", "fp8"])
def test_names(tmp_path, prefix, eight_bit):
    stored, read = quantised(values()) if eight_bit else [values(dtype=torch.bfloat16)] * 2
    around = named(values(seed=9), 1, prefix) | named(values(seed=8), 12, prefix) | {
        "vision_tower.encoder.layers.2.self_attn.q_proj.weight": torch.ones(2, 3),
        "mtp.layers.2.self_attn.kv_b_proj.weight": torch.ones(2, 3)}
    save_file(around | named(stored, 2, prefix), tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 2, CONFIG), read)


@pytest.mark.parametrize("eight_bit", [False, True], ids=["bf16", "fp8"])
def test_fused_down_projections(tmp_path, eight_bit):
    """Rows q | r | p; the scales are counted in the fused matrix, where row 200 of q ends inside a block."""
    state = values(dtype=torch.bfloat16)
    stored, read = quantised(fused(state)) if eight_bit else [fused(state)] * 2
    both = read["fused_qkv_a_proj_with_mqa.weight"]
    read = read | {"q_a_proj.weight": both[:200], "kv_a_proj_with_mqa.weight": both[200:]}
    save_file(named(stored, 0), tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 0, CONFIG), {name: read[name] for name in shapes(CONFIG)})


@pytest.mark.parametrize("together", [False, True], ids=["apart", "fused"])
def test_biases_and_gates_where_the_config_has_them(tmp_path, together):
    config = replace(CONFIG, attention_bias=True, output_gate="value")
    state = values(config)
    assert {"q_a_proj.bias", "kv_a_proj_with_mqa.bias", "o_proj.bias", "g_proj.weight"} < set(state)
    save_file(named(fused(state) if together else state, 0), tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 0, config), state)


def test_what_takes_no_part_in_dense_attention_is_passed_over(tmp_path):
    state = values()
    beside = {"indexer.wk.weight": torch.ones(2, 3), "indexer.k_norm.bias": torch.ones(2),
              "rotary_emb.inv_freq": torch.ones(7), "q_a_proj.input_scale": torch.ones(()), "k_scale": torch.ones(1)}
    save_file(named(state, 0) | {f"model.layers.0.self_attn.{k}": v for k, v in beside.items()},
              tmp_path / "model.safetensors")
    same(read_layer(tmp_path, 0, CONFIG), state)


def test_a_layer_split_over_shards_and_a_scale_apart_from_its_weight(tmp_path):
    stored, read = quantised(values())
    shards = [{}, {}, named(values(seed=5), 1)]
    for i, (name, tensor) in enumerate(named(stored, 0).items()):
        shards[i % 2][name] = tensor
    where = write(tmp_path / "c", *shards)
    same(read_layer(where, 0, CONFIG), read)
    same(read_layer(where / "model.safetensors.index.json", 0, CONFIG), read)
    assert report(where) == []


def test_shards_of_other_layers_may_be_absent(tmp_path):
    state = values()
    where = write(tmp_path / "c", named(values(seed=1), 0), named(state, 1))
    (where / "model-00001-of-000002.safetensors").unlink()
    same(read_layer(where, 1, CONFIG), state)


def test_tensorrt_llm_16437_a_stray_file_beside_the_shards_is_not_merged(tmp_path):
    state = values()
    where = write(tmp_path / "c", named(state, 0), named(values(seed=1), 1))
    save_file(named(values(seed=7), 0) | named(values(seed=7), 2), where / "model.safetensors")
    same(read_layer(where, 0, CONFIG), state)
    assert report(where) == ["model.safetensors is not read: model.safetensors.index.json does not name it."]


# --- memory and bytes -----------------------------------------------------------------------------------------------

LARGE = MLAConfig(hidden_size=1200, num_attention_heads=8, q_lora_rank=400, kv_lora_rank=320, qk_nope_head_dim=64,
                  qk_rope_head_dim=32, v_head_dim=48)
LAYOUTS = {"bf16": lambda state: {k: v.bfloat16() for k, v in state.items()}, "f32": lambda state: state,
           "fp8": lambda state: quantised(state)[0],
           "fp8 fused": lambda state: quantised(fused(state))[0]}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_a_layer_needs_little_more_than_the_layer(tmp_path, monkeypatch, layout):
    """Four layers in two shards, each shard several times as large as a layer: peak and bytes read are bounded."""
    layers = [named(LAYOUTS[layout](values(LARGE, seed)), seed) for seed in range(4)]
    wanted = sum(tensor.nbytes for tensor in layers[2].values())
    shards = [layers[a] | layers[b] | {f"model.layers.{a}.mlp.weight": torch.zeros(4 * wanted, dtype=torch.uint8)}
              for a, b in ((0, 1), (3, 2))]
    where = write(tmp_path / "c", *shards)
    read_layer(where, 2, LARGE)  # once before, so that imports and caches are not counted
    tracemalloc.start()
    state = read_layer(where, 2, LARGE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    returned = sum(w.nbytes for w in state.values())
    assert returned < peak <= 1.5 * returned, peak / returned

    count = []

    class Counting(io.FileIO):
        def readinto(self, buffer):
            count.append(super().readinto(buffer))
            return count[-1]

        def read(self, size):
            count.append(size)
            return super().read(size)

    monkeypatch.setattr(safetensors_file, "open", Counting, raising=False)
    read_layer(where, 2, LARGE)
    assert wanted < sum(count) < wanted + 20_000  # the header of its shard


# --- use ------------------------------------------------------------------------------------------------------------

def test_weights_run_on_every_backend(tmp_path, backend):
    config = replace(CONFIG, qk_rope_head_dim=14)
    save_file(named(quantised(values())[0], 0), tmp_path / "model.safetensors")
    state = to_backend(read_layer(tmp_path, 0, config), backend)
    weights = MLAWeights.from_hugging_face(state, config)
    hidden = backend.asarray(np.random.default_rng(1).standard_normal((2, 5, 300)))
    out = to_numpy(full_recompute(hidden, weights, config))
    numpy = get_backend("numpy")
    same_here = MLAWeights.from_hugging_face(to_backend(read_layer(tmp_path, 0, config), numpy), config)
    np.testing.assert_allclose(out, full_recompute(to_numpy(hidden), same_here, config), rtol=0, atol=1e-12)


def tiny(kind):
    transformers = pytest.importorskip("transformers", reason="writes checkpoints with transformers' save_pretrained")
    torch.manual_seed(3)
    common = {"hidden_size": 156, "num_attention_heads": 3, "num_key_value_heads": 3, "kv_lora_rank": 134,
              "qk_nope_head_dim": 20, "qk_rope_head_dim": 14, "v_head_dim": 22, "num_hidden_layers": 3,
              "intermediate_size": 40, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2,
              "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "vocab_size": 50,
              "max_position_embeddings": 64}
    q = None if kind == "V2-Lite" else 36
    part = "DeepseekV3" if kind == "V3" else "DeepseekV2"
    model = getattr(transformers, part + "ForCausalLM")(getattr(transformers, part + "Config")(**common, q_lora_rank=q))
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    sizes = {k: common[k] for k in ("hidden_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim",
                                    "qk_rope_head_dim", "v_head_dim")}
    return model.bfloat16(), MLAConfig(**sizes, q_lora_rank=q)


@pytest.mark.parametrize("shard", ["60KB", "5GB"], ids=["shards", "one file"])
@pytest.mark.parametrize("kind", ["V3", "V2", "V2-Lite"])
def test_what_transformers_saves(tmp_path, kind, shard):
    model, config = tiny(kind)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").exists() == (shard == "5GB")
    for layer in range(3):
        theirs = model.model.layers[layer].self_attn.state_dict()
        same(read_layer(tmp_path, layer, config), {name: theirs[name].float() for name in shapes(config)})
    assert report(tmp_path) == []
