"""Write the parts of README.md and docs/checks.md that are computed: ``python tools/readme.py``.

A test holds both files to them.
"""
from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from mla_lab.checks import CHECKS  # noqa: E402
from mla_lab.claims import CLAIMS  # noqa: E402
from mla_lab.faults import FAULTS  # noqa: E402
from mla_lab.models import models  # noqa: E402

FILES = ("README.md", "docs/checks.md")
# Where the checks of the later notebooks stand, and the faults that turn them red.
BEYOND = {
    8: ("mla_lab.kernels.checks08_roofline", "mla_lab.kernels.checks08_roofline:PLANTED"),
    9: ("mla_lab.kernels.checks09_flash_decode", "mla_lab.kernels.faults09:PLANTED"),
    10: ("mla_lab.serving.checks10_paging", "mla_lab.serving.checks10_paging:FAULTS"),
    11: ("mla_lab.serving.checks11_fp8", "mla_lab.serving.faults11:FAULTS"),
    12: ("mla_lab.serving.checks12_parallel", "mla_lab.serving.planted:PLANTED"),
    13: ("mla_lab.serving.checks13_serving", "mla_lab.serving.planted13:PLANTED"),
    15: ("mla_lab.after.checks15_after", "mla_lab.after.faults15:FAULTS"),
}


def notebooks() -> dict[int, Path]:
    """The numbered notebooks, by number."""
    return {int(path.name[:2]): path for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))}


@cache
def opening(path: Path) -> tuple[str, str, str]:
    """Title, the first sentence of the claim, and the summary line of a notebook."""
    nb = json.loads(path.read_text(encoding="utf-8"))
    first = "".join(nb["cells"][0]["source"])
    title = re.match(r"# \d\d · (.*)", first)[1]
    claim = re.sub(r"\s+", " ", re.search(r"\*\*Claim\.\*\*\s*(.*?)(?=\n\n|$)", first, re.DOTALL)[1])
    sentence = re.match(r"\**(.*?[^.A-Z])\.(?=[*\s]|$)", claim)[1].lstrip("*") + "."
    lines = [line for cell in nb["cells"] if cell["cell_type"] == "code" for out in cell["outputs"]
             for line in "".join(out.get("text", "")).splitlines()]
    summary = [line for line in lines if re.match(r"notebook \d\d: ", line)]
    return title, sentence.replace("`", ""), summary[-1] if summary else ""


@cache
def beyond(number: int) -> tuple[Sequence, Sequence]:
    """Checks and faults of a later notebook."""
    checks, faults = BEYOND[number]
    module, _, name = faults.partition(":")
    return import_module(checks).CHECKS, getattr(import_module(module), name)


def of_notebook(number: int) -> tuple[Sequence, Sequence]:
    """Its checks, and the faults that they must catch."""
    checks, faults = beyond(number) if number in BEYOND else ([c for c in CHECKS if c.case == number], FAULTS)
    ids = {c.id for c in checks}
    return checks, [f for f in faults if ids & set(f.caught_by)]


def overview() -> str:
    """One row a notebook."""
    rows = ["| notebook | claim | checks | faults caught |", "|---|---|--:|--:|"]
    for number, path in notebooks().items():
        title, claim, _ = opening(path)
        checks, faults = of_notebook(number)
        if number == 7:
            checks, faults = CHECKS, FAULTS
        cells = (str(len(checks) or "–"), str(len(faults) or "–"))
        rows.append(f"| [{number:02d} · {title}](notebooks/{path.name}) | {claim} | {' | '.join(cells)} |")
    return "\n".join(rows)


def every_check() -> str:
    """The table of all checks: claim, notebook, and the faults that each must catch."""
    rows = ["| check | claim | notebook | faults it must catch |", "|---|---|---|---|"]
    for number, path in notebooks().items():
        checks, faults = of_notebook(number)
        for check in checks:
            caught = ", ".join(f"`{f.id}`" for f in faults if check.id in f.caught_by)
            rows.append(f"| `{check.id}` | {check.claim} | [{number:02d}](../notebooks/{path.name}) | {caught} |")
    return "\n".join(rows)


def every_fault() -> str:
    """The table of the registry."""
    rows = ["| fault | what goes wrong | why the usual test misses it | happened in |", "|---|---|---|---|"]
    for fault in FAULTS:
        repository, _, number = fault.thread.partition("#")
        link = f"[{fault.thread}](https://github.com/{repository}/issues/{number})" if number else fault.thread
        rows.append(f"| `{fault.id}` | {fault.what} | {fault.why} | {link} |")
    return "\n".join(rows)


def speed() -> str:
    """The benchmark that is stored: ``python -m mla_lab bench --json benchmarks/cpu.json`` on a quiet machine."""
    found = json.loads((ROOT / "benchmarks" / "cpu.json").read_text(encoding="utf-8"))
    machine = found["machine"]
    rows = ["| heads, cached tokens | best kernel | that is | the two products alone | SDPA, heads folded "
            "| transformers' attention step | SDPA, `enable_gqa` |", "|---|---|--:|--:|--:|--:|--:|"]
    for size in found["sizes"]:
        best = min((row for row in size["rows"] if row["kind"] == "kernel"), key=lambda row: row["seconds"])
        times = {t["claim"].split("against ")[-1]: t["value"] for t in size["targets"] if t["claim"].startswith(
            ("against", "step with W_UK", f"{best['name']} ({best['package']}) against"))}
        rows.append(f"| {size['heads']}, {size['tokens']:,} | {best['name']} ({best['package']}), "
                    f"{1e3 * best['seconds']:.3g} ms | {best['flops_per_second'] / 1e9:.0f} GFLOP/s | "
                    + " | ".join(f"{x:,.0f}" if (x := times[name]) >= 100 else f"{x:.3g}" for name in (
                        "the products alone", "the best stock call", "transformers' step", "enable_gqa")) + " |")
    rows.append(f"\n*{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}, NumPy "
                f"{machine['NumPy']}, {machine['date']}: medians of {found['rounds']} interleaved rounds in one run.*")
    return "\n".join(rows)


def computed() -> dict[str, str]:
    """What stands between the markers, by the name of the block."""
    summary = f"{len(CHECKS)} of {len(CHECKS)} checks hold; {len(FAULTS)} of {len(FAULTS)} faults caught"
    return {
        "block: summary": f"\n```text\n{summary}\n```\n",
        "block: notebooks": f"\n{overview()}\n",
        "block: checks": f"\n{every_check()}\n",
        "block: faults": f"\n{every_fault()}\n",
        "block: speed": f"\n{speed()}\n",
        "count: checks": str(len(CHECKS)),
        "count: faults": str(len(FAULTS)),
        "count: forms": str(sum(len(f.variants) for f in FAULTS)),
        "count: claims": str(len(CLAIMS)),
        "count: models": str(sum(m.mla is not None for m in models())),
    }


def filled(text: str) -> str:
    """``text`` with every marked part computed anew; a mark that nothing computes is an error."""
    parts = computed()
    for name in re.findall(r"<!-- ((?:block|count): \w+) -->", text):
        if name not in parts:
            raise SystemExit(f"nothing computes <!-- {name} -->")
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda m, new=parts[name]: m[1] + new + m[2], text)
    return text


if __name__ == "__main__":
    for file in FILES:
        path = ROOT / file
        part = path.with_suffix(".part")
        part.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
        os.replace(part, path)
