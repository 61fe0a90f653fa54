"""docs/notation.md says what the code says: dimensions, weights, shapes, DeepSeek-V3's values, and names that exist."""
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from mla_lab import get_model, rope
from mla_lab.arrays import UNIT_ROUNDOFF
from mla_lab.config import DIMENSIONS
from mla_lab.weights import NAMES, OPTIONAL, shapes

TEXT = (Path(__file__).parent.parent / "docs" / "notation.md").read_text(encoding="utf-8")
V3 = get_model("DeepSeek-V3")
LETTERS = {"d": "hidden_size", "h": "num_attention_heads", "q": "q_lora_rank", "r": "kv_lora_rank",
           "n": "qk_nope_head_dim", "p": "qk_rope_head_dim", "v": "v_head_dim"}
SIZE = {letter: getattr(V3.mla, field) for letter, field in LETTERS.items()}


def table(text, heading):
    """Rows of the table under a heading, as dictionaries of plain text."""
    part = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("|")]
    assert len(rows) > 5 and {len(row) for row in rows} == {len(rows[0])}
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def ticked(cell):
    return tuple(re.findall(r"`([^`]+)`", cell))


def symbol(name):
    return f"$W^{{{name[2:].upper()}}}$"


def wrong_dimensions(text):
    rows = {row["letter"].strip("`"): row for row in table(text, "Dimensions")}
    for letter, field in LETTERS.items():
        if ticked(rows[letter]["config.json"]) != (field,) or rows[letter]["DeepSeek-V3"] != str(SIZE[letter]):
            yield letter
    yield from rows.keys() - LETTERS.keys() - {"b", "t", "s"}


def wrong_weights(text):
    """Rows that do not say what `NAMES`, `OPTIONAL` and the shapes of DeepSeek-V3 say; rows too many or too few."""
    rows, stored = table(text, "Weights"), shapes(V3.mla)
    if [row["Hugging Face"].strip("`") for row in rows] != [name.hugging_face for name in NAMES + OPTIONAL]:
        yield "names"
        return
    for row, name in zip(rows, NAMES + OPTIONAL, strict=True):
        size = " x ".join(map(str, stored.get(name.hugging_face, ()))) or "not used"
        papers = ", ".join(symbol(s) for s in name.symbols if s.startswith("w_") and s != "w_gate")
        right = (papers, name.symbols, (name.deepseek,) if name.deepseek else (), (name.shape,), size)
        if (row["paper"], ticked(row["here"]), ticked(row["DeepSeek's code"]), ticked(row["shape"]),
                row["DeepSeek-V3"]) != right:
            yield name.hugging_face


def wrong_sizes(text):
    """Rows of what flows whose numbers a token are not the product of their shape without batch and tokens."""
    for row in table(text, "What flows"):
        count = 1
        for letter in ticked(row["shape"])[0].strip("[]").split(", "):
            count *= SIZE.get(letter, 1)
        if row["numbers a token in DeepSeek-V3"] != str(count):
            yield row["paper"]


def names_that_do_not_exist(text):
    for dotted in re.findall(r"`(mla_lab\.[\w.]+)`", text):
        module, _, name = dotted.rpartition(".")
        try:
            import_module(dotted)
        except ImportError:
            if not hasattr(import_module(module), name):
                yield dotted


RULES = (wrong_dimensions, wrong_weights, wrong_sizes, names_that_do_not_exist)


@pytest.mark.parametrize("rule", RULES)
def test_it_says_what_the_code_says(rule):
    assert list(rule(TEXT)) == []


def test_letters_are_those_of_the_configuration():
    assert {*DIMENSIONS, "q_lora_rank"} == set(LETTERS.values())


def test_its_other_numbers():
    c = V3.mla
    r, both, yarn = c.kv_lora_rank, c.qk_nope_head_dim + c.v_head_dim, c.rope_scaling
    said = [f"({c.rope_theta:.0f} in DeepSeek-V3)", f"({yarn.factor:.0f} and {yarn.mscale_all_dim:.0f})",
            f"({V3.num_hidden_layers})", f"512 + 64 = {c.cached_width} numbers", f"{r * both / (2 * r - both):.1f} for",
            f"{rope.mscale(yarn.factor, 1.0):.6f} in DeepSeek-V3", f"{rope.softmax_scale(c):.6f} in DeepSeek-V3",
            *(f"2^{n} in {dtype}" for dtype, n in (("float64", -53), ("float32", -24), ("bfloat16", -8)))]
    prose = " ".join(TEXT.split())
    assert [words for words in said if words not in prose] == []
    assert [UNIT_ROUNDOFF[d] for d in ("float64", "float32", "bfloat16")] == [2.0**-53, 2.0**-24, 2.0**-8]


def test_the_glossary_is_in_order():
    terms = re.findall(r"^\*\*(.+?)\.\*\*", TEXT.split("## Glossary")[1], flags=re.MULTILINE)
    assert len(terms) > 25 and terms == sorted(terms, key=str.casefold)


@pytest.mark.parametrize(("rule", "old", "new"), [
    (wrong_dimensions, "never rotated | 128 |", "never rotated | 64 |"),
    (wrong_dimensions, "`q_lora_rank`", "`q_rank`"),
    (wrong_weights, "576 x 7168", "575 x 7168"),
    (wrong_weights, "`[h(n+v), r]`", "`[h(n+p), r]`"),
    (wrong_weights, "`w_uk`, `w_uv` |", "`w_uv`, `w_uk` |"),
    (wrong_weights, "`wkv_a.bias`", "`wkv_b.bias`"),
    (wrong_sizes, "rotated | `[b, h, t, p]`", "rotated | `[b, t, p]`"),
    (names_that_do_not_exist, "`mla_lab.ball.Ball`", "`mla_lab.ball.Bowl`"),
])
def test_each_rule_is_seen_to_fail(rule, old, new):
    assert old in TEXT and list(rule(TEXT.replace(old, new)))


def test_another_model_is_another_page(monkeypatch):
    monkeypatch.setitem(globals(), "V3", replace(V3, mla=get_model("DeepSeek-V2").mla))
    assert list(wrong_weights(TEXT))
