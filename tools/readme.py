"""Write the parts of README.md that are computed: ``python tools/readme.py``. A test holds the file to them."""
from __future__ import annotations

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from mla_lab.checks import CHECKS  # noqa: E402
from mla_lab.faults import FAULTS  # noqa: E402
from mla_lab.models import models  # noqa: E402

CASES = {
    1: ("Footprint", "01_kv_cache_footprint"),
    2: ("Rank", "02_svd_rank_bound"),
    3: ("Decoupled RoPE", "03_decoupled_rope"),
    4: ("Absorption", "04_weight_absorption"),
    5: ("Decode", "05_end_to_end_decode"),
}


def claims() -> str:
    """The table of all checks: claim, notebook, and the number of faults that each must catch."""
    rows = ["| case | check | claim | faults |", "|---|---|---|--:|"]
    for check in CHECKS:
        name, notebook = CASES[check.case]
        faults = sum(check.id in f.caught_by for f in FAULTS)
        rows.append(
            f"| [{check.case} · {name}](notebooks/{notebook}.ipynb) | `{check.id}` | {check.claim} | {faults} |"
        )
    return "\n".join(rows)


def computed() -> dict[str, str]:
    """What stands between the markers, by the name of the block."""
    summary = f"{len(CHECKS)} of {len(CHECKS)} checks hold; {len(FAULTS)} of {len(FAULTS)} faults caught"
    return {
        "block: summary": f"\n```text\n{summary}\n```\n",
        "block: claims": f"\n{claims()}\n",
        "count: checks": str(len(CHECKS)),
        "count: models": str(sum(m.mla is not None for m in models())),
    }


def filled(text: str) -> str:
    """``text`` with every marked part computed anew."""
    for name, content in computed().items():
        pattern = re.compile(rf"(<!-- {re.escape(name)} -->).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(text):
            raise SystemExit(f"README.md lacks the marker <!-- {name} -->")
        text = pattern.sub(lambda m, new=content: m[1] + new + m[2], text)
    return text


if __name__ == "__main__":
    path = ROOT / "README.md"
    part = path.with_suffix(".part")
    part.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    os.replace(part, path)
