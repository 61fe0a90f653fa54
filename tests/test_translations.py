"""The summaries in Korean and Chinese keep step with the English text: its numbers, symbols, names and commands."""
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
LANGUAGES = {"ko": re.compile("[가-힣]"), "zh": re.compile("[一-鿿]")}
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
HEADING = re.compile(r"^## \[(\d\d) · .+?\]\(\.\./notebooks/(.+?)\)$", flags=re.MULTILINE)
COMMAND = re.compile(r"(?:^|`)((?:make|\.venv/bin/python -m mla_lab) [^`#\n]*[^`#\s])", flags=re.MULTILINE)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def text(language):
    return (ROOT / "docs" / f"{language}.md").read_text(encoding="utf-8")


def numbers(words):
    """Every number, those in names and formulas as well; ``{,}`` is LaTeX's comma. Targets of links are left out."""
    words = re.sub(r"\]\([^)]*\)", "]", words).replace("{,}", ",")
    return set(NUMBER.findall(words))


def formulas(words):
    return set(re.findall(r"\$[^$]+\$", words)) | set(re.findall(r"`[a-z_.]+`", words))


def commands(words):
    """What can be typed into a terminal; the remarks behind it are left out."""
    return set(COMMAND.findall(words))


def source(path):
    """The claim with what would refute it, and the takeaways, of a notebook."""
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    claim = re.split(r"\n\n\*+Time", cells[0])[0]
    takeaways = next(cell for cell in cells if "## Takeaways" in cell).split("## Takeaways")[1]
    return claim + takeaways.split("**References.**")[0]


def sections(translated):
    """What precedes the notebooks, and each notebook's part by its file."""
    parts = HEADING.split(translated)
    return parts[0], {parts[i + 1]: parts[i] + parts[i + 2] for i in range(1, len(parts), 3)}


def out_of_step(translated):
    """One sentence for each thing that is in one language only."""
    top, parts = sections(translated)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for what in (numbers, formulas):
        for stray in sorted(what(top) - what(readme)):
            yield f"{stray} is not in README.md"
    for command in sorted(commands(top) ^ commands(readme)):
        yield f"{command!r} is in one language only"
    if [*parts] != [path.name for path in NOTEBOOKS]:
        yield "the notebooks are not those of notebooks/"
        return
    for path in NOTEBOOKS:
        english = source(path)
        for what in (numbers, formulas, commands):
            for word in sorted(what(english) ^ what(parts[path.name])):
                yield f"{path.name}: {word} is in one language only"
        if english.count("\n- ") != parts[path.name].count("\n- "):
            yield f"{path.name}: the takeaways are not as many"


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_keeps_step(language):
    assert len(NOTEBOOKS) >= 16 and list(out_of_step(text(language))) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_in_its_language(language):
    """Every paragraph has letters of the language; nothing was left in English."""
    prose = re.sub(r"```.*?```", "", text(language), flags=re.DOTALL)
    paragraphs = [part for part in re.split(r"\n\n|\n(?=- )", prose) if part.strip()]
    assert [part for part in paragraphs if not LANGUAGES[language].search(part)] == []


@pytest.mark.parametrize(("old", "new", "said"), [
    ("98.59 %", "98.95 %", "98.95 is in one language only"),
    ("70,272", "70,722", "70,722"),
    ("170.7", "171", "170.7 is in one language only"),
    ("$t - s$", "$t + s$", "$t + s$ is in one language only"),
    ("`head_dim`", "`head_width`", "`head_dim` is in one language only"),
    ("8.578125", "8.6", "8.6 is not in README.md"),
    ("\n- MQA", "\n* MQA", "the takeaways are not as many"),
    ("05_end_to_end_decode.ipynb)\n", "04_weight_absorption.ipynb)\n", "the notebooks are not those"),
    ("$2^{14}$", "$2^{15}$", "11_fp8_latent.ipynb: $2^{14}$ is in one language only"),
    ("9.6M", "96M", "13_serving.ipynb: 9.6 is in one language only"),
    ("claims --json claims.json", "claims --report claims.json", "14_claims.ipynb: .venv/bin/python -m mla_lab claims"),
    ("\n- DSA", "\nDSA", "15_after_mla.ipynb: the takeaways are not as many"),
    ("`rms_norm_eps`", "`layer_norm_eps`", "`layer_norm_eps` is not in README.md"),
    ("`make app`", "`make lab`", "'make app' is in one language only"),
    ("mla_lab capacity", "mla_lab fleet", "mla_lab fleet --model"),
])
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_out_of_step_is_seen(language, old, new, said):
    spoilt = text(language).replace(old, new)
    assert spoilt != text(language) and said in "\n".join(out_of_step(spoilt))
