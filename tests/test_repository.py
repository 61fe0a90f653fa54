"""Rules for the files of this repository, each shown to fail on a planted fault at the end."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mla_lab"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_LINES, MAX_BYTES = 250, 2_000_000

# One machine's folders. Written in pieces, or this file would name them.
PRIVATE = re.compile("|".join(["/" + "work/", r"(?<![\w.-])(?:\.\./)?sha" + "red/", r"\.lib" + "rary"]))
MAY_NAME_THEM = {".ci/run"}
LINK = re.compile(
    r"(?<!\\)\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)|<(?:a|img)\b[^>]*\b(?:href|src)=[\"']([^\"']+)[\"']"
)
CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==[0-9]+(?:\.[0-9]+)*(?:\.?(?:post|rc|a|b)[0-9]+)?")
# What only these modules may import at module level; nobody imports torch there.
HEAVY = {"torch": set(), "matplotlib": {"plots", "widgets"}, "ipywidgets": {"widgets"}}


def tracked() -> list[str]:
    """Every file that git knows, by its path from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]


# --- text -----------------------------------------------------------------------------------------------------------


def private_words(text: str) -> list[str]:
    return [f"line {n}: {line.strip()[:100]}" for n, line in enumerate(text.splitlines(), 1) if PRIVATE.search(line)]


def relative_links(markdown: str) -> Iterator[str]:
    """The files that a text links to; addresses and anchors of the page itself are left out."""
    for found in LINK.finditer(CODE.sub("", markdown)):
        target = (found[1] or found[2]).split("#")[0]
        if target and not re.match(r"[a-z][a-z+.-]*:|//", target):
            yield target


def dead_links(markdown: str, folder: Path) -> list[str]:
    return [target for target in relative_links(markdown) if not (folder / target.replace("%20", " ")).exists()]


def documents() -> Iterator[tuple[Path, str]]:
    """All text that people read with its links: Markdown files, and the text cells of notebooks."""
    for path in map(ROOT.joinpath, tracked()):
        if path.suffix == ".md":
            yield path, path.read_text(encoding="utf-8")
        elif path.suffix == ".ipynb":
            cells = nbformat.read(path, as_version=4).cells
            yield path, "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_no_file_names_a_folder_of_one_machine():
    found = []
    for name in set(tracked()) - MAY_NAME_THEM:
        found += [f"{name}: {words}" for words in private_words((ROOT / name).read_text("utf-8", errors="replace"))]
    assert not found, "\n".join(found)


def test_every_relative_link_resolves():
    dead = [f"{path.relative_to(ROOT)}: {link}" for path, text in documents() for link in dead_links(text, path.parent)]
    assert not dead, "\n".join(dead)


def test_no_file_is_large():
    large = [name for name in tracked() if (ROOT / name).stat().st_size > MAX_BYTES]
    assert not large


# --- requirements ---------------------------------------------------------------------------------------------------


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in (line.partition("#")[0].strip() for line in lines) if line]


def not_pinned(lines: list[str]) -> list[str]:
    """Lines that are no exact version, or one that a public index does not serve; doubles count as well."""
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    return [
        line for line, name in zip(lines, names, strict=True) if not PINNED.fullmatch(line) or names.count(name) > 1
    ]


def unlocked(name: str, locked: set[str], extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """What an installed distribution requires on this machine and the lock leaves open."""
    for text in importlib.metadata.requires(name) or []:
        needed = Requirement(text)
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            continue
        if canonicalize_name(needed.name) not in locked:
            yield f"{name} -> {needed.name}"


def test_every_requirement_is_pinned_exactly():
    assert not_pinned(lock_lines()) == []


def test_the_lock_holds_what_the_project_declares():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = project["project"]["dependencies"] + project["build-system"]["requires"]
    declared += [line for extra in project["project"]["optional-dependencies"].values() for line in extra]
    pins = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in lock_lines()}
    for needed in map(Requirement, declared):
        assert needed.specifier.contains(pins[canonicalize_name(needed.name)]), needed


def test_the_lock_is_complete():
    """Whatever a locked package needs is locked too, or two installs of one lock differ."""
    locked = {canonicalize_name(line.partition("==")[0]) for line in lock_lines()}
    missing = []
    for name in sorted(locked):
        try:
            missing += list(unlocked(name, locked))
        except importlib.metadata.PackageNotFoundError:
            continue  # a pin that another platform or Python needs
    # torch's own GPU libraries: its wheel for Linux pins them exactly
    assert not [line for line in missing if not re.match(r"torch -> (nvidia-|cuda-|triton)", line)], missing


# --- the package ----------------------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import: all but the bodies of functions and what only a type checker reads."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from top_level(node.orelse)
            continue
        yield node
        for field in ("body", "orelse", "finalbody"):
            yield from top_level(getattr(node, field, []))
        for handler in getattr(node, "handlers", []):
            yield from top_level(handler.body)


def imports(source: str, name: str, is_package: bool, known: set[str]) -> set[str]:
    """Modules that a module imports as it is imported itself, relative names made absolute."""
    found = set()
    for node in top_level(ast.parse(source).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = name.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{module}.{alias.name}"
                found.add(full if full in known else module)
    return found


def import_graph(sources: dict[str, tuple[str, bool]]) -> dict[str, set[str]]:
    return {name: imports(source, name, package, set(sources)) for name, (source, package) in sources.items()}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, or nothing."""
    inside = {name: needs & graph.keys() - {name} for name, needs in graph.items()}
    try:
        graphlib.TopologicalSorter(inside).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def heavy_imports(graph: dict[str, set[str]]) -> list[str]:
    found = []
    for name, needs in graph.items():
        for package in {need.split(".")[0] for need in needs} & HEAVY.keys():
            if name.rpartition(".")[2] not in HEAVY[package]:
                found.append(f"{name} imports {package} at module level")
    return found


def unpickles(source: str) -> list[str]:
    """Ways to run code that came with data."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            found += [name for name in names if name.split(".")[0] in {"pickle", "dill", "joblib", "cloudpickle"}]
            if getattr(node, "module", None) == "torch" and "load" in names:
                found.append("torch.load")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
            found.append("torch.load")
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.append("allow_pickle")
    return found


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    sources = {module_name(p): (p.read_text(encoding="utf-8"), p.name == "__init__.py") for p in MODULES}
    assert sources, "no module found"
    return import_graph(sources)


def test_imports_run_downwards_only(graph):
    assert not cycle(graph), " -> ".join(cycle(graph))


def test_heavy_packages_are_imported_where_they_are_used(graph):
    assert heavy_imports(graph) == []


def test_importing_the_package_loads_neither_torch_nor_matplotlib():
    command = "import sys, mla_lab; print(*sorted({'torch', 'matplotlib', 'ipywidgets', 'IPython'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_files_stay_short():
    lines = {module_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {name: n for name, n in lines.items() if n > MAX_LINES} == {}


def test_nothing_unpickles():
    found = {module_name(path): unpickles(path.read_text(encoding="utf-8")) for path in MODULES}
    assert not {name: words for name, words in found.items() if words}


# --- each rule is seen to fail --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["see /" + "work/x", "../sha" + "red/configs", "`sha" + "red/a.md`", "a .lib" + "rary"]
)
def test_private_words_are_seen(text):
    assert private_words(f"first line\n{text}") == [f"line 2: {text}"]
    assert private_words("shared / workload, a un" + "sha" + "red/x, network/") == []


def test_dead_links_are_seen(tmp_path):
    (tmp_path / "a b.md").touch()
    text = (
        "[ok](a%20b.md#part) [web](https://example.org/x.md) [here](#x) `[code](no.md)` [dead](gone.md 'title')\n"
        "```\n[also](code.md)\n```\n<img src='lost.png' alt='x'> ![alt](<missing.png>)"
    )
    assert dead_links(text, tmp_path) == ["gone.md", "lost.png", "missing.png"]


def test_open_requirements_are_seen():
    good = ["numpy==2.4.6", "certifi==2026.10.19.post1"]
    bad = ["torch==2.13.0+cpu", "tqdm>=4", "ruff", "-r other.txt", "a[b]==1", "x==1.*", "y==1", "Y==2"]
    assert not_pinned(good + bad) == bad


def test_an_incomplete_lock_is_seen():
    locked = {canonicalize_name(line.partition("==")[0]) for line in lock_lines()}
    assert list(unlocked("pytest", locked - {"iniconfig"})) == ["pytest -> iniconfig"]


@pytest.mark.parametrize("how", ["from .b import f", "from mla_lab import b", "from . import b", "import mla_lab.b"])
def test_a_circle_of_imports_is_seen(how):
    sources = {
        "mla_lab": ("", True),
        "mla_lab.a": (how, False),
        "mla_lab.b": ("try:\n from .a import g\nfinally: 1", False),
    }
    assert set(cycle(import_graph(sources))) == {"mla_lab.a", "mla_lab.b"}
    later = "def f():\n    from .a import g\nif TYPE_CHECKING:\n    from .a import g"
    assert cycle(import_graph({**sources, "mla_lab.b": (later, False)})) == []


def test_a_circle_through_a_package_is_seen():
    up = {
        "mla_lab": ("", True),
        "mla_lab.checks": ("from .. import a", True),
        "mla_lab.a": ("import mla_lab.checks", False),
    }
    assert set(cycle(import_graph(up))) == {"mla_lab.a", "mla_lab.checks"}


def test_heavy_imports_are_seen():
    source = "class A:\n    import torch.nn\nimport matplotlib.pyplot as plt"
    sources = {"mla_lab.a": (source, False), "mla_lab.plots": ("import matplotlib\ndef f():\n    import torch", False)}
    assert sorted(heavy_imports(import_graph(sources))) == [
        "mla_lab.a imports matplotlib at module level",
        "mla_lab.a imports torch at module level",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n  from pickle import loads",
        "torch.load(x)",
        "from torch import load",
        "f(allow_pickle=1)",
    ],
)
def test_unpickling_is_seen(source):
    assert unpickles(source)
    assert not unpickles("'no pickle'\nnp.load(x, allow_pickle=False)\njson.load(x)")
