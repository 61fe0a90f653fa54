"""The command line on named models and on config.json files."""
import json
import re

import pytest
from configs import QWEN2, SMALL, V3, V4, YARN

from mla_lab import __main__ as cli
from mla_lab.errors import InputError
from mla_lab.models import SOURCE_KINDS, get_mla, models, refused


def run(capsys, *args):
    assert cli.main(list(args)) == 0
    return capsys.readouterr().out


def refuses(capsys, *args):
    assert cli.main(list(args)) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and seen.err.startswith("mla_lab: ") and seen.err.count("\n") == 1
    return seen.err


@pytest.fixture
def write(tmp_path):
    def file(config, name="config.json"):
        path = tmp_path / name
        path.write_text(json.dumps(config), encoding="utf-8")
        return str(path)
    return file


# --- --config -------------------------------------------------------------------------------------------------------

def test_footprint_of_a_file_says_what_it_does_not_count(capsys, write):
    path = write(V3 | {"index_head_dim": 128}, "mine_config.json")
    text = run(capsys, "footprint", "--config", path, "--tokens", "1000")
    for part in ("mine (MLA)", "512 + qk_rope_head_dim 64 = 576 elements", "70,272 B = 68.625 KiB", "70,272,000 B",
                 "1 multi-token-prediction layer, cached while it runs: 1,152 B a token (--mtp)",
                 "index keys of sparse attention: 8,052 B a token in fp8 or 15,616 B a token in bf16 (--index-keys)",
                 f"{path} (config file)", "fp8 e4m3 with a scale for each block of 128 x 128"):
        assert part in text, part
    text = run(capsys, "footprint", "--config", path, "--mtp", "--index-keys")
    for part in ("128 elements in fp8 = 132 B x 62 layers = 8,184 B a token",
                 "1,152 B x 62 layers + 8,184 B = 79,608 B = 77.7422 KiB"):
        assert part in text, part
    assert "not counted" not in text


def test_footprint_of_a_file_as_json(capsys, write):
    path = write(V3 | {"index_head_dim": 128})
    found = json.loads(run(capsys, "footprint", "--config", path, "--json", "--index-keys", "bf16", "--tp", "8"))
    wanted = {"bytes_per_token": 70_272 + 61 * 256, "index_bytes_per_token": 61 * 256, "cache_layers": 61,
              "per_gpu_bytes_per_token": 70_272 + 61 * 256, "not_counted": {"multi-token-prediction layers": 1},
              "source": path, "source_kind": "config_file"}
    assert {key: found[key] for key in wanted} == wanted


def test_a_hybrid_says_how_many_layers_grow(capsys, write):
    text = run(capsys, "footprint", "--config", write(SMALL | {"layer_group_size": 4}))
    assert "3 of 12; the cache of the others does not grow" in text and "60 B x 3 layers = 180 B" in text
    assert "7 of 27" in run(capsys, "footprint", "--model", "Kimi-Linear")


def test_footprint_counts_what_verify_refuses(capsys, write):
    distilled = write(QWEN2, "DeepSeek-R1-Distill-Qwen-7B_config.json")
    assert "2 x 4 KV heads x 128" in run(capsys, "footprint", "--config", distilled)
    assert "DeepSeek-R1-Distill-Qwen-7B is not MLA: no kv_lora_rank" in refuses(capsys, "verify", "--config", distilled)
    scaled = write(SMALL | {"rope_scaling": {"rope_type": "llama3", "factor": 8}})
    assert "30 elements" in run(capsys, "footprint", "--config", scaled)
    assert "rope_scaling.rope_type 'llama3'" in refuses(capsys, "verify", "--config", scaled)


def test_verify_takes_the_dimensions_of_a_file(capsys, write):
    path = write({"kv_lora_rank": 25, "text_config": SMALL | {"rope_scaling": YARN}})
    lines = run(capsys, "verify", "--config", path, "--case", "1", "3").splitlines()
    assert "text_config.kv_lora_rank 24 is taken, not the outer kv_lora_rank 25" in lines[0]
    assert re.fullmatch(r"(\d+) of \1 checks hold; (\d+) of \2 faults caught", lines[-1])
    cli.main(["verify", "--config", path, "--case", "1", "--json", "-"])
    seen = capsys.readouterr()
    assert {r["model"] for r in json.loads(seen.out)} and "is taken" in seen.err


def test_a_layer_beyond_any_memory_is_refused_before_it_is_made(capsys, write):
    path = write(V3 | {"num_attention_heads": 10**9})
    assert "70,272 B" in run(capsys, "footprint", "--config", path)
    assert "weights; verify takes at most 4,294,967,296" in refuses(capsys, "verify", "--config", path)


@pytest.mark.parametrize("command", ["verify", "footprint"])
def test_a_file_that_cannot_be_read_is_one_sentence(capsys, write, tmp_path, command):
    assert "nowhere.json does not exist" in refuses(capsys, command, "--config", str(tmp_path / "nowhere.json"))
    assert "compress_ratios" in refuses(capsys, command, "--config", write(V4))
    assert "hidden_size must be a whole number" in refuses(
        capsys, command, "--config", write(V3 | {"hidden_size": "7168"}))
    assert "not allowed with argument" in refuses(capsys, command, "--config", write(V3), "--model", "V3")
    assert "does not exist" in refuses(capsys, command, "--config", "")


# --- named models ---------------------------------------------------------------------------------------------------

def test_models_lists_elements_bytes_layers_and_kind_of_source(capsys):
    text, _, sources = run(capsys, "models").partition("Where each was read.")
    names = {m.name for m in models()}
    rows = {line.split()[0]: line for line in text.splitlines() if line and line.split()[0] in names}
    kinds = {line.split()[0]: line for line in sources.splitlines() if line and line.split()[0] in names}
    assert set(rows) == set(kinds) == names and len(rows) >= 35
    for name, parts in {
        "DeepSeek-V3": ("mla", " 61 ", " 576 ", "35,136", "70,272", "1 MTP layer", "config copy"),
        "GLM-5.2": ("44,928", "89,856", "1 MTP layer, index keys in 21", "config copy"),
        "Kimi-K3": ("24 of 93", "13,824", "27,648"), "Youtu-LLM-2B": ("class default",),
        "Llama-2-7B": ("mha", "8,192", "262,144", "524,288", "reference code"), "Ling-3.0-tiny": ("test config",),
    }.items():
        assert all(part in rows[name] + kinds[name] for part in parts), rows[name]
    sources, text = "".join(sources.split()), text + sources
    cells = (f"{m.name} {SOURCE_KINDS[m.source_kind]} {m.source}" for m in models())
    assert all("".join(cell.split()) in sources for cell in cells)  # lines break inside a source
    assert all("".join(f"Not counted: {name}: {why}.".split()) in sources for name, why in refused().items())
    assert max(map(len, text.splitlines())) <= 120
    for word in ("layers", "heads", "elements", "elements/token", "B/token", "besides"):
        assert re.search(rf"^  {word}  ", text, re.M), f"{word} is not explained"
    listed = {r["model"]: r for r in json.loads(run(capsys, "models", "--json"))}
    assert listed["GLM-5.3-Flash"]["bytes_per_token"] == 11_264 and listed["Hy4"]["unsupported"]


def test_the_table_counts_mtp_and_index_keys_where_there_are_any(capsys):
    def row(*args):
        return {line.split()[0]: line for line in run(capsys, "footprint", *args).splitlines() if line}
    plain, more = row(), row("--mtp", "--index-keys")
    assert "89,856" in plain["GLM-5.2"] and "1 MTP layer, index keys in 21" in plain["GLM-5.2"]
    assert "78 + 1" in more["GLM-5.2"] and f"{79 * 1152 + 22 * 132:,}" in more["GLM-5.2"]
    assert "MTP" not in more["GLM-5.2"] and "index" not in more["GLM-5.2"]
    assert more["Llama-2-7B"].split() == plain["Llama-2-7B"].split()


@pytest.mark.parametrize("args, words", [
    (["--model", "V4-Flash"], "model 'V4-Flash' is not known"),
    (["--model", "deepseek-ai/DeepSeek-V4-Flash"], "no kv_lora_rank"),
    (["--model", "Kimi-K2-Thinking"], "config.json was not read"),
    (["--model", "V2", "--index-keys"], "DeepSeek-V2 is not known to cache index keys"),
    (["--model", "V3.2", "--index-keys", "fp9"], "did you mean 'fp8'"),
    (["--index-keys", "fp9"], "did you mean 'fp8'")])
def test_a_footprint_that_cannot_be_given(capsys, args, words):
    assert words in refuses(capsys, "footprint", *args)


def test_verify_refuses_a_layer_it_does_not_have(capsys):
    assert "Hy4 can be counted but not verified: its softmax has attention sinks" in refuses(
        capsys, "verify", "--model", "Hy4")
    with pytest.raises(InputError, match="is not counted here"):
        get_mla("DeepSeek-V4-Pro")
