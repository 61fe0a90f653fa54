"""The static site: every notebook is a page that loads nothing, says all that it shows, and needs no widget."""
from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from browser import NOTEBOOKS, chromium, needs_chromium, page_of

pytest.importorskip("latex2mathml")

import website

FILES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert website.main([str(folder)]) == 0
    return folder


class Reader(HTMLParser):
    """The text outside code, the links, and the pictures of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.inside, self.words, self.links, self.images = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("pre", "code", "math", "style", "title"):
            self.inside.append(tag)
        self.links += [value for name, value in attrs if tag == "a" and name == "href"]
        self.images += [dict(attrs)] if tag == "img" else []

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        self.words += [] if self.inside else [data]


def text_of(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def test_every_notebook_is_a_page(site):
    assert sorted(path.stem for path in site.glob("*.html")) == sorted([*FILES, "index"])
    index = Reader(text_of(site, "index"))
    assert index.links == [f"{name}.html" for name in FILES]
    assert "In each layer of DeepSeek-V3 a token leaves 1,152 bytes" in " ".join(index.words)


@pytest.mark.parametrize("name", [*FILES, "index"])
def test_it_loads_nothing_and_its_links_lead_somewhere(site, name):
    text = text_of(site, name)
    assert website.Loads(text).found == []
    for link in Reader(text).links:
        path, _, part = link.partition("#")
        assert link.startswith("https://") or (site / (path or f"{name}.html")).exists(), link
        if part and not path.startswith("https://"):
            assert f'id="{part}"' in text_of(site, path.removesuffix(".html") or name), link


@pytest.mark.parametrize("name", FILES)
def test_all_formulas_are_drawn_and_all_pictures_described(site, name):
    page = Reader(text_of(site, name))
    assert not re.search(r"\$[^$]+\$|\\[a-z]{3,}", " ".join(page.words)), "a formula was left as TeX"
    assert [image["src"][:40] for image in page.images if len(image.get("alt", "")) < 20] == []


@pytest.mark.parametrize("name", FILES)
def test_nothing_essential_is_only_in_a_widget(site, name):
    """Before sliders stands a picture, after them what moving them shows; the explorer is there as text."""
    text, cells = text_of(site, name), nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells
    made = [cell for cell in cells if cell.cell_type == "code" and re.search(r"\b(Panel|explore)\(", cell.source)]
    parts = text.split(website.NOTE)
    if name != "explorer":
        assert len(parts) - 1 >= bool(made)
    assert len(parts) == 1 or "<img " in parts[0]
    for after in parts[1:]:
        assert re.search(r"class=\"output.*?<pre", after, re.DOTALL)
    assert not re.search(r"(VBox|HBox|IntSlider)\(children|model_id", text)
    if name == "explorer":
        assert "170.7" in text and "Users and tokens that fit" in text


@needs_chromium
def test_a_browser_asks_nobody(site):
    with chromium() as browser, page_of(browser, site.as_uri()) as page:
        said = []
        page.on("console", lambda message: said.append(message.text))
        for name in [*FILES, "index"]:
            page.goto((site / f"{name}.html").as_uri())
            assert page.locator("h1").count() == 1
            heights = page.locator("math").evaluate_all("all => all.map(formula => formula.clientHeight)")
            assert page.locator("math").count() == 0 or min(heights) > 0
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is too wide"
        assert said == []


def test_each_page_leads_to_its_neighbours(site):
    for before, name, after in zip([None, *FILES], FILES, [*FILES[1:], None], strict=False):
        links = [link.removesuffix(".html") for link in Reader(text_of(site, name).partition("</nav>")[0]).links]
        assert links == [page for page in (before, "index", after) if page]


# --- seen to fail -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["![x](http://other.invalid/x.png)", "<script>1</script>", "<img src='figure.png'>",
                                  "<style>@import 'x.css';</style>", "<p style='background:url(x.png)'>a</p>",
                                  "<iframe src='data:,'></iframe>", "<link rel='icon' href='/x.ico'>",
                                  "<img src='data:,' onerror='x()'>", "<a href='javascript:x()'>x</a>",
                                  "<svg><image xlink:href='x.png'/></svg>", "<table background='x.png'></table>",
                                  "<meta http-equiv='refresh' content='0; url=https://x.invalid'>"])
def test_a_page_that_loads_something_is_refused(tmp_path, cell):
    source = tmp_path / "x.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(f"# T\n\n{cell}")]), source)
    with pytest.raises(ValueError, match=r"x\.ipynb would load something"):
        website.build(tmp_path / "out", [source])


def test_widgets_and_figures_become_words(tmp_path):
    outputs = [nbformat.v4.new_output("display_data", {"text/plain": "VBox(children=(IntSlider(value=1),))"}),
               nbformat.v4.new_output("display_data", {"text/plain": "a < 1", "image/png": "AAAA\n"},
                                      metadata={"image/png": {"alt": "it's a dot"}})]
    cells = [nbformat.v4.new_markdown_cell("# T\n\n$a_1$ and [two](01_kv_cache_footprint.ipynb#x) and [no](../x.py)"),
             nbformat.v4.new_code_cell("panel", outputs=outputs)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "x.ipynb")
    website.build(tmp_path, [tmp_path / "x.ipynb"])
    text = text_of(tmp_path, "x")
    assert website.NOTE in text and "VBox" not in text
    assert re.search("alt=.it('|&#x27;)s a dot.", text) and "<pre>a &lt; 1</pre>" in text
    assert "<msub><mi>a</mi><mn>1</mn></msub>" in text
    assert 'href="01_kv_cache_footprint.html#x"' in text and "x.py" not in text
