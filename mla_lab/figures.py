"""The README's figures, computed with the package and written to files."""
from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from . import matrix_plot, plots
from .arrays import UNIT_ROUNDOFF, fresh, get_backend, to_numpy
from .checks import case2_rank, case4_absorption
from .faults import FAULTS
from .faults.rank import keys_turned
from .models import get_model
from .recipe import RIGHT
from .spectrum import rounding_radius, singular_values


def singular_values_of_keys() -> plots.Plot:
    """As in check 2.keys: keys rebuilt from a 128-wide latent, and the same keys with RoPE over all channels."""
    config, tokens, draw = case2_rank.ARTICLE, case2_rank.TOKENS, fresh(20)
    h, n, r = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
    latents, w_uk = draw(tokens, r), draw(h, n, r) / math.sqrt(r)
    keys = latents @ w_uk.mT  # [h, t, n]
    wide, turned = (np.hstack(list(x)) for x in (keys, keys_turned(keys[None])[0]))  # [t, h n]
    # A sum of r products is off by at most r u |c| |W| (Higham 2002, section 3.1), plus what the SVD adds.
    size = np.linalg.norm(np.abs(latents) @ np.abs(w_uk).mT)
    radius = r * UNIT_ROUNDOFF["float64"] * size + rounding_radius(wide)
    curves = {f"keys of {h} heads, {n} wide each": wide, "the same keys, rotated": turned}
    return plots.spectrum({name: singular_values(x) for name, x in curves.items()}, r, float(radius))


def ladder_of_absorption() -> plots.Plot:
    """As in check 4.ladder: 8 heads of DeepSeek-V3's dimensions; the wrong formula is the scale (r + p)^-1/2."""
    config, rungs, wrong = replace(get_model("DeepSeek-V3").mla, num_attention_heads=8), [], []
    fault = next(f for f in FAULTS if f.id == "scale_by_cached_width")
    for dtype in UNIT_ROUNDOFF:
        backend = get_backend("numpy", dtype)
        heads = case4_absorption.head_arrays(config, backend, case4_absorption.TOKENS, case4_absorption.CACHED, 54)
        recipe = replace(RIGHT, store=backend.store)
        naive, right, spoilt = (
            to_numpy(case4_absorption.run(heads, config, mode, how).heads).astype(np.float64)
            for mode, how in (("naive", recipe), ("absorb", recipe), ("absorb", fault.spoil(recipe))))
        away, off = (np.linalg.norm(x - naive) / np.linalg.norm(naive) for x in (right, spoilt))
        rungs.append((dtype, away / backend.unit))
        wrong.append((dtype, off))
    return plots.dtype_ladder(rungs, wrong)


README = {"cache_sizes": plots.cache_sizes, "two_streams": plots.two_streams,
          "absorption_pipeline": plots.absorption_pipeline, "singular_values": singular_values_of_keys,
          "dtype_ladder": ladder_of_absorption,
          "fault_matrix": matrix_plot.fault_matrix}


def words(plot: plots.Plot) -> str:
    """What stands beside a picture: its description and its numbers, as Markdown."""
    return f"{plot.alt}\n\n```text\n{plot.numbers}\n```\n"


def write_figures(folder: str | os.PathLike) -> list[Path]:
    """Write each of `README` as PNG, and its description and numbers as Markdown beside it.

    A file is at any time either the old one or the new one, whatever interrupts.
    """
    folder, written = Path(folder), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in tqdm(README.items(), unit="figure", leave=False, disable=None):
        plot = draw()
        for path, content in ((folder / f"{name}.png", plot.png(160)), (folder / f"{name}.md", words(plot).encode())):
            part = path.with_name(path.name + ".part")
            try:
                part.write_bytes(content)
                os.replace(part, path)
            finally:
                part.unlink(missing_ok=True)
            written.append(path)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m mla_lab.figures FOLDER``."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print("usage: python -m mla_lab.figures FOLDER", file=sys.stderr)
        return 2
    try:
        print(*write_figures(arguments[0]), sep="\n")
    except OSError as error:
        print(f"mla_lab: {error}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
