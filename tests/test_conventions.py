"""docs/conventions.md tells the truth: every number in its tables is measured again, and every name is looked up."""
import importlib.util
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

hf = pytest.importorskip("hf", reason="the comparison with transformers needs transformers and torch")
import torch  # noqa: E402
import transformers  # noqa: E402
from test_transformers_kin import KIN  # noqa: E402

from mla_lab.arrays import fresh  # noqa: E402
from mla_lab.config import MLAConfig, Yarn  # noqa: E402
from mla_lab.decode import full_recompute  # noqa: E402
from mla_lab.recipe import RIGHT, rms_norm  # noqa: E402
from mla_lab.rope import frequencies, half_split_order, mscale, rotate, softmax_scale, table_scale  # noqa: E402
from mla_lab.weights import NAMES, OPTIONAL  # noqa: E402

TEXT = (Path(__file__).parent.parent / "docs" / "conventions.md").read_text(encoding="utf-8")
V3 = MLAConfig(hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
               qk_rope_head_dim=64, v_head_dim=128, rope_scaling=Yarn(40))
BF16 = hf.BACKEND.with_dtype("bfloat16")


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the one table under a heading, by their first cell."""
    part = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in part.splitlines() if line[:1] == "|"]
    assert set("".join(rows[1])) <= set("-: ") and len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows[2:]}


def read_as(name: str, rope: dict | None, recipe=RIGHT, **fields) -> str:
    """How far a model's output moves if its layer is read with other conventions than its own."""
    pair, hidden = hf.theirs_and_ours(hf.FAMILIES[name], rope), hf.draw_hidden(1, 17)
    other = full_recompute(hidden, pair.weights, replace(pair.config, **fields), recipe=recipe)
    return f"{100 * hf.off(other, pair.run(hidden)):.0f} % of the output"


def cached_rope_key() -> str:
    pair, hidden = hf.theirs_and_ours(hf.FAMILIES["deepseek_v3"], hf.PLAIN), hf.draw_hidden(1, 17)
    cache = transformers.DynamicCache(config=pair.theirs)
    out = pair.run(hidden, cache=cache)
    theirs = cache.layers[0].values[0, 0]
    raw = hidden[0] @ pair.weights.w_kr.mT
    ours = rotate(raw, torch.arange(17), frequencies(pair.config))
    assert hf.off(full_recompute(hidden, pair.weights, pair.config), out) < 1e-6
    assert hf.off(ours[:, half_split_order(8)], theirs) < 1e-6
    return f"nothing in the output; {100 * hf.off(ours, theirs):.0f} % of the cached key if compared as it lies"


def epsilon() -> str:
    """Half of the difference of the epsilons over the mean square, as a latent of that size shows it."""
    changes = []
    for size in (1.0, 0.1):
        x = hf.BACKEND.asarray(fresh(1)(1, 512))
        x = x * (size / x.square().mean().sqrt())
        a, b = (rms_norm(x, torch.ones(512, dtype=torch.float64), eps) for eps in (1e-6, 1e-5))
        changes.append(hf.off(b, a))
    return "{:.1e} of the latent where its rms is 1, {:.1e} where it is 0.1".format(*changes)


def half_missing() -> str:
    """By the rule that DeepSeek's file on the hub follows (mscale 1 and mscale_all_dim 0 unless said) and by theirs."""
    tables = {}
    for given in ({"mscale": 0.707}, {"mscale_all_dim": 0.707}):
        rope = {k: v for k, v in hf.YARN.items() if not k.startswith("mscale")} | given
        pair = hf.theirs_and_ours(hf.FAMILIES["deepseek_v3"], rope)
        theirs, key = pair.rotary.attention_scaling, next(iter(given))
        assert theirs == pytest.approx(table_scale(pair.config))
        tables[key] = (table_scale(replace(V3, rope_scaling=Yarn(40, **{"mscale": 1, "mscale_all_dim": 0} | given))),
                       theirs)
    return "; ".join(f"{key} alone: rotary table x {own:.4f} or x {theirs:.4f}"
                     for key, (own, theirs) in tables.items())


def switched_on() -> str:
    long, short = softmax_scale(V3), softmax_scale(V3, max_seq_len=4096)
    return f"softmax scale {long:.4f} or {short:.4f}, a factor of {long / short:.3f}"


def norm_in_bf16() -> str:
    norm = hf.FAMILIES["deepseek_v3"].load("DeepseekV3RMSNorm")(512).to(torch.bfloat16)
    x, weight = BF16.asarray(fresh(1)(2000, 512)), BF16.asarray(1 + 0.3 * fresh(2)(512))
    norm.weight.data = weight
    theirs, ours = norm(x).detach().double(), rms_norm(x, weight, 1e-6).double()
    exact = rms_norm(x.double(), weight.double(), 1e-6)
    fused = torch.nn.functional.rms_norm(x, (512,), weight, 1e-6).double()  # what DeepSeek's inference code calls
    assert (fused != ours).double().mean() < 1e-4
    assert ((theirs - ours).abs() <= 2**-7 * ours.abs()).all()  # one step of bfloat16
    share = (theirs != ours).double().mean()
    errors = [((y - exact).norm() / exact.norm()).item() for y in (ours, theirs)]
    return "{:.0f} % of the elements, each by one step; rms error {:.1e} or {:.1e}".format(100 * share, *errors)


def table_in_bf16() -> str:
    config, at = replace(V3, rope_scaling=None), torch.arange(4096)
    key = BF16.asarray(fresh(3)(4096, 64))
    theirs = hf.FAMILIES["deepseek_v3"].load("DeepseekV3RotaryEmbedding")(
        hf.theirs_and_ours(hf.FAMILIES["deepseek_v3"], hf.PLAIN).theirs)
    theirs.inv_freq = torch.from_numpy(frequencies(config)).float()
    cos, sin = theirs(key[None], at[None])
    turn = hf.FAMILIES["deepseek_v3"].load("apply_rotary_pos_emb_interleave")
    got = turn(key[None, None], key[None, None], cos, sin)[0][0, 0].double()
    exact = rotate(key.double(), at, frequencies(config))[:, half_split_order(64)]
    ours = rotate(key, at, frequencies(config))[:, half_split_order(64)].double()
    return "rms error {:.1e} or {:.1e} of the rotated key".format(
        *(((y - exact).norm() / exact.norm()).item() for y in (ours, got)))


def expanded() -> str:
    """How many elements their step makes of each cached token, seen in what reaches their attention."""
    pair, hidden, seen = hf.theirs_and_ours(hf.FAMILIES["deepseek_v3"], hf.PLAIN), hf.draw_hidden(1, 6), []
    cache, expand = transformers.DynamicCache(config=pair.theirs), pair.layer.expand_kv
    pair.layer.expand_kv = lambda *x: seen.append(expand(*x)) or seen[-1]
    pair.run(hidden[:, :5], cache=cache)
    pair.run(hidden[:, 5:], cache=cache)
    assert sum(x.numel() for x in seen[-1]) == 6 * 3 * (10 + 8 + 11)  # every token again, at each step
    v3 = 128 * (128 + 64 + 128)
    return f"nothing in the output; {v3:,} elements a cached token, layer and step at V3 instead of 0"


def blind_rows() -> str:
    """A row of padding sees no key; the lowest float64 is -infinity in the float32 of their softmax."""
    pair = hf.theirs_and_ours(hf.FAMILIES["deepseek_v3"], hf.PLAIN)
    eager, rows = hf.FAMILIES["deepseek_v3"].load("eager_attention_forward"), torch.ones(1, 3, 2, 10).double()
    mask = torch.full((1, 1, 2, 2), torch.finfo(torch.float64).min, dtype=torch.float64)
    out = eager(pair.layer, rows, rows, rows, mask, 1.0)[0]
    return "NaN or 0" if out.isnan().all() else "0 in both"


def bounds() -> str:
    return "below 1e-6 of the output; below 1e-12 with the three in float64"  # held by test_transformers


MEASURED = {
    "Norm, rotary table and softmax in float32": bounds,
    "Order in which rotated channels are written": cached_rope_key,
    "Which channels turn together": lambda: read_as("minicpm3", hf.PLAIN, rope_interleave=True),
    "Channels that are never rotated": lambda: read_as("kimi_linear", None, mla_use_nope=False),
    "Latents scaled up after their norm": lambda: read_as("longcat_flash", hf.PLAIN, mla_scale_q_lora=False,
                                                          mla_scale_kv_lora=False),
    "Query that grows with its position": lambda: read_as("mistral4", hf.LLAMA4[0], rope_scaling=hf.yarn_of(hf.YARN)),
    "Gate on each head's output": lambda: read_as("bailing_hybrid", hf.PLAIN, replace(RIGHT, gate=lambda x: 1 + 0 * x)),
    "Epsilon of the latents' norms": epsilon,
    "YaRN with one mscale missing": half_missing,
    "From which length on YaRN acts": switched_on,
    "Where the norm's weight is multiplied, in bfloat16": norm_in_bf16,
    "Rotary table in bfloat16": table_in_bf16,
    "What a decode step rebuilds": expanded,
    "A query that sees no key, in float64": blind_rows,
}


@pytest.mark.parametrize("row", MEASURED)
def test_the_difference_is_what_the_table_says(row):
    said = table("Where they differ from DeepSeek's own layer")
    assert set(said) == set(MEASURED)
    assert said[row][2] == MEASURED[row](), row


def test_which_classes_take_the_epsilon_from_the_configuration():
    reads = {}
    for family in [*hf.FAMILIES.values(), *KIN.values()]:
        told = replace(family, theirs=family.theirs | {"rms_norm_eps": 1e-4})
        norm = hf.theirs_and_ours(told, family.rope[0]).layer.kv_a_layernorm
        reads[family.from_module or family.module] = norm.variance_epsilon == 1e-4
    default = len(reads) - sum(reads.values())
    assert table("Where they differ from DeepSeek's own layer")["Epsilon of the latents' norms"][0] == (
        f"transformers, {default} of {len(reads)} classes")
    said = {k.strip("`"): v[0] for k, v in table("The classes").items()}
    assert all(("reads `rms_norm_eps`" in said[module]) == read for module, read in reads.items())


def test_every_class_with_a_latent_is_compared():
    """The table of classes names them all, and no other module of transformers has a latent."""
    said = {cell.strip("`") for cell in table("The classes")}
    compared = {f.module for f in [*hf.FAMILIES.values(), *KIN.values()]}
    assert said == compared
    models = Path(importlib.util.find_spec("transformers").origin).parent / "models"
    if transformers.__version__ != "5.24.0":
        pytest.skip("the table is of transformers 5.24.0")
    theirs = {path.parent.name for path in models.glob("*/modeling_*.py") if "kv_lora_rank" in path.read_text("utf-8")}
    assert theirs == compared - {"kimi_k25", "sarvam_mla"}  # these two use DeepSeek-V3's


def test_the_classes_departures_are_the_fields_that_their_tests_set():
    said = table("The classes")
    for family in hf.FAMILIES.values():
        for name in family.ours:
            assert f"`{name}`" in said[f"`{family.module}`"][0] or family.module in ("deepseek_v3", "youtu"), name


def test_names_of_weights():
    said = {row[0]: row[1:] for row in ([k.strip("`"), *v] for k, v in table("Names of weights").items())}
    want = {}
    for name in NAMES + OPTIONAL:
        code = ", ".join(f"`{s}`" for s in name.symbols)
        want[name.hugging_face] = [code, f"`{name.deepseek}`" if name.deepseek else "none", f"`{name.shape}`"]
    assert said == want


def test_names_of_dimensions():
    said = table("Names of dimensions")
    fields = {row[1].split("`")[1]: key for key, row in said.items()}
    source = (Path(__file__).parent.parent / "mla_lab" / "config.py").read_text(encoding="utf-8")
    letters = re.findall(r"^    (\w+): int  # (\w)\b", source, re.MULTILINE)
    assert len(letters) == 6
    for field, letter in letters:
        assert fields[field] == f"`{letter}`"
    assert set(fields) == {"hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim",
                           "qk_rope_head_dim", "v_head_dim"} <= set(MLAConfig.__dataclass_fields__)
    assert math.isclose(mscale(40, 1.0) ** 2, 1.873854, rel_tol=1e-6) and "1.873854" in TEXT
