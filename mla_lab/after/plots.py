"""The figure of notebook 15: what each method caches, on one GPU and on several."""
from __future__ import annotations

from ..drawing import INK, LOOKS, Plot, above, axes, finish, powers_of_two
from .sizes import METHODS


def cache_of_each(gpus: int = 2) -> Plot:
    """Values for a token in a layer of each method: on one GPU, and on each of ``gpus`` tensor-parallel ones."""
    figure, ax = axes(5.2)
    lines = ["values cached for a token in a layer: in all; on each of "
             f"{gpus} tensor-parallel GPUs; formula; source"]
    for row, method in enumerate(METHODS):
        both = method.on(1), method.on(gpus)
        for shift, value, look in zip((-0.2, 0.2), both, LOOKS, strict=False):
            ax.barh(row + shift, value, 0.38, color=look.color, hatch=look.hatch, edgecolor="white", linewidth=0.5,
                    label=None if row else ("on one GPU" if shift < 0 else f"on each of {gpus} GPUs"))
            ax.annotate(f"{value:,}", (value, row + shift), xytext=(4, 0), textcoords="offset points", va="center",
                        fontsize=9)
        lines.append(f"{method.name}: {both[0]:,}; {both[1]:,}; {method.formula}; {method.source}")
    ax.axvline(METHODS[3].on(1), color=INK, linewidth=1, linestyle=":")
    powers_of_two(ax, "x")
    ax.set(yticks=range(len(METHODS)), yticklabels=[m.name for m in METHODS], xlim=(64, 100_000),
           xlabel="values (the dotted line is MLA)")
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    above(ax)
    return finish(figure, "Two bars for each method. " + "; ".join(lines[1:]), lines)
