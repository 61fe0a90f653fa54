"""Which layers cache what: hybrids, sparse attention, shared caches, and models without MLA."""
import math
from dataclasses import replace

import pytest
from configs import QWEN2, SMALL, V3, YARN, refused, without

from mla_lab import footprint as fp
from mla_lab.errors import InputError
from mla_lab.models import Model, get_model, models
from mla_lab.read_config import read_config

MIXED = ["linear_attention", "full_attention", "sliding_attention", "indexed_attention"] * 3  # 6 of 12 grow


# --- hybrids --------------------------------------------------------------------------------------------------------

def test_only_layers_whose_cache_grows_are_counted():
    model = read_config(SMALL | {"layer_types": MIXED})
    assert (model.cache_layers, model.num_hidden_layers) == (6, 12)
    assert fp.bytes_per_token(model) == 6 * 30 * 2
    refused(SMALL | {"layer_types": [*MIXED[:-1], "hyper_attention"]}, "layer_types", "'hyper_attention'", "known:")
    refused(SMALL | {"layer_types": MIXED[:-1]}, "layer_types", "each of the 12 layers")
    refused(SMALL | {"layer_types": ["mamba"] * 12}, "no layer whose cache grows")


def test_layers_counted_from_one_as_kimi_does():
    lists = {"full_attn_layers": [4, 8, 11, 12], "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10], "head_dim": 128}
    kimi = SMALL | {"model_type": "kimi_linear", "linear_attn_config": lists}
    model = read_config(without(kimi, "rope_theta"))
    assert model.cache_layers == 4 and model.mla.mla_use_nope and not model.unsupported
    assert read_config(kimi | {"linear_attn_config": without(lists, "kda_layers")}).cache_layers == 4
    refused(without(kimi, "linear_attn_config"), "linear_attn_config.full_attn_layers is missing")
    refused(kimi | {"linear_attn_config": {"head_dim": 128}}, "full_attn_layers is missing")
    refused(kimi | {"linear_attn_config": lists | {"kda_layers": [1, 2]}}, "kda_layers", "once")
    refused(kimi | {"linear_attn_config": lists | {"full_attn_layers": [0, 4]}}, "full_attn_layers", "from 1 to 12")
    types = ["full_attention" if i + 1 in lists["full_attn_layers"] else "linear_attention" for i in range(12)]
    assert read_config(kimi | {"layer_types": types}).cache_layers == 4
    refused(kimi | {"layer_types": types[::-1]}, "layer_types", "full_attn_layers", "disagree")


@pytest.mark.parametrize("key", ["layer_group_size", "full_attention_interval"])
def test_the_last_layer_of_each_group_grows(key):
    assert read_config(SMALL | {key: 4}).cache_layers == 3 and read_config(SMALL | {key: 1}).cache_layers == 12
    refused(SMALL | {key: 5}, "num_hidden_layers 12", key, "5")


def test_two_attentions_a_layer():
    longcat = without(SMALL, "num_hidden_layers") | {"model_type": "longcat_flash", "num_layers": 7}
    model = read_config(longcat)
    assert (model.cache_layers, model.num_hidden_layers) == (14, 14) and "7 layers of two attentions" in model.notes
    assert model.mla.mla_scale_q_lora and model.mla.mla_scale_kv_lora
    assert read_config(longcat | {"num_hidden_layers": 14}).cache_layers == 14
    assert not read_config(longcat | {"mla_scale_kv_lora": False, "q_lora_rank": None}).mla.mla_scale_kv_lora
    refused(longcat | {"num_hidden_layers": 8}, "num_hidden_layers", "num_layers 7")


def test_layers_that_read_the_cache_of_another_are_not_counted():
    assert read_config(SMALL | {"kv_source_layers": [0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9]}).cache_layers == 4
    refused(SMALL | {"kv_source_layers": [0, 0]}, "kv_source_layers", "12 layers")
    refused(SMALL | {"kv_source_layers": [12] * 12}, "kv_source_layers", "from 0 to 11")


@pytest.mark.parametrize("key", ["hybrid_override_pattern", "attn_layer_period", "num_kv_shared_layers"])
def test_other_patterns_are_refused_by_name(key):
    refused(SMALL | {key: 3}, key, "not read here")


def test_a_window_without_a_list_of_layers_leaves_a_note():
    assert "sliding_window 4,096" in read_config(QWEN2 | {"use_sliding_window": True}).notes
    assert "attention_chunk_size 8,192" in read_config(without(QWEN2, "sliding_window") | {
        "attention_chunk_size": 8192, "use_sliding_window": None}).notes
    assert "window" not in read_config(QWEN2).notes


# --- multi-token prediction and index keys --------------------------------------------------------------------------

def test_mtp_layers_under_both_names():
    assert read_config(V3).num_nextn_predict_layers == 1 and read_config(SMALL).num_nextn_predict_layers is None
    assert read_config(SMALL | {"num_mtp_layers": 2}).num_nextn_predict_layers == 2
    refused(V3 | {"num_mtp_layers": 2}, "num_nextn_predict_layers 1", "num_mtp_layers 2", "disagree")


@pytest.mark.parametrize("said, layers", [
    ({}, 12), ({"indexer_types": ["full", "shared", "shared"] * 4}, 4), ({"index_topk_pattern": "FSSSFSSSFSSF"}, 4),
    ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, 5), ({"index_topk_freq": 5}, 4),
    ({"model_type": "hy_v4"}, 4), ({"indexer_types": ["full"] * 12, "layer_types": MIXED}, 6)])
def test_layers_with_an_indexer_of_their_own(said, layers):
    model = read_config(SMALL | {"index_head_dim": 16} | said)
    assert (model.index_head_dim, model.index_layers) == (16, layers) and "sparse attention" in model.notes


def test_index_keys_are_counted_when_asked():
    model = read_config(SMALL | {"index_head_dim": 130, "index_topk_freq": 4, "index_skip_topk_offset": 3,
                                 "num_nextn_predict_layers": 2})
    row, latent = {"fp8": 130 + 2 * 4, "bf16": 260}, 12 * 30 * 2
    assert fp.bytes_per_token(model) == latent
    for kind, size in row.items():
        assert fp.index_bytes(model, kind) == 5 * size
        assert fp.bytes_per_token(model, index_keys=kind) == latent + 5 * size
        assert fp.bytes_per_token(model, mtp=True, index_keys=kind) == latent + 2 * 60 + 7 * size
    for call, words in ((lambda: fp.index_bytes(model, "fp4"), "index keys 'fp4'"),
                        (lambda: fp.index_bytes(read_config(SMALL)), "this model is not known to cache index keys"),
                        (lambda: fp.bytes_per_token(model, layers=3, index_keys="fp8"), "layers")):
        with pytest.raises(InputError, match=words):
            call()


def test_v32_with_index_keys_at_the_published_sizes():
    v32 = get_model("V3.2")  # 656 + 132 B a token and layer
    assert fp.bytes_per_token(v32, "fp8-tile", index_keys="fp8") == 61 * (656 + 132) == 48_068
    assert fp.index_bytes(get_model("GLM-5.2"), "fp8") == 21 * 132 and fp.index_bytes(v32, "bf16") == 61 * 256
    assert fp.bytes_per_token(v32, mtp=True, index_keys="fp8") == 62 * (1152 + 132)


def test_a_pooling_indexer_is_not_counted():
    model = read_config(SMALL | {"index_head_dim": 16, "index_kpool": 4})
    assert model.index_layers is None and "pools 4 tokens" in model.notes


@pytest.mark.parametrize("key, value", [
    ("indexer_types", ["full"] * 11), ("indexer_types", ["full"] * 11 + ["half"]), ("indexer_types", [["full"]] * 12),
    ("index_topk_pattern", "FS"), ("index_topk_pattern", 3), ("index_topk_freq", 0)])
def test_indexers_that_cannot_be_read(key, value):
    refused(SMALL | {"index_head_dim": 16, key: value}, key)


# --- models without MLA ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("said, kind, groups, width", [
    ({}, "gqa", 4, 128), ({"num_key_value_heads": None}, "mha", 28, 128), ({"num_key_value_heads": 1}, "mqa", 1, 128),
    ({"head_dim": 80}, "gqa", 4, 80), ({"use_mla": False, "kv_lora_rank": 5, "qk_rope_head_dim": 0}, "gqa", 4, 128)])
def test_plain_heads(said, kind, groups, width):
    model = read_config(QWEN2 | said)
    assert (model.attention, model.num_key_value_heads, model.head_dim) == (kind, groups, width)
    assert model.elements_per_token_per_layer == 2 * groups * width and model.mla is None
    assert ("hidden_size / num_attention_heads" in model.notes) == ("head_dim" not in said)


def test_falcon_keeps_one_head_whatever_its_num_kv_heads_says():
    falcon = {"model_type": "falcon", "hidden_size": 4544, "n_layer": 32, "n_head": 71, "multi_query": True,
              "num_kv_heads": 71, "new_decoder_architecture": False}
    model = read_config(falcon)
    assert (model.attention, model.elements_per_token_per_layer, model.cache_layers) == ("mqa", 128, 32)
    assert "num_kv_heads 71 is not used" in model.notes
    new = falcon | {"new_decoder_architecture": True, "hidden_size": 8192, "n_head": 128, "num_kv_heads": 8}
    new = read_config(new)
    assert (new.attention, new.num_key_value_heads, new.head_dim) == ("gqa", 8, 64)


@pytest.mark.parametrize("said, words", [
    ({"num_key_value_heads": 5}, ["num_key_value_heads", "divisor", "28"]),
    ({"hidden_size": 3585}, ["hidden_size", "multiple of", "28"]),
    ({"num_key_value_heads": [4] * 28}, ["num_key_value_heads", "whole number"]),
    ({"v_head_dim": 192, "head_dim": 128}, ["v_head_dim 192", "two widths"]),
    ({"qk_rope_head_dim": 64}, ["qk_rope_head_dim", "no kv_lora_rank"])])
def test_heads_that_cannot_be_counted(said, words):
    refused(QWEN2 | said, *words)


# --- every key, every wrong value -----------------------------------------------------------------------------------

WRONG = [None, True, -1, 0, 1, 1.5, "8", "", [], {}, [1], {"a": 1}, math.nan, math.inf, 10**400, "\n"]
FULL = V3 | {"index_head_dim": 128, "indexer_types": ["full"] * 61, "layer_types": ["full_attention"] * 61,
             "rms_norm_eps": 1e-6, "mla_use_nope": False, "attention_bias": False, "rope_interleave": True}


@pytest.mark.parametrize("value", WRONG, ids=lambda v: str(v)[:8].encode("unicode_escape").decode())
def test_a_wrong_value_anywhere_is_one_sentence_or_no_harm(value):
    for base in (FULL, QWEN2, FULL | {"text_config": FULL}):
        inside = [("rope_scaling", key) for key in YARN]
        inside += [("quantization_config", key) for key in ("quant_method", "weight_block_size", "kv_cache_scheme")]
        for path in [(key,) for key in {**FULL, **base}] + inside + [("text_config", key) for key in FULL]:
            changed = {k: dict(v) if isinstance(v, dict) else v for k, v in base.items()}
            if len(path) == 2:
                changed.setdefault(path[0], {})
            (changed if len(path) == 1 else changed[path[0]])[path[-1]] = value
            try:
                assert isinstance(read_config(changed), Model)
            except InputError as error:
                text = str(error)
                assert "\n" not in text and text.endswith(".") and len(text) < 400, (path, text)


@pytest.mark.parametrize("key, value, words", [
    ("kv_lora_rank", 512.0, ["kv_lora_rank", "whole number", "512.0"]), ("kv_lora_rank", 0, ["kv_lora_rank", "0"]),
    ("num_hidden_layers", True, ["num_hidden_layers", "True"]), ("hidden_size", "7168", ["hidden_size", "'7168'"]),
    ("num_hidden_layers", -61, ["num_hidden_layers", "-61"]),
    ("num_hidden_layers", 10**9, ["num_hidden_layers", "10,000"]), ("hidden_size", 10**400, ["hidden_size", "10000"]),
    ("v_head_dim", None, ["v_head_dim is missing"]), ("rope_theta", math.nan, ["rope_theta", "finite", "nan"]),
    ("rope_theta", 10**400, ["rope_theta", "finite"]), ("rms_norm_eps", -1e-6, ["rms_norm_eps", "at least 0"]),
    ("qk_head_dim", 128, ["qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim = 192"]),
    ("qk_rope_head_dim", 63, ["qk_rope_head_dim", "even"]), ("rope_interleave", 1, ["rope_interleave", "true or"]),
    ("text_config", [1], ["text_config", "an object"]), ("model_type", 3, ["model_type", "text"]),
    ("rope_scaling", "yarn", ["rope_scaling", "an object"]),
    ("rope_scaling", YARN | {"factor": None}, ["rope_scaling.factor is missing"]),
    ("rope_scaling", YARN | {"mscale": -1}, ["rope_scaling.mscale", "at least 0"]),
    ("rope_scaling", YARN | {"type": 7}, ["rope_scaling.type", "text"]),
    ("quantization_config", {"weight_block_size": [128]}, ["quantization_config.weight_block_size", "[128]"]),
    ("quantization_config", {"weight_block_size": [128, 0]}, ["weight_block_size", "whole numbers"])])
def test_the_sentence_names_the_key_the_value_and_what_is_right(key, value, words):
    refused(V3 | {key: value}, *words)


# --- the classes of transformers ------------------------------------------------------------------------------------

def test_class_defaults_in_the_table_are_those_of_the_classes():
    auto = pytest.importorskip("transformers", reason="needs transformers").AutoConfig
    classes = {"Kimi-Linear": "kimi_linear", "MiniCPM3": "minicpm3", "GLM-5.3-Flash": "glm5_next_text",
               "Mistral-Small-4": "mistral4", "Ling-3.0-Flash": "bailing_hybrid", "Youtu-LLM": "youtu",
               "A.X-K1": "axk1", "A.X-K2": "axk2", "Sarvam-105B": "sarvam_mla", "Hy4-preview": "hy_v4",
               "Hy4": "hy_v4_vl_text"}
    assert {get_model(n).name for n in classes} == {m.name for m in models() if m.source_kind == "class_default"}
    for name, kind in classes.items():
        ours, theirs = get_model(name), read_config(auto.for_model(kind).to_dict())
        if name == "Kimi-Linear":  # the class numbers its layers in another way than the checkpoint: 6 instead of 7
            assert theirs.cache_layers == 6
            theirs = replace(theirs, cache_layers=7)
        same = ("attention", "num_hidden_layers", "cache_layers", "num_attention_heads", "index_head_dim",
                "index_layers", "mla")
        assert {k: getattr(ours, k) for k in same} == {k: getattr(theirs, k) for k in same}, name
        assert ours.num_nextn_predict_layers == (theirs.num_nextn_predict_layers or None), name
        assert bool(theirs.unsupported) == bool(ours.unsupported) or name == "MiniCPM3", name
