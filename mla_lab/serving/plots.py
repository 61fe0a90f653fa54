"""Figures of serving: what each GPU keeps and reads, what a step costs, and what comes out in a second."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import footprint as fp
from ..drawing import LOOKS, Plot, above, axes, finish, powers_of_two, reaching, tint
from ..models import Model, get_model
from .capacity import Deployment
from .gpus import get_gpu
from .parameters import parameters


def bytes_on_each_gpu(model: Model | None = None, gpus: Sequence[int] = (1, 2, 4, 8, 16)) -> Plot:
    """What a token leaves on each GPU that keeps it, and what it costs a GPU on average, against the number of GPUs.

    Parameters
    ----------
    model : Model, optional
        DeepSeek-V3 by default; GQA with 8 groups of its value width stands beside it.
    """
    m = model or get_model("DeepSeek-V3")
    grouped = replace(m, name="GQA-8", mla=None, num_key_value_heads=8, head_dim=m.mla.v_head_dim)
    counts = np.array(gpus)
    whole = m.cache_layers * fp.row_bytes("bf16", fp.elements(m), m.mla.qk_rope_head_dim)
    shared = np.array([m.cache_layers * 2 * fp.per_gpu_elements(grouped, n) for n in gpus])
    series = {"MLA, tensor parallel: a copy on every GPU": np.full(len(gpus), float(whole)),
              "GQA-8, tensor parallel: heads dealt out": shared.astype(float),
              "MLA, requests or tokens dealt out (on average)": whole / counts}
    figure, ax = axes(3.4)
    lines = [f"B in bf16 that a token costs each of N GPUs, {m.cache_layers} layers; N = " + ", ".join(map(str, gpus))]
    for look, (name, values) in zip(LOOKS, series.items(), strict=False):
        ax.plot(counts, values / 1000, **look.line, markersize=8, label=name)
        lines.append(f"{name}: {', '.join(f'{v:,.0f}' for v in values)}")
    powers_of_two(ax, "x", "y")
    ax.set(xlabel="GPUs (log scale)", ylabel="kB a token and GPU\n(log scale)", xticks=counts)
    ax.xaxis.set_minor_locator(_none())
    above(ax)
    return finish(figure, "Three lines over the number of GPUs. " + "; ".join(lines[1:]), lines)


def users_that_fit(gpu: str = "H200", gpus: int = 8, context: int = 8192, weight_dtype: str = "fp8") -> Plot:
    """DeepSeek-V3's users on a node, by how attention is dealt out.

    Parameters
    ----------
    gpu, weight_dtype : str
    gpus, context : int
        Number of GPUs, and tokens cached for a user.
    """
    v3 = get_model("DeepSeek-V3")
    common = (v3, get_gpu(gpu), gpus)
    plans = {"tensor parallel": {"parallel": "tp"}, "data-parallel attention": {"parallel": "dp"},
             "tensor and context parallel": {"parallel": "tp", "dcp": gpus}}
    figure, ax = axes(2.6)
    lines = [f"DeepSeek-V3 on {gpus} x {gpu}, weights in {weight_dtype}, cache in bf16, {context:,} tokens a user",
             "a GPU: weights, room for the cache in GB; all GPUs: different tokens, users"]
    users = []
    for look, (name, how) in zip(LOOKS, plans.items(), strict=False):
        d = Deployment(*common, context=context, parameters=parameters(v3), weight_dtype=weight_dtype, **how)
        users.append(d.users())
        ax.barh(name, users[-1] or 0.6, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch,
                linewidth=1.5)
        ax.annotate(f" {users[-1]:,} user{'s' * (users[-1] > 1)}" if users[-1] else " none: the weights do not fit"
                    if d.cache_room_per_gpu() < 0 else " none", (max(users[-1], 0.6), name), va="center", fontsize=11)
        lines.append(f"{name:<27} {float(d.weight_bytes_per_gpu()) / 1e9:>6.1f} + "
                     f"{float(d.cache_room_per_gpu()) / 1e9:>6.1f}   {d.tokens():>10,} {users[-1]:>6,}")
    ax.set(xlabel=f"users of {context:,} tokens (log scale)", xscale="log", xticks=10.0 ** np.arange(6),
           xlim=reaching([5 * max(1, *users)], 0.6, 500_000))  # room for the words beside the longest bar
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.minorticks_off()
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    return finish(figure, "Bars of the users that fit. " + "; ".join(lines[2:]), lines)


def _none():
    from matplotlib.ticker import NullLocator
    return NullLocator()
