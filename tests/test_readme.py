"""The README tells the truth: its tables and numbers are computed again, and its code runs."""
import json
import re
from pathlib import Path

import numpy as np
import readme

from mla_lab import footprint as fp
from mla_lab.models import get_model

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"\s+", " ", TEXT)


def test_computed_parts_are_up_to_date():
    assert readme.filled(TEXT) == TEXT, "run: python tools/readme.py"


def test_the_two_commands_come_first():
    assert re.match(r"# mla_lab\n\n```sh\nmake verify .*\nmake test .*\n```\n", TEXT)


def test_every_number_of_the_prose():
    v3, v2, old = get_model("DeepSeek-V3"), get_model("DeepSeek-V2"), get_model("DeepSeek-67B")
    mha, mla = fp.mha_elements(128, 128), fp.mla_elements(v3.mla)
    total = fp.cache_bytes(v3, 131_072)
    naive = 128 * (128 + 64 + 128)
    said = [
        f"{mha * 2:,} B a token and layer",
        f"= {mla * 2:,} B",
        f"{100 * (1 - mla / mha):.2f} % less",
        f"caches {fp.bytes_per_token(v3):,} B a token",
        f"{total / 1e9:.4f} GB = {total / 2**30:.6f} GiB",
        f"MHA {mha * 2:,}, GQA-8 {fp.gqa_elements(8, 128) * 2:,}, MQA {fp.mqa_elements(128) * 2:,}, MLA {mla * 2:,}",
        f"({v3.num_attention_heads} heads, latent {v3.mla.kv_lora_rank}, rope key {v3.mla.qk_rope_head_dim}, "
        f"hidden {v3.mla.hidden_size:,})",
        f"{2 * (2 * 512 + 64) / (2 * (192 + 128)):.1f} times the arithmetic",
        f"reads {naive / mla:.1f} times fewer",
        f"{100 * (1 - 60 * 576 * 6 / (95 * 2048 * 16)):.1f} %, the figure",
        f"the saving is {100 * (1 - v2.cache_layers * 576 / (old.cache_layers * 2048)):.2f} %",
        f"V2 with {v2.cache_layers} layers",
        f"GQA-{old.num_key_value_heads}, {old.cache_layers} layers",
        f"one product of {mla} rows",
        f"{128 * 128:,} elements a cached token",
        f"two tensors of {128 * 512:,} elements",
    ]
    missing = [s for s in said if s not in PROSE]
    assert not missing, missing


def test_its_python_runs():
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    seen = {}
    exec(code, seen)
    assert seen["output"].shape == (1, 1, 2048) and np.isfinite(seen["output"]).all() and seen["cache"].lengths == (6,)


def test_its_command_lines_are_ones_that_exist(tmp_path, monkeypatch):
    from mla_lab.__main__ import main, parser
    monkeypatch.chdir(tmp_path)
    v3 = get_model("DeepSeek-V3").mla
    dims = {f: getattr(v3, f) for f in ("hidden_size", "num_attention_heads", "kv_lora_rank", "q_lora_rank",
                                        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
    Path("config.json").write_text(json.dumps(dims | {"num_hidden_layers": 61, "model_type": "deepseek_v3"}))
    commands = [c.strip() for c in re.findall(r"python -m mla_lab ([^#\n`]*)", TEXT)]
    assert len(commands) >= 10
    for command in commands:
        parser().parse_args(command.split())  # raises on an option that is not there
        if command.split()[0] in ("footprint", "models", "capacity"):
            assert main(command.split()) == 0, command
    targets = set(re.findall(r"^([a-z-]+):.*##", (Path(__file__).parent.parent / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= targets


def test_its_files_and_headings_exist():
    root = Path(__file__).parent.parent
    for page in [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in link:
                assert (page.parent / link).exists(), (page.name, link)
