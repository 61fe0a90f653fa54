"""The table of published models."""
import json
from pathlib import Path

import pytest

import mla_lab.models
from mla_lab.errors import InputError
from mla_lab.models import get_mla, get_model, models
from mla_lab.rope import softmax_scale, yarn_corners

ROWS = json.loads((Path(mla_lab.models.__file__).parent / "data" / "models.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", models(), ids=lambda m: m.name)
def test_every_model_says_where_it_was_read_and_what_it_caches(model):
    assert model.source and model.source_kind in ("checkpoint_config_copy", "reference_code_config")
    assert 1 <= model.cache_layers <= model.num_hidden_layers
    if model.attention == "mla":
        assert model.head_dim is None and model.num_key_value_heads is None
        assert model.mla.num_attention_heads == model.num_attention_heads
    else:
        kind = {1: "mqa", model.num_attention_heads: "mha"}.get(model.num_key_value_heads, "gqa")
        assert model.mla is None and model.attention == kind


@pytest.mark.parametrize(("name", "elements"), [
    ("DeepSeek-V3", 576), ("DeepSeek-R1", 576), ("DeepSeek-V2", 576), ("DeepSeek-V2-Lite", 576),
    ("Kimi-K2-Instruct", 576), ("DeepSeek-67B", 2048), ("Llama-3.1-405B", 2048), ("Llama-2-7B", 8192),
    ("Falcon-7B", 128)])
def test_elements_per_token_and_layer(name, elements):
    assert get_model(name).elements_per_token_per_layer == elements


def test_names_and_aliases_are_unique():
    names = [n.lower() for m in models() for n in (m.name, *m.aliases)]
    assert len(names) == len(set(names)) and len(models()) == len(ROWS)


@pytest.mark.parametrize(("said", "name"), [
    ("deepseek-v3", "DeepSeek-V3"), ("DEEPSEEK-R1", "DeepSeek-R1"), ("v2-lite", "DeepSeek-V2-Lite"),
    ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"), ("meta-llama/Meta-Llama-3.1-405B", "Llama-3.1-405B")])
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
