"""The table of published models."""
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import mla_lab.models
from mla_lab.arrays import get_backend
from mla_lab.checks import CHECKS
from mla_lab.errors import InputError
from mla_lab.models import SOURCE_KINDS, get_mla, get_model, models, refused
from mla_lab.rope import softmax_scale, yarn_corners
from mla_lab.suite import run_check
from mla_lab.verdict import Setting

ROWS = json.loads((Path(mla_lab.models.__file__).parent / "data" / "models.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", models(), ids=lambda m: m.name)
def test_every_model_says_where_it_was_read_and_what_it_caches(model):
    assert model.source and model.source_kind in SOURCE_KINDS and model.source_kind != "config_file"
    assert 1 <= model.cache_layers <= model.num_hidden_layers
    assert (model.index_layers is None) == (model.index_head_dim is None)
    assert (model.index_layers or 0) <= model.num_hidden_layers
    if model.attention == "mla":
        assert model.head_dim is None and model.num_key_value_heads is None
        assert model.mla.num_attention_heads == model.num_attention_heads
    else:
        kind = {1: "mqa", model.num_attention_heads: "mha"}.get(model.num_key_value_heads, "gqa")
        assert model.mla is None and model.attention == kind and not model.unsupported


# Elements per token and layer, layers whose cache grows, all layers, layers with an indexer.
WIDTHS = {
    "DeepSeek-V2": (576, 60, 60), "DeepSeek-V2-Lite": (576, 27, 27), "DeepSeek-V3": (576, 61, 61),
    "DeepSeek-R1": (576, 61, 61), "DeepSeek-V3.1": (576, 61, 61), "DeepSeek-V3.2": (576, 61, 61, 61),
    "DeepSeek-V3.2-Exp": (576, 61, 61, 61), "Kimi-K2-Instruct": (576, 61, 61), "Kimi-K2.5": (576, 61, 61),
    "Kimi-K2.6": (576, 61, 61), "Kimi-K2.7-Code": (576, 61, 61), "Kimi-K3": (576, 24, 93),
    "Kimi-Linear-48B-A3B": (576, 7, 27), "Moonlight-16B-A3B": (576, 27, 27), "MiniCPM3-4B": (288, 62, 62),
    "LongCat-Flash-Chat": (576, 56, 56), "LongCat-Flash-Lite": (576, 28, 28), "GLM-4.7-Flash": (576, 47, 47),
    "GLM-5": (576, 78, 78, 78), "GLM-5.1": (576, 78, 78, 78), "GLM-5.2": (576, 78, 78, 21),
    "GLM-5.3-Flash": (512, 11, 45), "Mistral-Small-4-119B-2603": (320, 36, 36), "Ling-3.0-Flash": (576, 7, 42),
    "Ling-3.0-tiny": (576, 6, 24), "Youtu-LLM-2B": (576, 32, 32), "A.X-K1": (576, 61, 61), "A.X-K2": (160, 48, 48, 48),
    "Sarvam-105B": (576, 32, 32), "Hy4-preview": (576, 34, 34, 10), "Hy4": (576, 78, 78, 21),
    "JoyAI-LLM-Flash": (576, 40, 40), "DeepSeek-67B": (2048, 95, 95), "Llama-3.1-8B": (2048, 32, 32),
    "Llama-3.1-70B": (2048, 80, 80), "Llama-3.1-405B": (2048, 126, 126), "Qwen2.5-72B": (2048, 80, 80),
    "Qwen3-32B": (2048, 64, 64), "gpt-oss-120b": (1024, 18, 36), "Mistral-7B": (2048, 32, 32),
    "Llama-2-7B": (8192, 32, 32), "Falcon-7B": (128, 32, 32),
}


def test_what_every_model_caches():
    assert {m.name: (m.elements_per_token_per_layer, m.cache_layers, m.num_hidden_layers)
            + ((m.index_layers,) if m.index_layers else ()) for m in models()} == WIDTHS
    assert {m.name: m.num_nextn_predict_layers for m in models() if m.num_nextn_predict_layers} == dict.fromkeys(
        ("DeepSeek-V3", "DeepSeek-R1", "DeepSeek-V3.1", "DeepSeek-V3.2", "GLM-5", "GLM-5.1", "GLM-5.2",
         "Ling-3.0-Flash"), 1)


def test_there_are_enough_models_of_each_kind():
    kinds = Counter(m.attention for m in models())
    assert kinds["mla"] >= 25 and min(kinds["gqa"], kinds["mha"], kinds["mqa"]) >= 1
    labelled = Counter(m.source_kind for m in models())
    assert labelled == {"checkpoint_config_copy": 26, "class_default": 11, "reference_code_config": 3, "test_config": 2}


@pytest.mark.parametrize("name", refused())
def test_a_model_that_is_not_counted_is_refused_with_the_reason(name):
    with pytest.raises(InputError) as caught:
        get_model("owner/" + name.upper())
    assert str(caught.value) == f"{name} is not counted here: {refused()[name]}."
    assert "V4" not in name or "no kv_lora_rank" in refused()[name]


@pytest.mark.parametrize("name, why", [
    ("GLM-5.3-Flash", "qk_rope_head_dim is 0"), ("MiniCPM3-4B", "longrope"), ("Hy4", "sinks"),
    ("LongCat-Flash-Lite", "rope_theta was not read"), ("A.X-K2", "output gate")])
def test_a_model_that_is_counted_but_not_verified_says_why(name, why):
    with pytest.raises(InputError, match=rf"^{name} can be counted but not verified: .*{why}"):
        get_mla(name)


def test_names_and_aliases_are_unique():
    names = [n.lower() for m in models() for n in (m.name, *m.aliases)] + [n.lower() for n in refused()]
    assert len(names) == len(set(names)) and len(models()) == len(ROWS)


@pytest.mark.parametrize(("said", "name"), [
    ("deepseek-v3", "DeepSeek-V3"), ("DEEPSEEK-R1", "DeepSeek-R1"), ("v2-lite", "DeepSeek-V2-Lite"),
    ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"), ("zai-org/GLM-5", "GLM-5"), ("kimi-linear", "Kimi-Linear-48B-A3B"),
    ("tencent/Hy4", "Hy4"), ("K3", "Kimi-K3"), ("meta-llama/Meta-Llama-3.1-405B", "Llama-3.1-405B")])
def test_names_are_found_in_any_case_with_or_without_owner(said, name):
    assert get_model(said).name == name


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="model 'DeepSeek-V33' is not known; did you mean 'DeepSeek-V3'"):
        get_model("DeepSeek-V33")
    with pytest.raises(InputError, match="known: "):
        get_model("")


def test_a_model_without_mla_is_refused_by_get_mla():
    with pytest.raises(InputError, match=r"^DeepSeek-67B uses GQA, not MLA; .*DeepSeek-V3"):
        get_mla("deepseek-67b")


@pytest.mark.parametrize(("name", "scale"), [
    ("DeepSeek-V3", 0.1352337788609), ("DeepSeek-R1", 0.1352337788609), ("DeepSeek-V2", 0.1147213867929),
    ("DeepSeek-V2-Lite", 0.1147213867929), ("Kimi-K2-Instruct", 0.130861)])
def test_yarn_was_read_right(name, scale):
    assert softmax_scale(get_model(name).mla) == pytest.approx(scale, abs=5e-7)


def test_v3_details():
    v3, lite = get_model("DeepSeek-V3").mla, get_model("DeepSeek-V2-Lite").mla
    assert yarn_corners(v3) == (10, 23)
    assert (v3.hidden_size, v3.q_lora_rank, v3.qk_nope_head_dim, v3.v_head_dim) == (7168, 1536, 128, 128)
    assert (lite.hidden_size, lite.q_lora_rank, lite.num_attention_heads) == (2048, None, 16)
    assert get_model("Kimi-K2-Instruct").mla.rope_theta == 50000


# One of each way to rotate: base, YaRN, pairing, and layers that never do.
ROTATIONS = {(m.mla.qk_rope_head_dim, m.mla.rope_theta, m.mla.rope_scaling, m.mla.rope_interleave, m.mla.mla_use_nope):
             m for m in models() if m.mla and m.mla.qk_rope_head_dim}


@pytest.mark.parametrize("model", ROTATIONS.values(), ids=lambda m: m.name)
def test_claims_on_rope_can_fail_whatever_the_model_does_about_it(model):
    narrow = replace(model.mla, hidden_size=96, num_attention_heads=3, kv_lora_rank=40)
    for check in CHECKS:
        if check.id in ("3.two_terms", "3.relative", "3.norm"):
            result = run_check(check, Setting(get_backend("numpy", "float64"), narrow, model.name))
            assert result.verdict.ok and result.caught and not result.missed, result
