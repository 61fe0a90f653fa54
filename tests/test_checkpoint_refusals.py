"""A checkpoint that cannot be read gets one sentence that names the file, the tensor and what would be right."""
import json
from dataclasses import replace

import pytest
import torch
from checkpoints import CONFIG, DEEPSEEK, DIRECT, fused, named, one, quantised, refuses, values, write
from safetensors.torch import save_file

from mla_lab.checkpoint import read_layer
from mla_lab.config import MLAConfig
from mla_lab.shards import report

# --- what is where --------------------------------------------------------------------------------------------------

def test_nothing_there(tmp_path):
    refuses(tmp_path / "gone", "does not exist")
    refuses(tmp_path, "no .safetensors file")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    refuses(tmp_path, "pytorch_model.bin", "safetensors only")
    refuses(tmp_path / "pytorch_model.bin", "pytorch_model.bin", "safetensors only")


def test_several_files_without_an_index(tmp_path):
    where = write(tmp_path / "c", named(values(), 0), named(values(), 1), index=False)
    refuses(where, "2 files", "name one of them")
    assert len(read_layer(where / "model-00002-of-000002.safetensors", 1, CONFIG)) == 7


def test_tensorrt_llm_16437_a_missing_shard_is_named(tmp_path):
    where = write(tmp_path / "c", named(values(), 0), named(values(), 1))
    (where / "model-00002-of-000002.safetensors").unlink()
    refuses(where, "model-00002-of-000002.safetensors is missing", "model.layers.1.self_attn.", layer=1)


@pytest.mark.parametrize("leaf", ["o_proj.weight", "o_proj.weight_scale_inv"])
def test_mlx_vlm_1464_a_tensor_that_is_in_a_shard_and_not_in_the_index(tmp_path, leaf):
    name, stored = f"model.layers.0.self_attn.{leaf}", named(quantised(values())[0], 0)
    where = write(tmp_path / "c", stored, named(values(), 1), change=lambda index: index.pop(name))
    refuses(where, name, "in model-00001-of-000002.safetensors but not in model.safetensors.index.json")
    assert [name in line and "does not name" in line for line in report(where)] == [True]
    alone = {name: stored.pop(name)}
    where = write(tmp_path / "d", alone, stored, named(values(), 1), change=lambda index: index.pop(name))
    refuses(where, name, "out of date")  # though no other tensor of the layer leads to that shard
    write(where, {"other": torch.ones(1)}, stored, named(values(), 1), change=lambda index: index.pop("other"))
    refuses(where, leaf.split(".")[0], "missing" if leaf == "o_proj.weight" else "without scales")


def test_a_bias_that_the_index_forgot_is_not_ignored(tmp_path):
    name = "model.layers.0.self_attn.o_proj.bias"
    shard = named(values(), 0) | {name: torch.ones(300)}
    where = write(tmp_path / "c", shard, named(values(), 1), change=lambda index: index.pop(name))
    refuses(where, name, "but not in model.safetensors.index.json")


def test_colibri_1317_a_whole_layer_outside_the_index_is_reported(tmp_path):
    drop = lambda index: [index.pop(k) for k in list(index) if "layers.1." in k]
    where = write(tmp_path / "c", named(values(), 0) | named(values(), 1), change=drop)
    refuses(where, "model.layers.1.self_attn.", "but not in model.safetensors.index.json", layer=1)
    assert "and 6 more" in report(where)[0]
    assert len(read_layer(where, 0, CONFIG)) == 7


def test_an_index_that_names_the_wrong_shard(tmp_path):
    swap = lambda index: index.update({"model.layers.0.self_attn.o_proj.weight": "model-00002-of-000002.safetensors"})
    where = write(tmp_path / "c", named(values(), 0), named(values(), 1), change=swap)
    refuses(where, "o_proj.weight", "is in model-00002-of-000002.safetensors, but it is not")


@pytest.mark.parametrize("file", ["../evil.safetensors", "/etc/passwd", "a/b.safetensors", "..\\x.safetensors", "x.bin",
                                  "C:x.safetensors", "", 7, None, "..", "\n.safetensors", "\0.safetensors"])
def test_an_index_cannot_lead_out_of_its_folder(tmp_path, file):
    save_file(named(values(), 0), tmp_path / "evil.safetensors")
    where = write(tmp_path / "c", named(values(), 0), change=lambda index: index.update({"x": file}))
    refuses(where, "'x'", repr(file), "beside it")


@pytest.mark.parametrize("text, word", [("{", "cannot be read"), ("[]", "no weight_map"), ("{}", "no weight_map"),
                                        ('{"weight_map": {}}', "no weight_map"), ("[" * 99999, "cannot be read"),
                                        ('{"weight_map": {"a": "b", "a": "c"}}', "a key stands twice"),
                                        ("\xff", "cannot be read")])
def test_a_spoiled_index(tmp_path, text, word):
    (tmp_path / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    refuses(tmp_path, "model.safetensors.index.json", word)


def test_layers_that_are_not_there_or_not_mla(tmp_path):
    where = one(tmp_path, named(values(), 0) | named(values(), 1) | named(values(), 4) | {
        "model.layers.2.self_attn.q_proj.weight": torch.ones(2, 3)})
    refuses(where, "layer 2 has no MLA attention", "layers that have it: 0-1, 4", layer=2)
    refuses(where, "layer 99", layer=99)
    for layer in (-1, 1.5, "0", True):
        refuses(where, "layer must be a whole number of at least 0", repr(layer), layer=layer)
    other = tmp_path / "llama"
    other.mkdir()
    refuses(one(other, {"model.layers.0.self_attn.k_proj.weight": torch.ones(2, 3)}), "no other layer has it either")


def test_two_attentions_in_a_layer(tmp_path):
    twice = [named(values(), 0, prefix) for prefix in ("model.layers.{}.self_attn.0.", "model.layers.{}.self_attn.1.")]
    refuses(one(tmp_path, twice[0] | twice[1]), "several attentions", "self_attn.0.", "self_attn.1.")


# --- weights --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("leaf", values())
def test_a_missing_weight_is_named_with_its_shape(tmp_path, leaf):
    state = values()
    shape = tuple(state.pop(leaf).shape)
    refuses(one(tmp_path, named(state, 0)), leaf, shape, "missing", "the layer has")


def test_minigpt_mla_1_a_down_projection_of_the_wrong_width_names_both(tmp_path):
    v3 = MLAConfig(hidden_size=7168, num_attention_heads=1, q_lora_rank=2, kv_lora_rank=512, qk_nope_head_dim=128,
                   qk_rope_head_dim=64, v_head_dim=128)
    state = values(v3) | {"kv_a_proj_with_mqa.weight": torch.ones(640, 7168)}
    refuses(one(tmp_path, named(state, 0)), "(640, 7168)", "(576, 7168)", "[r+p, d] is [512+64, 7168]", config=v3)


def test_the_config_of_another_model(tmp_path):
    refuses(one(tmp_path, named(values(), 0)), "q_proj.weight of shape (102, 300) is missing", "q_a_proj",
            config=DIRECT)
    refuses(tmp_path, "q_b_proj", "(102, 200)", "(136, 200)", "[h(n+p), q] is [4(20+14), 200]",
            config=replace(CONFIG, num_attention_heads=4))
    fused_rows = fused(values())
    refuses(one(tmp_path, named(fused_rows, 0)), "(350, 300)", "[q+r+p, d] is [190+136+14, 300]",
            config=replace(CONFIG, q_lora_rank=190))


@pytest.mark.parametrize("leaf", ["kv_a_proj_with_mqa.bias", "sinks", "q_norm.weight", "q_proj.weight"])
def test_what_the_layer_has_beyond_the_config_is_not_ignored(tmp_path, leaf):
    state = named(values(), 0) | {f"model.layers.0.self_attn.{leaf}": torch.zeros(3)}
    refuses(one(tmp_path, state), leaf, "does not have")


def test_one_weight_under_two_names(tmp_path):
    state = named(values(), 0, DEEPSEEK) | {"layers.0.attn.q_a_proj.weight": torch.ones(200, 300)}
    refuses(one(tmp_path, state), "wq_a.weight", "q_a_proj.weight", "two names")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("fp8", [False, True])
def test_weights_that_are_no_numbers(tmp_path, value, fp8):
    state = values()
    state["o_proj.weight"][299, 137] = value
    if fp8:
        state, _ = quantised(values())
        state["o_proj.weight_scale_inv"][2, 1] = value
    refuses(one(tmp_path, named(state, 0)), "o_proj.weight", "NaN or infinity")


# --- quantisation ---------------------------------------------------------------------------------------------------

def test_tt_metal_38127_scales_without_the_tail_block_are_refused(tmp_path):
    """DeepSeek-V3's kv_a needs 5 x 56 scales; 4 x 56 would leave 64 rows without one."""
    v3 = MLAConfig(hidden_size=7168, num_attention_heads=1, q_lora_rank=2, kv_lora_rank=512, qk_nope_head_dim=4,
                   qk_rope_head_dim=64, v_head_dim=2)
    state, _ = quantised(values(v3))
    assert tuple(state["kv_a_proj_with_mqa.weight_scale_inv"].shape) == (5, 56)
    state["kv_a_proj_with_mqa.weight_scale_inv"] = torch.ones(4, 56)
    refuses(one(tmp_path, named(state, 0)), "kv_a_proj_with_mqa.weight_scale_inv", "(4, 56)", "(5, 56)", "128 x 128",
            config=v3)


@pytest.mark.parametrize("spoil, words", [
    (lambda s: s.pop("o_proj.weight_scale_inv"), ["F8_E4M3 without scales", "weight_scale_inv"]),
    (lambda s: s.update({"o_proj.weight_scale": s.pop("o_proj.weight_scale_inv")}), ["weight_scale,", "one scale"]),
    (lambda s: s.update({"o_proj.weight_scale_2": torch.ones(1)}), ["weight_scale_2"]),
    (lambda s: s.update({"o_proj.weight_scale_inv": torch.ones(())}), ["of shape ()", "(3, 2)"]),
    (lambda s: s.update({"o_proj.weight_scale_inv": torch.ones(2, 3)}), ["(2, 3)", "(3, 2)"]),
    (lambda s: s.update({"o_proj.weight_scale_inv": torch.ones(3, 2, dtype=torch.int32)}), ["I32", "float scales"]),
    (lambda s: s.update({"o_proj.weight": torch.ones(300, 138)}), ["F32 with o_proj.weight_scale_inv"]),
    (lambda s: s.update({"o_proj.weight": s["o_proj.weight"].float().to(torch.float8_e5m2)}), ["F8_E5M2"]),
    (lambda s: s.update({"kv_a_layernorm.weight": torch.ones(136).to(torch.float8_e4m3fn)}), ["without scales"]),
    (lambda s: s.update({"kv_a_layernorm.weight": torch.ones(136).to(torch.float8_e4m3fn),
                         "kv_a_layernorm.weight_scale_inv": torch.ones(2)}), ["scales of shape no"]),
])
def test_fp8_that_is_not_block_scaled(tmp_path, spoil, words):
    state, _ = quantised(values())
    spoil(state)
    refuses(one(tmp_path, named(state, 0)), *words)


@pytest.mark.parametrize("stored", [
    {"o_proj.weight": torch.ones(300, 69, dtype=torch.uint8), "o_proj.weight_scale": torch.ones(300, 9),
     "o_proj.weight_scale_2": torch.ones(())},
    {"o_proj.weight_packed": torch.ones(300, 18, dtype=torch.int32), "o_proj.weight_scale": torch.ones(300, 5)},
    {"o_proj.weight": torch.ones(300, 138, dtype=torch.int8)},
    {"o_proj.weight": torch.ones(300, 138, dtype=torch.complex64)},
    {"o_proj.qweight": torch.ones(18, 300, dtype=torch.int32), "o_proj.scales": torch.ones(2, 300)}],
    ids=["NVFP4", "compressed-tensors", "int8", "complex", "GPTQ"])
def test_other_quantisations(tmp_path, stored):
    state = values()
    del state["o_proj.weight"]
    refuses(one(tmp_path, named(state | stored, 0)), "o_proj.", "a quantisation that cannot be read (NVFP4", "BF16")


@pytest.mark.parametrize("block", [[128], [0, 128], "128", [128.0, 128], {"a": 1}])
def test_blocks_that_are_none(tmp_path, block):
    where = one(tmp_path, named(quantised(values())[0], 0))
    refuses(where, "weight_block_size", block=block)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"weight_block_size": block}}))
    refuses(where, "weight_block_size")
