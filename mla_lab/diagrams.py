"""The two diagrams: what a layer caches, and what a decode step makes on the way."""
from __future__ import annotations

from .config import MLAConfig
from .drawing import BLUE, GREY, ORANGE, RED, SKY, Plot, arrow, box, canvas, finish, frame, tint
from .models import get_model


def two_streams(config: MLAConfig | None = None) -> Plot:
    """The joint down-projection and its two streams: a normed latent and a rotated rope key, both cached.

    Parameters
    ----------
    config : MLAConfig, optional
        DeepSeek-V3's by default.
    """
    c = config or get_model("DeepSeek-V3").mla
    d, h, n, v = c.hidden_size, c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
    r, p, both = c.kv_lora_rank, c.qk_rope_head_dim, c.cached_width
    figure, ax = canvas(3.4)
    frame(ax, 5.0, 1.53, 1.36, 2.86, facecolor=tint(SKY, 0.25), edgecolor=BLUE, linestyle="--")
    ax.text(5.0, 3.17, f"cached: {r} + {p} = {both} values", ha="center", va="center", fontsize=10, weight="bold")
    box(ax, 0.62, 1.4, f"hidden state\n$h$  [{d:,}]", 1.1)
    box(ax, 2.05, 1.4, f"one product\n$[W^{{DKV}};\\,W^{{KR}}]$\n[{both:,} × {d:,}]", 1.3, 1.0)
    box(ax, 3.52, 2.1, "RMSNorm", 1.0, 0.6)
    box(ax, 3.52, 0.65, "RoPE at its\nposition", 1.0, 0.7)
    box(ax, 5.0, 2.1, f"latent\n$c^{{KV}}$  [{r}]", 1.15, color=tint(BLUE))
    box(ax, 5.0, 0.65, f"rope key\n$k^R$  [{p}]", 1.15, color=tint(ORANGE))
    box(ax, 6.85, 2.65, f"keys $W^{{UK}}c^{{KV}}$\n{h} × [{n}]", 1.6)
    box(ax, 6.85, 1.65, f"values $W^{{UV}}c^{{KV}}$\n{h} × [{v}]", 1.6)
    box(ax, 6.85, 0.65, f"the same $k^R$\nfor {h} heads", 1.6)
    for x, y, x2, y2 in ((1.17, 1.4, 1.4, 1.4), (2.7, 1.6, 3.02, 2.1), (2.7, 1.2, 3.02, 0.65), (4.02, 2.1, 4.42, 2.1),
                         (4.02, 0.65, 4.42, 0.65), (5.58, 2.1, 6.05, 2.65), (5.58, 2.1, 6.05, 1.65),
                         (5.58, 0.65, 6.05, 0.65)):
        arrow(ax, (x, y), (x2, y2))
    alt = f"""Diagram from left to right: the hidden state goes through one joint down-projection. Its result splits
        into a latent of {r}, normed and cached, and a rope key of {p}, rotated and cached. Keys and values of all {h}
        heads are rebuilt from the latent; all heads share the rope key."""
    return finish(figure, alt, [
        f"joint down-projection: hidden state of {d:,} values -> {r} + {p} = {both} values, weights {both:,} x {d:,}",
        f"cached for a token and layer: latent {r} (after RMSNorm) + rope key {p} (after RoPE) = {both} values",
        f"rebuilt from the latent: {h} keys of {n} and {h} values of {v} = {h * (n + v):,} values; one rope key",
    ])


def absorption_pipeline(config: MLAConfig | None = None) -> Plot:
    """One decode step over s cached tokens, naive and absorbed, with the shape and size of every intermediate.

    Parameters
    ----------
    config : MLAConfig, optional
        DeepSeek-V3's by default.
    """
    c = config or get_model("DeepSeek-V3").mla
    h, n, r, v = c.num_attention_heads, c.qk_nope_head_dim, c.kv_lora_rank, c.v_head_dim
    cache, tall, short = (f"latents $c$\n[s, {r}]\n{r} s", GREY), tint(RED, 0.35), tint(BLUE, 0.25)
    rows = (
        (2.4, "naive: the keys and values of all cached tokens are rebuilt in every step", (
            cache, (f"keys $W^{{UK}}c$\n[{h}, s, {n}]\n{h * n:,} s", tall),
            (f"logits $q\\cdot k$\n[{h}, s]\n{h} s", GREY),
            (f"values $W^{{UV}}c$\n[{h}, s, {v}]\n{h * v:,} s", tall),
            (f"weighted sum\n[{h}, {v}]\n{h * v:,}", GREY))),
        (0.75, "absorb: the query moves to the latents, and the cache is read as it is", (
            cache, (f"query $W^{{UK\\top}}q$\n[{h}, {r}]\n{h * r:,}", short),
            (f"logits $q\\cdot c$\n[{h}, s]\n{h} s", GREY),
            (f"weighted sum\n[{h}, {r}]\n{h * r:,}", short), (f"times $W^{{UV}}$\n[{h}, {v}]\n{h * v:,}", GREY))),
    )
    figure, ax = canvas(3.3)
    for y, heading, boxes in rows:
        ax.text(0.11, y + 0.7, heading, fontsize=10, weight="bold", va="center")
        for i, (text, color) in enumerate(boxes):
            x = 0.79 + 1.555 * i
            box(ax, x, y, text, 1.36, 0.95, color)
            if i:
                arrow(ax, (x - 0.875, y), (x - 0.68, y))
    alt = f"""Two rows of five boxes. Naive: latents, expanded keys, logits, expanded values, weighted sum; keys and
        values hold {h * n:,} and {h * v:,} elements for every cached token. Absorb: latents, query times W_UK, logits,
        weighted sum of latents, that times W_UV; in place of keys and of values stand {h * r:,} elements, however many
        tokens there are."""
    return finish(figure, alt, [
        f"elements of each intermediate in one decode step over s cached tokens: one layer, one request, {h} heads",
        f"naive : keys {h} x s x {n} = {h * n:,} s; values {h} x s x {v} = {h * v:,} s",
        f"absorb: query {h} x {r} = {h * r:,}; weighted sum {h} x {r} = {h * r:,}; neither grows with s",
        f"both  : latents {r} s; logits {h} s; heads {h} x {v} = {h * v:,}; the rope term, equal in both, is left out",
    ])
