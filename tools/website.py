#!/usr/bin/env python3
"""All notebooks as a static site that needs no server, no script and nothing from elsewhere.

::

    website.py FOLDER

Stored outputs are shown as they are; nothing is run. Formulas become MathML, which browsers draw themselves and screen
readers read out. A figure carries its description, and its numbers fold out below it. Where a notebook has sliders,
a note says where the same stands in words.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import nbformat
from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter
from readme import notebooks, opening
from tqdm import tqdm
from traitlets.config import Config

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
WIDGETS = re.compile(r"(VBox|HBox|IntSlider)\(")  # the plain text of what only a kernel can show
NOTE = ('<p class="note">Here the notebook has sliders, which need a running kernel (<code>make lab</code>). The '
        "figure before them stands for the first picture; what moving them shows stands in words below.</p>")
ABOUT = ("Multi-Head Latent Attention (MLA) is how DeepSeek-V2, V3 and R1, Kimi-K2, GLM-5 and others keep long "
         "contexts in memory. Each page takes one claim about it and checks it, and then shows the check turn red on a "
         "fault that really happened. What you read was printed by the notebooks; <code>make lab</code> opens them, to "
         "be run and changed.")
STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #222; --code: #f5f5f5; --line: #ccc; --link: #0a58ca; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #ddd; --code: #23262c; --line: #555;
  --link: #8ab4f8; } }
body { max-width: 54rem; margin: 1rem auto; padding: 0 1rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
a { color: var(--link); } a.anchor-link { display: none; }
pre, code { font: 0.875rem/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: 0.6rem; margin: 0.4rem 0; }
.input_area pre, :not(pre) > code { background: var(--code); border-radius: 4px; }
:not(pre) > code { padding: 0 0.2em; }
.output pre { border-left: 3px solid var(--line); } .output_error pre { border-left-color: #d55e00; }
.prompt { display: none; } .note { border: 1px dashed var(--line); padding: 0.5rem 0.8rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; } th, td { border: 1px solid var(--line);
  padding: 0.25rem 0.6rem; text-align: left; }
figure { margin: 0.6rem 0; } img { max-width: 100%; background: #fff; border-radius: 4px; }
math[display=block] { margin: 0.8rem 0; overflow: auto hidden; }
nav { margin: 1rem 0; display: flex; justify-content: space-between; gap: 1rem; }
"""


class Loads(HTMLParser):
    """What a page would load or run: a browser that opens a self-contained one asks nobody for anything."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(text)
        self.found += re.findall(r"@import[^;]*|url\((?!['\"]?data:)[^)]*\)", text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed"):
            self.found.append(f"<{tag}>")
        for name, value in attrs:
            loads = name in ("src", "srcset", "poster", "data", "background", "xlink:href") or (
                name == "href" and tag in ("link", "image", "use"))
            runs = name.startswith("on") or name == "http-equiv" or (value or "").strip().startswith("javascript:")
            if runs or (loads and not (value or "").startswith(("data:", "#"))):
                self.found.append(f"{tag} {name}={value}")


class Renderer(IPythonRenderer):
    """Formulas as MathML, and links between notebooks as links between pages."""

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return convert(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        if re.match(r"https?:|#", url):
            return super().link(text, url, title)
        path, _, part = url.partition("#")
        if path.endswith(".ipynb") and (NOTEBOOKS / path).exists():
            return super().link(text, path.removesuffix("ipynb") + "html" + f"#{part}" * bool(part), title)
        return text  # a file of the repository that is no page here


class Exporter(HTMLExporter):
    """The body of a page."""

    def markdown2html(self, context, source):
        renderer = Renderer(escape=False, anchor_link_text="")
        return MarkdownWithMath(renderer=renderer).render(source)

    markdown2html.__dict__.update(HTMLExporter.markdown2html.__dict__)  # jinja's mark that it wants the context


def for_reading(notebook: NotebookNode) -> NotebookNode:
    """Every output as what a page without a kernel can show."""
    for cell in notebook.cells:
        for out in cell.get("outputs", ()):
            data, words = out.get("data", {}), out.get("data", {}).get("text/plain", "")
            if "image/png" in data:
                about = html.escape(out.metadata.get("image/png", {}).get("alt", ""), quote=True)
                image = f"<img alt='{about}' src='data:image/png;base64,{data['image/png'].strip()}'>"
                numbers = f"<details><summary>its numbers</summary><pre>{html.escape(words)}</pre></details>"
                out.data = nbformat.from_dict({"text/html": f"<figure>{image}{numbers}</figure>"})
            elif WIDGETS.match(words):
                out.data = nbformat.from_dict({"text/html": NOTE})
    return notebook


def title_of(notebook: NotebookNode) -> str:
    """The level-1 heading."""
    heading = re.search(r"^# +(.+)$", notebook.cells[0].source, flags=re.MULTILINE)
    return heading[1] if heading else "untitled"


def index(paths: list[Path], links: list[str]) -> str:
    """What this is, and every page with the first sentence of what it claims."""
    lessons = set(notebooks().values())
    rows = (f"<li>{link}" + (f"<br>{html.escape(re.sub(r'[*$`{}]', '', opening(path)[1]))}" if path in lessons else "")
            for path, link in zip(paths, links, strict=True))
    return f"<h1>mla_lab</h1><p>{ABOUT}</p><ul>{''.join(rows)}</ul>"


def page(title: str, body: str, before: str = "", after: str = "") -> str:
    """A page of the site; one with neighbours links to them and to the index."""
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    code = "\n".join(line for line in light.splitlines() if line.startswith(".highlight ."))
    night = "\n".join(line for line in dark.splitlines() if line.startswith(".highlight ."))
    style = f"{STYLE}{code}\n@media (prefers-color-scheme: dark) {{ {night} }}"
    around = (before, "<a href='index.html'>all notebooks</a>", after) if before or after else ()
    links = "".join(f"<span>{link}</span>" for link in around)
    return (f"<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
            "<meta name='viewport' content='width=device-width'><link rel='icon' href='data:,'>"
            f"<style>{style}</style></head>\n<body><nav>{links}</nav><main>{body}</main><nav>{links}</nav></body></html>\n")


def build(folder: Path, sources: list[Path] | None = None) -> list[Path]:
    """Write a page for each notebook, and ``index.html``; ``ValueError`` if one would load something."""
    exporter = Exporter(template_name="basic", config=Config())
    paths = sources or sorted(NOTEBOOKS.glob("*.ipynb"))
    sheets = [nbformat.read(path, as_version=4) for path in paths]
    titles = [title_of(sheet) for sheet in sheets]
    links = [f"<a href='{path.stem}.html'>{html.escape(title)}</a>" for path, title in zip(paths, titles, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for i, path in enumerate(tqdm(paths, unit="page", leave=False, disable=None)):
        body, _ = exporter.from_notebook_node(for_reading(sheets[i]))
        around = (f"← {links[i - 1]}" if i else "", f"{links[i + 1]} →" if i + 1 < len(paths) else "")
        text = page(titles[i], body, *around)
        if Loads(text).found:
            raise ValueError(f"{path.name} would load something: {', '.join(Loads(text).found)}")
        written.append(write(folder / f"{path.stem}.html", text))
    written.append(write(folder / "index.html", page("mla_lab", index(paths, links))))
    return written


def write(path: Path, text: str) -> Path:
    """Write a file so that it is either the old one or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    written = build(parser.parse_args(argv).folder)
    print(f"{len(written)} pages; open {written[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
