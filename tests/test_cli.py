"""The command line: exit codes, one sentence for bad input, JSON, and what an import loads."""
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from mla_lab import __main__ as cli
from mla_lab.commands import tables
from mla_lab.recipe import Recipe


def mla_lab(*args, env=None, **how):
    return subprocess.run([sys.executable, "-m", "mla_lab", *args], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **(env or {})}, check=False, **how)


def refused(result, *words):
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert result.stderr.startswith("mla_lab: ") and result.stderr.count("\n") == 1, result.stderr
    assert all(word in result.stderr for word in words), result.stderr


# --- what an import loads -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("code", ["import mla_lab; mla_lab.MLAConfig; mla_lab.bytes_per_token(mla_lab.get_model('V3'))",
                                  "import mla_lab.__main__ as m; m.main(['footprint'])"])
def test_counting_loads_no_array_library(code):
    heavy = "[m for m in ('torch', 'matplotlib', 'numpy') if m in sys.modules]"
    code = f"import sys\n{code}\nassert not {heavy}, {heavy}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stderr == b""


def test_verify_on_numpy_loads_neither_torch_nor_matplotlib():
    code = ("import sys, mla_lab.__main__ as m; m.main(['verify', '--case', '1']);"
            "print([x for x in ('torch', 'matplotlib') if x in sys.modules], file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "MLA_LAB_BACKEND": "numpy"})
    assert done.stderr.strip() == "[]"


def test_public_names_exist_and_a_typo_is_an_attribute_error():
    import mla_lab
    assert all(getattr(mla_lab, name) is not None for name in mla_lab.__all__)
    assert mla_lab.Recipe is Recipe and "forward" in dir(mla_lab)
    with pytest.raises(AttributeError, match="foward"):
        mla_lab.foward  # noqa: B018


# --- verify ---------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def case_1(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "r.json"
    return mla_lab("verify", "--case", "1", "--json", str(path), env={"COLUMNS": "100"}), path


def test_verify_prints_a_table_and_a_summary(case_1):
    result, _ = case_1
    assert result.returncode == 0 and result.stderr == "", result
    lines = result.stdout.splitlines()
    assert re.fullmatch(r"(\d+) of \1 checks hold; (\d+) of \2 faults caught", lines[-1])
    assert lines[0].startswith("seen: ") and "; bound: " in lines[0]
    assert lines[1].split() == ["id", "claim", "seen", "bound", "verdict", "faults", "caught"]
    assert max(map(len, lines)) <= 100
    assert sum(line.startswith("1.") for line in lines) == 11


def test_verify_writes_json_under_its_final_name_only(case_1):
    _, path = case_1
    rows = json.loads(path.read_text())
    assert [r["id"] for r in rows] == [c.id for c in cli_checks(1)]
    assert {"claim", "model", "backend", "dtype", "saw", "expected", "bound", "ok", "note"} <= set(rows[0])
    assert rows[0]["saw"] == {"MHA": 65536, "GQA-8": 4096, "MQA": 512, "MLA": 1152}
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def cli_checks(*cases):
    from mla_lab.suite import select
    return select(list(cases))


def test_json_to_stdout_is_json_alone():
    result = mla_lab("verify", "--case", "1", "--json", "-", "--model", "V2-Lite")
    assert result.returncode == 0 and {r["model"] for r in json.loads(result.stdout)} == {"DeepSeek-V2-Lite"}
    assert "checks hold" in result.stderr.splitlines()[-1]


def test_a_device_is_written_to_and_not_replaced():
    assert mla_lab("verify", "--case", "1", "--json", os.devnull).returncode == 0
    assert not os.path.isfile(os.devnull)


@pytest.mark.parametrize("where", ["/nonexistent-folder/r.json", "."])
def test_an_unwritable_report_is_refused_before_the_run(where):
    refused(mla_lab("verify", "--case", "1", "--json", where), "cannot write")


def test_a_failing_check_is_named_and_gives_1(monkeypatch, capsys):
    from mla_lab import verdict
    wrong = Recipe(elements=lambda c: 2 * c.kv_lora_rank)
    monkeypatch.setattr(verdict.Setting, "__init__", spoiled(verdict.Setting.__init__, wrong))
    assert cli.main(["verify", "--case", "1"]) == 1
    out = capsys.readouterr().out
    assert "check 1.per_layer FAILS: expected MHA: 65,536" in out
    assert out.splitlines()[-1].startswith("0 of 11 checks hold")


def spoiled(init, recipe):
    def __init__(self, backend, config, model="DeepSeek-V3", recipe=recipe, state=None):
        init(self, backend, config, model, recipe, state)
    return __init__


def test_a_missed_fault_is_named_and_gives_1(monkeypatch, capsys):
    from mla_lab import suite
    from mla_lab.faults import Fault
    monkeypatch.setattr(suite, "FAULTS", (Fault("harmless", "nothing", "none", {}, ("1.mtp",)),))
    assert cli.main(["verify", "--case", "1"]) == 1
    out = capsys.readouterr().out
    assert "check 1.mtp misses the faults harmless" in out
    assert out.splitlines()[-1] == "11 of 11 checks hold; 0 of 1 faults caught"


@pytest.mark.parametrize(("args", "words"), [
    (["verify", "--model", "DeepSeek-67B"], ["GQA", "not MLA"]),
    (["verify", "--model", "DeepSeek-V33"], ["did you mean 'DeepSeek-V3'"]),
    (["verify", "--case", "99"], ["case 99 does not exist"]),
    (["verify", "--case", "one"], ["--case", "whole number"]),
    (["verify", "--backend", "jax"], ["backend 'jax'"]),
    (["verify", "--dtype", "int8"], ["dtype 'int8'"]),
    (["footprint", "--tokens", "0"], ["--tokens", "whole number", "'0'"]),
    (["footprint", "--tokens", "1.5"], ["'1.5'"]),
    (["footprint", "--tokens", "9" * 5000], ["10^18"]),
    (["footprint", "--batch", "-3"], ["--batch", "'-3'"]),
    (["footprint", "--tp", "0"], ["--tp"]),
    (["footprint", "--tp", "3"], ["spread evenly"]),
    (["footprint", "--dtype", "bf17"], ["did you mean 'bf16'"]),
    (["footprint", "--model", "nope"], ["model 'nope'"]),
    (["footprint", "--model", "Llama-2-7B", "--dtype", "fp8-tile"], ["MLA rows"]),
    (["footprint", "--model", "V2", "--mtp"], ["multi-token-prediction"]),
    (["models", "extra"], ["unrecognized arguments: extra"]),
    (["nonsense"], ["'nonsense'", "verify"])])
def test_bad_input_is_one_sentence_and_exit_2(args, words):
    refused(mla_lab(*args), *words)


def test_a_bad_backend_from_the_environment_is_refused():
    refused(mla_lab("verify", env={"MLA_LAB_BACKEND": "jax"}), "backend 'jax'")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_verify_on_torch():
    result = mla_lab("verify", "--case", "1", "--backend", "torch", "--dtype", "bfloat16")
    assert result.returncode == 0, result


def test_no_arguments_print_help_and_give_2():
    result = mla_lab()
    assert result.returncode == 2 and "footprint" in result.stdout and result.stderr == ""


# --- footprint and models -------------------------------------------------------------------------------------------

def test_footprint_of_a_model_shows_formula_unit_and_baseline():
    text = mla_lab("footprint", "--model", "DeepSeek-V3", "--tokens", "131072", "--tp", "8").stdout
    for part in ("kv_lora_rank 512 + qk_rope_head_dim 64 = 576 elements = 1,152 B", "70,272 B = 68.625 KiB",
                 "9,210,691,584 B", "9.2107 GB = 8.5781 GiB",
                 "2 x 128 heads x 128 = 32,768 elements = 65,536 B at 16 bit",
                 "98.24 % of the elements", "per GPU, TP=8        576 elements"):
        assert part in text


def test_footprint_as_json():
    one = json.loads(mla_lab("footprint", "--model", "v3", "--tokens", "1024", "--batch", "128", "--json").stdout)
    wanted = {"model": "DeepSeek-V3", "attention": "mla", "cache_layers": 61, "elements_per_token_per_layer": 576,
              "bytes_per_token": 70272, "bytes_total": 9210691584, "tokens": 1024, "batch": 128, "dtype": "bf16"}
    assert {key: one[key] for key in wanted} == wanted
    every = json.loads(mla_lab("footprint", "--json", "--tp", "8", "--dtype", "q8_0").stdout)
    assert {r["model"]: r["bytes_per_token"] for r in every}["DeepSeek-V3"] == 37332
    assert {r["model"]: r["per_gpu_elements_per_token_per_layer"] for r in every}["DeepSeek-67B"] == 256


def test_tables_list_every_model():
    names = [r["model"] for r in json.loads(mla_lab("models", "--json").stdout)]
    for text in (mla_lab("models").stdout, mla_lab("footprint").stdout):
        assert all(name in text for name in names) and len(names) >= 9
    mla_only = mla_lab("footprint", "--dtype", "fp8-tile").stdout
    assert "left out" in mla_only and "Llama" not in mla_only


def test_a_reader_that_leaves_is_no_traceback():
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "mla_lab", "models"], **both) as p:
        p.stdout.close()
        assert p.stderr.read() == b""
        assert p.wait() == 141


def test_a_full_disk_is_one_sentence():
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "mla_lab", "models"], stdout=full, stderr=subprocess.PIPE,
                              check=False)
    assert done.returncode == 2 and done.stderr.startswith(b"mla_lab: ") and done.stderr.count(b"\n") == 1


def test_ctrl_c_gives_130(monkeypatch, capsys):
    monkeypatch.setattr(tables, "run_models", lambda args: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are deaf to it
    try:
        assert cli.main(["models"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "mla_lab: interrupted.\n"
