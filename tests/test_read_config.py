"""Published config.json files: the right answer, or a refusal in one sentence that names the key."""
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from configs import QWEN2, V3, V4, YARN, refused, without

from mla_lab import footprint as fp
from mla_lab.arrays import get_backend
from mla_lab.checks import CHECKS
from mla_lab.errors import InputError
from mla_lab.models import models, verifiable
from mla_lab.read_config import read_config
from mla_lab.rope import frequencies, softmax_scale
from mla_lab.suite import run_check
from mla_lab.verdict import Setting
from mla_lab.weights import shapes

# --- real files -----------------------------------------------------------------------------------------------------

# Attention, layers, elements per token and layer, MTP layers, layers with an indexer, blocks of scaled weights,
# softmax scale (of MLA) or None.
V3_SCALE, K2_SCALE, K25_SCALE, GLM_SCALE = 0.1352337788609, 0.1308612, 0.1446796, 256**-0.5
FP8 = (128, 128)
REAL = {
    "Qwen--Qwen3-32B": ("gqa", 64, 2048, None, None, None, None),
    "deepseek-ai--DeepSeek-R1": ("mla", 61, 576, 1, None, FP8, V3_SCALE),
    "deepseek-ai--DeepSeek-V3": ("mla", 61, 576, 1, None, FP8, V3_SCALE),
    "deepseek-ai--DeepSeek-V3.2": ("mla", 61, 576, 1, 61, FP8, V3_SCALE),
    "deepseek-ai--DeepSeek-V4-Flash": "compress_ratios",
    "deepseek-ai--DeepSeek-V4-Pro": "compress_ratios",
    "meta-llama--Meta-Llama-3.1-405B": ("gqa", 126, 2048, None, None, None, None),
    "meta-llama--Meta-Llama-3.1-8B": ("gqa", 32, 2048, None, None, None, None),
    "moonshotai--Kimi-K2-Instruct": ("mla", 61, 576, 0, None, FP8, K2_SCALE),
    "moonshotai--Kimi-K2.5": ("mla", 61, 576, 0, None, None, K25_SCALE),
    "nvidia--DeepSeek-V3.1-NVFP4": ("mla", 61, 576, 1, None, None, V3_SCALE),
    "nvidia--DeepSeek-V4-Flash-NVFP4": "compress_ratios",
    "nvidia--DeepSeek-V4-Pro-NVFP4": "compress_ratios",
    "nvidia--GLM-5-NVFP4": ("mla", 78, 576, 1, 78, None, GLM_SCALE),
    "nvidia--GLM-5.1-NVFP4": ("mla", 78, 576, 1, 78, None, GLM_SCALE),
    "nvidia--GLM-5.2-NVFP4": ("mla", 78, 576, 1, 21, None, GLM_SCALE),
    "nvidia--Kimi-K2.5-NVFP4": ("mla", 61, 576, 0, None, None, K25_SCALE),
    "nvidia--Kimi-K2.7-Code-NVFP4": ("mla", 61, 576, 0, None, None, K25_SCALE),
    "nvidia--Llama-3.1-70B-Instruct-FP8": ("gqa", 80, 2048, None, None, None, None),
    "sgl-project--DeepSeek-V4-Flash-FP8": "compress_ratios",
    "zai-org--GLM-5": ("mla", 78, 576, 1, 78, None, GLM_SCALE),
    "zai-org--GLM-5-FP8": ("mla", 78, 576, 1, 78, FP8, GLM_SCALE),
    "zai-org--GLM-5.1": ("mla", 78, 576, 1, 78, None, GLM_SCALE),
    "zai-org--GLM-5.1-FP8": ("mla", 78, 576, 1, 78, FP8, GLM_SCALE),
}


@pytest.fixture(scope="module")
def folder():
    if not os.environ.get("MLA_LAB_CONFIGS"):
        pytest.skip("MLA_LAB_CONFIGS names no folder of real config.json files")
    return Path(os.environ["MLA_LAB_CONFIGS"])


def test_every_real_configuration_has_an_expectation(folder):
    assert {p.name.removesuffix("_config.json") for p in folder.glob("*.json")} == set(REAL)


@pytest.mark.parametrize("stem", REAL)
def test_a_real_configuration_gives_the_right_answer_or_the_right_refusal(folder, stem):
    path, want = folder / f"{stem}_config.json", REAL[stem]
    if isinstance(want, str):
        return refused(path, "is not MLA: no kv_lora_rank", want, "head_dim 512", stem.rpartition("--")[2])
    m = read_config(path)
    seen = (m.attention, m.cache_layers, m.elements_per_token_per_layer, m.num_nextn_predict_layers, m.index_layers,
            m.weight_block_size)
    assert seen == want[:-1] and m.num_hidden_layers == m.cache_layers
    assert (softmax_scale(m.mla) if m.mla else None) == pytest.approx(want[-1], abs=5e-7)
    assert m.name == stem.rpartition("--")[2] and m.source == str(path) and m.source_kind == "config_file"
    assert not m.unsupported and (m.mla is None) == (m.attention != "mla")
    if m.mla:
        assert verifiable(m) is m


def test_the_table_of_models_says_what_the_files_say_that_it_names(folder):
    compared = 0
    for model in models():
        path = folder / model.source.rpartition("/")[2]
        if path.is_file():
            read = read_config(path)
            same = ("attention", "num_hidden_layers", "cache_layers", "num_attention_heads", "num_key_value_heads",
                    "head_dim", "mla", "num_nextn_predict_layers", "index_head_dim", "index_layers", "unsupported")
            assert {k: getattr(read, k) for k in same} == {k: getattr(model, k) for k in same}, model.name
            compared += 1
    assert compared >= 10


# --- threads --------------------------------------------------------------------------------------------------------

def test_transformers_37134_whole_and_real_yarn_numbers_are_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = read_config(V3 | {"rope_scaling": YARN | {"factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1}})
        real = read_config(V3 | {"rope_scaling": YARN | {"factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0}})
    assert whole == real and (frequencies(whole.mla) == frequencies(real.mla)).all()


@pytest.mark.parametrize("block", ["rope_scaling", "rope_parameters"])
def test_transformers_32167_and_45643_type_and_rope_type(block):
    bare = without(YARN, "type")
    base = without(V3, "rope_scaling")
    for spelt in ({"type": "yarn"}, {"rope_type": "yarn"}, {"type": "yarn", "rope_type": "yarn"}):
        assert softmax_scale(read_config(base | {block: bare | spelt}).mla) == pytest.approx(0.1352337788609, abs=1e-13)
    refused(base | {block: bare}, block, "neither rope_type nor type", "'yarn'")
    refused(base | {block: bare | {"type": "yarn", "rope_type": "default"}}, f"{block}.rope_type 'default'",
            f"{block}.type 'yarn'", "disagree")


def test_llm_d_benchmark_428_a_name_does_not_make_mla():
    distilled = read_config(QWEN2, "DeepSeek-R1-Distill-Qwen-7B")
    with pytest.raises(InputError, match=r"^DeepSeek-R1-Distill-Qwen-7B is not MLA: no kv_lora_rank; .*GQA"):
        verifiable(distilled)
    assert (distilled.attention, fp.bytes_per_token(distilled)) == ("gqa", 28 * 2 * 4 * 128 * 2)
    renamed = read_config(V3 | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "Llama-3")
    assert renamed.attention == "mla" and fp.bytes_per_token(renamed) == 70_272


@pytest.mark.parametrize("key", ["text_config", "language_config"])
def test_tensorrt_llm_11816_and_modelship_183_the_inner_configuration_wins(key):
    inner = without(V3, "quantization_config")
    nested = read_config({"model_type": "kimi_k25", key: inner, "vision_config": {"hidden_size": 1152}})
    assert fp.bytes_per_token(nested) == 70_272 and nested.mla == read_config(V3).mla and not nested.notes
    outer = {"kv_lora_rank": 256, "hidden_size": 7168, "num_hidden_layers": 3, key: inner}
    both = read_config(outer | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}})
    assert both.mla == nested.mla and both.cache_layers == 61 and both.weight_block_size == (64, 32)
    assert f"{key}.kv_lora_rank 512 is taken, not the outer kv_lora_rank 256" in both.notes
    assert f"{key}.num_hidden_layers 61 is taken" in both.notes and "hidden_size" not in both.notes
    refused(V3 | {key: {"model_type": "x"}}, f"{key}.num_hidden_layers is missing")  # nothing is filled in from outside
    refused({key: V3 | {"rope_scaling": YARN | {"factor": "40"}}}, f"{key}.rope_scaling.factor", "'40'")


@pytest.mark.parametrize("rank", [None, 0, "absent"])
def test_sglang_9815_and_vllm_21414_no_query_compression(rank):
    lite = V3 | {"hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 27, "q_lora_rank": rank}
    model = read_config(without(lite, "q_lora_rank") if rank == "absent" else lite)
    assert model.mla.q_lora_rank is None and shapes(model.mla)["q_proj.weight"] == (16 * 192, 2048) == (3072, 2048)
    assert not [name for name in shapes(model.mla) if name.startswith("q_a")]
    decode = next(c for c in CHECKS if c.id == "5.model_layer")
    narrow = replace(model.mla, hidden_size=96, kv_lora_rank=40)
    result = run_check(decode, Setting(get_backend("numpy"), narrow, model.name))
    assert result.verdict.ok and result.caught and not result.missed


@pytest.mark.parametrize("head_dim", [None, "absent", 64, 192, 512, 576])
def test_infinilm_448_sparkrun_247_and_omlx_2626_head_dim_is_not_the_width(head_dim):
    config = V3 | {"head_dim": head_dim, "num_key_value_heads": 1}
    model = read_config(without(config, "head_dim") if head_dim == "absent" else config)
    assert model.elements_per_token_per_layer == 576 and model.head_dim is None is model.num_key_value_heads


def test_omlx_2626_a_head_of_512_without_a_latent_is_refused():
    refused(V4, "is not MLA: no kv_lora_rank", "compress_ratios", "head_dim 512")
    refused(without(V4, "compress_ratios"), "qk_rope_head_dim", "no kv_lora_rank")
    refused(V4 | {"kv_lora_rank": None}, "no kv_lora_rank")
    refused({"text_config": V4}, "no text_config.kv_lora_rank")


# --- files ----------------------------------------------------------------------------------------------------------

def test_a_file_or_its_folder_is_read(tmp_path):
    where = tmp_path / "owner--Some-Model"
    where.mkdir()
    (where / "config.json").write_text(json.dumps(V3), encoding="utf-8-sig")
    assert read_config(where) == read_config(str(where / "config.json"), "Some-Model")
    assert read_config(where).name == "Some-Model" and read_config(where, "mine").name == "mine"
    assert read_config(V3 | {"_name_or_path": "deepseek-ai/DeepSeek-V3/"}).name == "DeepSeek-V3"
    assert read_config(V3).name == "this model"


def test_a_file_called_config_json_is_not_named_after_its_folder(tmp_path, monkeypatch):
    folder = tmp_path / "newcomer" / "inside"
    folder.mkdir(parents=True)
    file = folder.parent / "config.json"
    monkeypatch.chdir(folder)
    for own, said in (({}, "the model of ../config.json"), ({"_name_or_path": "owner/Their-Model"}, "Their-Model"),
                      ({"name": "Mine"}, "Mine"), ({"_name_or_path": "./", "name": 3}, "the model of ../config.json")):
        file.write_text(json.dumps(V3 | own))
        assert read_config("../config.json").name == said
    refused_file = json.dumps(without(V4, "compress_ratios"))
    file.write_text(refused_file)
    refused("../config.json", "the model of ../config.json has")
    monkeypatch.chdir(tmp_path)
    (folder / "config.json").write_text(json.dumps(V3))
    deep = tmp_path / ("d" * 80)
    folder.rename(deep)
    assert read_config(deep / "config.json").name.endswith("d/config.json")  # its end, where it is long
    assert read_config("newcomer/../" + deep.name).name == "d" * 60


def test_how_the_weights_are_stored_is_kept():
    assert read_config(V3).quantization == "fp8 e4m3 with a scale for each block of 128 x 128"
    nv = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    model = read_config(V3 | {"quantization_config": nv})
    assert (model.quantization, model.weight_block_size) == ("modelopt NVFP4", None)
    assert "quantization_config.kv_cache_scheme asks for a cache of 8 bits" in model.notes
    assert read_config(without(V3, "quantization_config")).quantization == ""


@pytest.mark.parametrize("content, words", [
    (b"{\"a\": 1,}", ["not JSON", "line 1"]), (b"", ["not JSON"]), (b"\xff\xfe{}", ["not JSON", "UTF-8"]),
    (b"[1]", ["object", "list"]), (b"null", ["object", "null"]), (b"[" * 100_000, ["nested"]),
    (b"{\"hidden_size\": " + b"9" * 5000 + b"}", ["too long"]), (b"{}", ["num_hidden_layers is missing"])])
def test_a_broken_file_is_refused(tmp_path, content, words):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    refused(path, *words)


def test_a_missing_file_is_refused(tmp_path):
    refused(tmp_path / "nowhere.json", "nowhere.json does not exist")
    refused(tmp_path, "config.json does not exist")
    (tmp_path / "config.json").mkdir()
    refused(tmp_path / "config.json", "config.json does not exist")


@pytest.mark.parametrize("text, words", [
    ('{"kv_lora_rank": 512, "kv_lora_rank": 256}', ("'kv_lora_rank'", "stands twice")),
    ('{"a": {"b": 1, "b": 1}}', ("'b'", "stands twice")),
])
def test_a_key_that_stands_twice_is_refused_by_name(tmp_path, text, words):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_config(path)
    assert all(w in str(error.value) for w in words)


@pytest.mark.parametrize("value", ["\ud800", "\x1b[2Jhi\nweights  evil"])
def test_text_that_a_terminal_would_obey_is_refused(value):
    with pytest.raises(InputError, match="quant_method"):
        read_config({**V3, "quantization_config": {"quant_method": value}})


def test_what_is_no_file_or_too_large_is_refused_before_it_is_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is not a file"):
        read_config(pipe)
    large = tmp_path / "config.json"
    with open(large, "wb") as file:
        file.truncate(17 * 2**20)
    with pytest.raises(InputError, match="larger than"):
        read_config(large)


@pytest.mark.parametrize("field, value", [("mscale_all_dim", 1e200), ("factor", 1e308), ("beta_fast", 1e10)])
def test_yarn_numbers_that_would_overflow_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=f"{field}.*at most"):
        read_config({**V3, "rope_scaling": {**V3["rope_scaling"], field: value}})
