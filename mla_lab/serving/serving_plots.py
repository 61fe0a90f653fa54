"""Figures of notebook 13: when tokens come out, what a step costs, what a transfer costs, who serves more in time."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..drawing import INK, LOOKS, Plot, above, axes, finish, powers_of_two, tint
from ..models import get_model
from .capacity import Deployment
from .gpus import get_gpu
from .parameters import parameters
from .rates import Link, prefill_seconds, transfer_seconds
from .requests import Request
from .step import decode_step
from .workload import Sweep


def _decades(ax) -> None:
    """A log scale for y with plain numbers at the powers of ten."""
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    ax.minorticks_off()


def token_times(rows: Mapping[str, Sequence[Request]]) -> Plot:
    """Where each request's first and last token lie in time, arrangement by arrangement; a hollow mark is its arrival.

    Parameters
    ----------
    rows : mapping of str to requests
        Finished requests of each arrangement.
    """
    figure, ax = axes(0.9 + 0.42 * sum(len(requests) for requests in rows.values()))
    lines, at, labels = ["s at which a request came, had its first token and its last one"], 0, []
    for name, requests in rows.items():
        for number, (request, look) in enumerate(zip(requests, LOOKS, strict=False)):
            ax.plot([request.arrival, request.first], [at, at], color=look.color, linestyle=":", linewidth=2)
            ax.plot([request.first, request.last], [at, at], color=look.color, linewidth=4, solid_capstyle="butt")
            ax.plot([request.arrival], [at], marker="o", markersize=8, color=look.color, fillstyle="none")
            ax.plot([request.first, request.last], [at, at], marker=look.marker, markersize=7, linestyle="",
                    color=look.color)
            labels.append(f"{name}, request {number}")
            lines.append(f"{labels[-1]}: {request.arrival:.2f}, {request.first:.2f}, {request.last:.2f}; "
                         f"{1e3 * request.tpot:.0f} ms a token")
            at += 1
    ax.set(yticks=range(at), yticklabels=labels, xlabel="time in s", ylim=(at - 0.5, -0.5))
    return finish(figure, "A bar for each request from its first to its last token. " + "; ".join(lines[1:]), lines)


def step_terms(users: Sequence[int] = (1, 4, 16, 64, 256, 1024), parallel: str = "dp", gpu: str = "H200", gpus: int = 8,
               context: int = 8192) -> Plot:
    """Milliseconds of each term of DeepSeek-V3's decode step, against the number of users."""
    v3 = get_model("DeepSeek-V3")
    d = Deployment(v3, get_gpu(gpu), gpus, parallel, context, parameters(v3))
    steps = [decode_step(d, n) for n in users]
    names = {"weights": "reading weights", "products": "products with them", "cache": "reading the cache",
             "attention": "attention arithmetic", "communication": "communication"}
    figure, ax = axes(3.6)
    lines = [f"ms of a decode step of DeepSeek-V3 on {gpus} x {gpu}, {parallel}, {context:,} tokens a user, "
             "at peak rates",
             "users: " + ", ".join(f"{n:,}" for n in users)]
    for look, (term, name) in zip(LOOKS, names.items(), strict=True):
        values = [1e3 * getattr(s, term) for s in steps]
        ax.plot(users, values, **look.line, label=name)
        lines.append(f"{name}: {', '.join(f'{v:.3g}' for v in values)}")
    fits = d.users()
    if users[0] <= fits <= users[-1]:
        ax.axvline(fits, color=INK, linewidth=1)
        ax.annotate(f"{fits:,} fit", (fits, 0.03), xycoords=("data", "axes fraction"), xytext=(-5, 0),
                    textcoords="offset points", ha="right")
    lines.append(f"users that fit: {fits:,}")
    powers_of_two(ax, "x")
    _decades(ax)
    ax.set(xlabel="users (log scale)", ylabel="ms (log scale)", xticks=users)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return finish(figure, "Five curves over the number of users. " + "; ".join(lines[1:]), lines)


def transfer_times(tokens: Sequence[int] = (1024, 4096, 16384, 65536), gigabits: float = 400.0, efficiency: float = 0.5
                   ) -> Plot:
    """Milliseconds of a prompt's prefill on 8 H200, and of sending its cache over one link, with MLA and with MHA."""
    v3 = get_model("DeepSeek-V3")
    d = Deployment(v3, get_gpu("H200"), 8, "dp", 8192, parameters(v3))
    mha = replace(d, model=replace(v3, mla=None, num_key_value_heads=128, head_dim=128))
    link = Link(gigabits / 8)
    series = {"prefill": [prefill_seconds(d, (n,), efficiency) for n in tokens],
              "sending MLA's cache": [transfer_seconds(d, n, link) for n in tokens],
              "sending MHA's cache": [transfer_seconds(mha, n, link) for n in tokens]}
    figure, ax = axes(3.2)
    lines = [f"ms for a prompt of {', '.join(f'{n:,}' for n in tokens)} tokens: DeepSeek-V3 on 8 H200 at "
             f"{100 * efficiency:.0f} % of peak, one link of {gigabits:g} Gb/s, bf16"]
    for look, (name, seconds) in zip(LOOKS, series.items(), strict=False):
        ax.plot(tokens, [1e3 * s for s in seconds], **look.line, label=name)
        lines.append(f"{name}: {', '.join(f'{1e3 * s:.1f}' for s in seconds)}")
    powers_of_two(ax, "x")
    _decades(ax)
    ax.set(xlabel="tokens of the prompt (log scale)", ylabel="ms (log scale)", xticks=tokens)
    above(ax)
    return finish(figure, "Three rising curves. " + "; ".join(lines[1:]), lines)


def served_in_time(sweeps: Mapping[str, Sweep], ttft: float = 1.0, marked: float | None = 0.06,
                   limits: Sequence[float] = (0.03, 0.04, 0.045, 0.05, 0.06, 0.08, 0.1, 0.12)) -> Plot:
    """The rate at which 90 % of the requests are in time, against the limit on the time per token.

    Parameters
    ----------
    sweeps : mapping of str to Sweep
    ttft, marked, limits : float
        Seconds: limit on the first token; a limit on the others that is marked; all limits that are drawn.
    """
    figure, ax = axes(3.5)
    lines = [f"requests/s of which 90 % have their first token in {ttft:g} s and then one in so many ms on average",
             "ms: " + ", ".join(f"{1e3 * limit:g}" for limit in limits)]
    for look, (name, s) in zip(LOOKS, sweeps.items(), strict=False):
        values = [s.goodput(ttft, limit) for limit in limits]
        ax.plot([1e3 * limit for limit in limits], values, **look.line, label=name, drawstyle="steps-post", alpha=0.9)
        lines.append(f"{name}: {', '.join(f'{v:g}' for v in values)}")
    if marked is not None:
        ax.axvline(1e3 * marked, color=INK, linewidth=1)
    ax.set(xlabel="limit on the mean time per output token in ms", ylabel="requests/s in time")
    ax.set_ylim(bottom=0, top=1.08 * ax.get_ylim()[1])
    above(ax)
    return finish(figure, "Steps that rise with the limit. " + "; ".join(lines[1:]), lines)


def at_limits(sweeps: Mapping[str, Sweep], ttft: float, tpot: float) -> Plot:
    """The rate at which 90 % of the requests are in time, for one pair of limits (s)."""
    figure, ax = axes(2.5)
    lines = [f"requests/s of which 90 % have their first token in {ttft:g} s, then one in {1e3 * tpot:g} ms on average"]
    rates = {name: s.goodput(ttft, tpot) for name, s in sweeps.items()}
    for look, (name, rate) in zip(LOOKS, rates.items(), strict=False):
        ax.barh(name, rate, color=tint(look.color, 0.6), edgecolor=look.color, hatch=look.hatch, linewidth=1.5)
        ax.annotate(f" {rate:g}" if rate else " none of the rates", (rate, name), va="center", fontsize=11)
        lines.append(f"{name}: {rate:g}")
    ax.set(xlabel="requests/s in time", xlim=(0, 1.2 * max(rate for s in sweeps.values() for rate in s.rates)))
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    return finish(figure, "Bars of requests per second. " + "; ".join(lines[1:]), lines)
