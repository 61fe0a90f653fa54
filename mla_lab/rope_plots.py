"""Figures of what a rotation does: to a pair of channels, to a score, and to the hope of absorbing it."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import footprint as fp
from .config import MLAConfig
from .drawing import INK, LOOKS, RED, Plot, above, axes, finish, powers_of_two
from .models import get_model
from .rope import frequencies, rotate


def rotation(position: int = 5, pair: int = 1, p: int = 8, theta: float = 10000.0) -> Plot:
    """Pairs of rope channels turned from position 0 to ``position``: the fastest, number ``pair``, and the slowest."""
    chosen = sorted({0, pair, p // 2 - 1})
    figure, panels = axes(3.1, len(chosen), squeeze=False)
    lines = [f"angle of pair i in radians: position {position} x {theta:g}^(-2i/{p})"]
    for i, ax in zip(chosen, panels[0], strict=True):
        angle, around = position * theta ** (-2 * i / p), np.linspace(0, 1, 200)
        ax.plot(np.cos(2 * np.pi * around), np.sin(2 * np.pi * around), color="#888888", linewidth=1)
        ax.plot(0.35 * np.cos(angle * around), 0.35 * np.sin(angle * around), color=INK, linewidth=1)
        for look, at, size, where in ((LOOKS[0], 0.0, 13, 0), (LOOKS[1], angle, 7, position)):
            ax.plot([0, np.cos(at)], [0, np.sin(at)], **look.line, markevery=[1], markersize=size, linewidth=2,
                    label=f"position {where}")
        ax.set(aspect="equal", xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
        ax.set(xlabel=f"channel {2 * i}", ylabel=f"channel {2 * i + 1}", title=f"pair {i}: {angle:.4g} rad")
        speed, turns = theta ** (-2 * i / p), angle / (2 * np.pi)
        lines.append(f"pair {i}: {speed:.4g} rad a token, {angle:.4g} rad = {turns:.4g} turns")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    alt = "Unit circles, each with the vector of one pair before and after its rotation; "
    return finish(figure, alt + "; ".join(lines[1:]), lines)


def score_by_distance(query_at: int = 7, p: int = 8, theta: float = 10000.0, kind: str = "rope") -> Plot:
    """Rope score of one query and one key vector against the key's position, for a query at ``query_at`` and 8 later.

    Parameters
    ----------
    kind : 'rope' or 'key not rotated'
        With the second, a fault, the score is the same wherever the key stands.
    """
    radians, ones = theta ** (-np.arange(0, p, 2) / p), np.full((1, p), p**-0.5)
    figure, ax = axes(3.2)
    lines = [f"score of two equal unit vectors of {p} channels, key 0, 1, 2, 3 tokens before the query; {kind}"]
    for at, look in zip((query_at, query_at + 8), LOOKS, strict=False):
        keys = np.arange(at + 1)
        scores = rotate(ones, np.array([at]), radians) @ rotate(ones, keys if kind == "rope" else 0 * keys, radians).T
        ax.plot(keys, scores[0], **look.line, label=f"query at {at}")
        lines.append(f"query at {at}: " + ", ".join(f"{s:.4f}" for s in scores[0, ::-1][:4]))
    ax.set(xlabel="position of the key in tokens", ylabel="score")
    above(ax)
    return finish(figure, "Two curves of the score against the key's position; " + "; ".join(lines[1:]), lines)


def residual_by_span(spans: Sequence[int], config: MLAConfig | None = None) -> Plot:
    """Share of the rotation that the best fixed matrix misses if it must serve the distances 0 to span - 1."""
    config = config or get_model("DeepSeek-V3").mla
    radians, p, missed = frequencies(config), config.qk_rope_head_dim, []
    for span in spans:
        turns = rotate(np.eye(p), np.arange(span)[:, None], radians)  # [span, p, p]
        missed.append(float(np.linalg.norm(turns - turns.mean(axis=0)) / np.linalg.norm(turns)))
    kept = [np.sin(s * radians / 2) / (s * np.sin(radians / 2)) for s in spans]  # |mean of exp(i w d)| over d
    theory = [float(np.sqrt(max(0.0, 1 - np.mean(k**2)))) for k in kept]
    figure, ax = axes(3.2)
    ax.plot(spans, theory, color=RED, linestyle="--", label="theory")
    ax.plot(spans, missed, color=LOOKS[0].color, marker="o", linestyle="", label="best matrix, computed")
    ax.set(xlabel="distances that one matrix must serve (log scale)", ylabel="share of the rotation missed")
    ax.set_ylim(-0.05, 1.05)
    powers_of_two(ax, "x")
    ax.legend(loc="upper left", frameon=False)
    lines = [f"share of the rotation of {p} channels (Frobenius norm) that the best fixed matrix misses"]
    for span, a, b in zip(spans, missed, theory, strict=True):
        lines.append(f"distances 0 to {span - 1}: computed {fp.percent(a)}, theory {fp.percent(b)}")
    alt = f"The share missed rises with the number of distances. First {lines[1]}; last {lines[-1]}."
    return finish(figure, alt, lines)
