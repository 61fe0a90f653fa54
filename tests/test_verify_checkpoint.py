"""The checks on the weights of a real layer: of any size, read through the command line, and really those weights."""
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import DEEPSEEK, named, quantised, values, write
from configs import V3
from safetensors.torch import save_file

from mla_lab import __main__ as cli
from mla_lab import suite
from mla_lab.arrays import get_backend, to_numpy
from mla_lab.checks import CHECKS
from mla_lab.checks.case4_absorption import head_arrays
from mla_lab.checks.case5_decode import layer
from mla_lab.checks.common import state_of
from mla_lab.config import MLAConfig
from mla_lab.faults import FAULTS
from mla_lab.verdict import Given, Setting
from mla_lab.weights import shapes

DIMENSIONS = {"hidden_size": 152, "num_attention_heads": 4, "q_lora_rank": 90, "kv_lora_rank": 134,
              "qk_nope_head_dim": 50, "qk_rope_head_dim": 20, "v_head_dim": 44}
CONFIG = MLAConfig(**DIMENSIONS)
READERS = [c for c in CHECKS if c.id in ("2.model", "5.model_layer") or (c.case == 4 and c.id not in (
    "4.to_the_bit", "4.premultiplied", "4.square", "4.all_bits"))]


def drawn(size, norm=1.0, dtype=np.float32):
    """A layer as transformers initialises it (normal, 0.02) times ``size``, norms between half and 1.5 of ``norm``."""
    rng = np.random.default_rng(5)
    return Given({name: (norm * rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else
                         0.02 * size * rng.standard_normal(shape)).astype(dtype)
                  for name, shape in shapes(CONFIG).items()}, "a test")


@pytest.mark.parametrize("size, norm, dtype", [
    (1, 1, "float64"), (1, 1, "float32"), (30, 1, "float64"), (30, 1, "float32"), (0.01, 1, "float64"),
    (0.01, 1, "float32"), (1, 0.03, "float64"), (1, 0.03, "float32"), (1, 1, "bfloat16"), (100, 1, "float64")])
def test_checks_hold_and_catch_their_faults_on_weights_of_any_size(size, norm, dtype):
    """At the two ends no scale of the logits can be told from another by the outputs: bfloat16 rounds more than the
    small logits of this layer say, and a softmax of logits in the hundreds is 0 and 1 whatever multiplies them."""
    setting = Setting(get_backend("numpy", dtype), CONFIG, "tiny", state=drawn(size, norm))
    assert len(READERS) == 9
    for check in READERS:
        result = suite.run_check(check, setting)
        assert result.verdict.ok, result.verdict
        if dtype != "bfloat16" and size < 100:
            assert not result.missed, (check.id, result.missed)


def test_what_bfloat16_cannot_tell_fails_as_vacuous_and_does_not_pass():
    setting = Setting(get_backend("numpy", "bfloat16"), CONFIG, "tiny", state=drawn(100))
    verdict = next(c for c in READERS if c.id == "4.output").run(setting)
    assert not verdict.ok and "vacuous" in verdict.note


def test_it_is_these_weights_that_are_checked(backend):
    given = drawn(1)
    heads = head_arrays(CONFIG, backend, 2, 5, 1, given)
    np.testing.assert_array_equal(to_numpy(heads.kv_b), given.arrays["kv_b_proj.weight"].astype(np.float64))
    norm = given.arrays["kv_a_layernorm.weight"].astype(np.float64)
    plain = to_numpy(head_arrays(CONFIG, backend, 2, 5, 1).q.c_kv)
    np.testing.assert_allclose(to_numpy(heads.q.c_kv), plain * norm, rtol=1e-15)
    two = head_arrays(replace(CONFIG, num_attention_heads=2), backend, 2, 5, 1, given)
    np.testing.assert_array_equal(to_numpy(two.kv_b), given.arrays["kv_b_proj.weight"][: 2 * 94])
    if backend.name == "numpy":
        state, *_ = layer(CONFIG, backend, 2, 1, 3, given)
        assert all((state[name] == given.arrays[name]).all() for name in shapes(CONFIG))
        assert (layer(CONFIG, backend, 2, 1, 3)[0]["o_proj.weight"] != state["o_proj.weight"]).any()
        assert list(state_of(given, CONFIG, backend, 0)) == list(shapes(CONFIG))


def test_a_layer_that_breaks_a_claim_turns_its_check_red():
    """Up-projections of rank r - 1; and a layer whose output is nothing but zeros, which no bound can judge."""
    flat, silent = drawn(1), drawn(1)
    kv_b = flat.arrays["kv_b_proj.weight"]
    kv_b[:, -1] = kv_b[:, 0]
    silent.arrays["o_proj.weight"][:] = 0
    by_id = {c.id: c for c in READERS}
    setting = Setting(get_backend("numpy", "float64"), CONFIG, "tiny", state=flat)
    verdict = by_id["2.model"].run(setting)
    assert not verdict.ok and verdict.saw == 133
    assert not by_id["5.model_layer"].run(replace(setting, state=silent)).ok


@pytest.mark.parametrize("check", READERS, ids=lambda check: check.id)
def test_each_of_these_checks_looks_at_the_layer(check):
    class Watched(dict):
        seen = False

        def __getitem__(self, name):
            Watched.seen = True
            return super().__getitem__(name)

        def items(self):
            Watched.seen = True
            return super().items()

    check.run(Setting(get_backend("numpy", "float64"), CONFIG, "tiny", state=Given(Watched(drawn(1).arrays), "a test")))
    assert Watched.seen


@np.errstate(invalid="ignore")
def test_a_ladder_of_nan_does_not_hold():
    given = drawn(1)
    given.arrays["kv_b_proj.weight"][0, 0] = np.nan
    check = next(c for c in READERS if c.id == "4.ladder")
    assert not check.run(Setting(get_backend("numpy", "float64"), CONFIG, "tiny", state=given)).ok


def test_two_layers_are_two_results():
    """Results are cached by the layer that was given, not by its dimensions."""
    first, second = drawn(1), drawn(2)
    assert first != second and hash(Setting(get_backend(), CONFIG, state=first)) is not None
    saw = {next(c for c in READERS if c.id == "4.logits").run(Setting(get_backend(), CONFIG, state=g)).bound
           for g in (first, second)}
    assert len(saw) == 2


# --- the command line -----------------------------------------------------------------------------------------------

def verify(capsys, *args):
    code = cli.main(["verify", *map(str, args)])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def refused(capsys, *args):
    code, out, err = verify(capsys, *args)
    assert code == 2 and out == "" and err.startswith("mla_lab: ") and err.count("\n") == 1, (code, out, err)
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two layers in block-scaled FP8 under DeepSeek's names in two shards, with a config.json."""
    where = write(tmp_path_factory.mktemp("c") / "tiny", *(
        named(quantised(values(CONFIG, seed))[0], seed, DEEPSEEK) for seed in (0, 1)))
    (where / "config.json").write_text(json.dumps(V3 | DIMENSIONS | {"num_hidden_layers": 2}))
    return where


def test_verify_reads_the_layer_and_says_so(folder, tmp_path, capsys):
    code, out, _ = verify(capsys, "--checkpoint", folder, "--layer", 1, "--case", 4, "--json", tmp_path / "r.json")
    assert code == 0, out
    assert f"The weights of layer 1 of {folder} are those of 2.model, 5.model_layer and all of case 4" in out
    rows = json.loads((tmp_path / "r.json").read_text())
    assert {(r["weights"], r["model"]) for r in rows} == {(f"layer 1 of {folder}", "tiny")}
    code, out, _ = verify(capsys, "--model", "V2-Lite", "--case", 1, "--json", "-")
    assert code == 0 and {r["weights"] for r in json.loads(out)} == {"drawn"}


def test_a_config_from_elsewhere_and_a_single_file(folder, tmp_path, capsys):
    save_file(named(values(CONFIG), 0), tmp_path / "one.safetensors")
    code, *_ = verify(capsys, "--checkpoint", tmp_path / "one.safetensors", "--layer", 0, "--case", 4, "--config",
                      folder / "config.json")
    assert code == 0
    assert "config.json does not exist" in refused(
        capsys, "--checkpoint", tmp_path / "one.safetensors", "--layer", 0, "--case", 4)


def test_what_the_index_leaves_out_is_said(folder, tmp_path, capsys):
    where = write(tmp_path / "c", named(values(CONFIG), 0), {"stray": torch.ones(1), "lm_head.weight": torch.ones(2)},
                  change=lambda index: index.pop("stray"))
    (where / "config.json").write_bytes((folder / "config.json").read_bytes())
    code, out, _ = verify(capsys, "--checkpoint", where, "--layer", 0, "--case", 4)
    assert code == 0 and "model-00002-of-000002.safetensors holds tensors" in out and "'stray'" in out


def test_the_page_on_checkpoints(folder, tmp_path, capsys, monkeypatch):
    """Its Python runs, and a folder without the shard is answered as it says."""
    page = (Path(__file__).parent.parent / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    where = tmp_path / "DeepSeek-V2-Lite"
    where.mkdir()
    for file in folder.iterdir():
        (where / file.name).symlink_to(file)  # as in Hugging Face's own cache
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], found)
    assert tuple(found["weights"].w_uk.shape) == (4, 50, 134)
    (where / "model-00002-of-000002.safetensors").unlink()
    said = refused(capsys, *re.search(r"mla_lab verify (--checkpoint DeepSeek-V2-Lite --layer 1)", page)[1].split())
    said = said.replace("model-00002-of-000002", "model-<N>-of-<M>").replace("layers.1.attn.", "model.layers.1")
    said = said.replace("model.safetensors.index.json", "...").strip()
    assert said in page, said


def test_bad_input(folder, tmp_path, capsys):
    assert "go together" in refused(capsys, "--checkpoint", folder)
    assert "go together" in refused(capsys, "--layer", 1)
    assert "--layer" in refused(capsys, "--checkpoint", folder, "--layer", "-1")
    assert "layers that have it: 0-1" in refused(capsys, "--checkpoint", folder, "--layer", 2)
    assert "does not exist" in refused(capsys, "--checkpoint", tmp_path / "gone", "--layer", 0)
    assert "no .safetensors file" in refused(capsys, "--checkpoint", tmp_path, "--layer", 0)
    wrong = refused(capsys, "--checkpoint", folder, "--layer", 0, "--model", "DeepSeek-V3")
    assert "'layers.0.attn.wq_a.weight'" in wrong and "(1536, 7168)" in wrong


def test_all_cases_on_a_layer_that_transformers_initialised_and_saved(tmp_path, capsys):
    transformers = pytest.importorskip("transformers", reason="writes checkpoints with transformers' save_pretrained")
    torch.manual_seed(1)
    config = transformers.DeepseekV3Config(
        **DIMENSIONS, num_key_value_heads=4, num_hidden_layers=2, intermediate_size=40, moe_intermediate_size=24,
        n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
        vocab_size=50, max_position_embeddings=64)
    transformers.DeepseekV3ForCausalLM(config).bfloat16().save_pretrained(tmp_path, max_shard_size="100KB")
    code, out, _ = verify(capsys, "--checkpoint", tmp_path, "--layer", 1)
    assert code == 0, out
    assert out.splitlines()[-1] == (f"{len(CHECKS)} of {len(CHECKS)} checks hold; {len(FAULTS)} of {len(FAULTS)} "
                                    "faults caught")
