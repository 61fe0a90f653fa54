"""Small measurements of this machine for figures: a roofline, a crossover, premultiplied weights. A second or two each.

Times go into pictures only, never into a check: they are those of this machine, in this minute.
"""
from __future__ import annotations

from dataclasses import replace

from array_api_compat import array_namespace

from ..arrays import Array, Backend, fresh
from ..config import MLAConfig
from . import Scratch, decode
from .counts import Work, absorbed_kernel, attention
from .roofline import Device
from .timing import Contender, measure

ROUNDS = 2  # of which the fastest counts: a shared machine only ever adds
HEADS = (1, 4, 16, 128)
NEW = (64, 128, 192, 256)


def numbers(backend: Backend, *shape: int, seed: int = 0) -> Array:
    return backend.asarray(fresh(seed)(*shape))


def machine(backend: Backend, side: int = 512, elements: int = 2**22) -> tuple[Contender, Contender]:
    """What is timed for the two limits: a square matrix product and a copy."""
    xp, a = backend.xp, numbers(backend, side, side)
    flat = xp.zeros(elements, dtype=a.dtype) + 0.5
    out, to = xp.empty_like(a), xp.empty_like(flat)
    width = a.itemsize

    def copy() -> None:
        to[...] = flat

    square = Work(2 * side**3, 3 * width * side**2)
    return (Contender("product", backend.name, lambda: xp.matmul(a, a, out=out), square),
            Contender("copy", backend.name, copy, Work(0, 2 * width * elements)))


def roofline(backend: Backend, config: MLAConfig, tokens: int = 4096) -> tuple[Device, dict[int, float]]:
    """This machine as two numbers, and the FLOP/s of the kernel `rows` by the number of heads."""
    kernels = {}
    cache = numbers(backend, 1, tokens, config.cached_width)
    for h in HEADS:
        c, q = config_with(config, h), numbers(backend, 1, 1, h, config.cached_width, seed=h)
        scratch = Scratch()
        kernels[h] = Contender(f"{h} heads", backend.name, lambda q=q, scratch=scratch: decode(
            q, cache, [tokens], 0.1, config.kv_lora_rank, kernel="rows", scratch=scratch),
            absorbed_kernel(c, 1, tokens - 1, q.itemsize))
    product, copy = machine(backend)
    run(product, copy, *kernels.values())
    here = Device("this machine", rate(product), copy.work.bytes / fastest(copy), f"measured now, {backend.name}")
    return here, {h: rate(kernel) for h, kernel in kernels.items()}


def crossover(backend: Backend, config: MLAConfig, cached: int, heads: int = 1) -> dict[int, tuple[float, float]]:
    """Seconds of attention rebuilt and absorbed, by the number of new tokens behind ``cached`` ones.

    Both are plain matrix products of all pairs; the softmax is the same in both and left out, as FLOP counts leave it.
    """
    n, r, p, v = config.qk_nope_head_dim, config.kv_lora_rank, config.qk_rope_head_dim, config.v_head_dim
    w_uk, w_uv = numbers(backend, heads, n, r), numbers(backend, heads, r, v)
    pairs = []
    for new in NEW:
        rows = numbers(backend, cached + new, r + p)
        q = numbers(backend, heads, new, n + p)
        work = attention(config_with(config, heads), new, cached, "naive")
        pairs.append([Contender(name, backend.name, lambda f=f, q=q, rows=rows: f(q, rows, w_uk, w_uv), work)
                      for name, f in (("rebuilt", rebuilt), ("absorbed", absorbed))])
    run(*(one for pair in pairs for one in pair))
    return {new: (fastest(pair[0]), fastest(pair[1])) for new, pair in zip(NEW, pairs, strict=True)}


def rebuilt(q: Array, rows: Array, w_uk: Array, w_uv: Array) -> Array:
    """Keys and values of each head out of all ``rows [s, r+p]``, then two products for ``q [h, t, n+p]``."""
    n, r = w_uk.shape[1:]
    keys, values = rows[:, :r] @ w_uk.mT, rows[:, :r] @ w_uv  # [h, s, n], [h, s, v]
    scores = q[..., :n] @ keys.mT + q[..., n:] @ rows[:, r:].mT  # [h, t, s]
    return scores @ values


def absorbed(q: Array, rows: Array, w_uk: Array, w_uv: Array) -> Array:
    """The queries into the latent space, two products with ``rows`` as they are, and the outputs back."""
    xp, (h, t, _), (n, r) = array_namespace(q), q.shape, w_uk.shape[1:]
    wide = xp.concat([q[..., :n] @ w_uk, q[..., n:]], axis=-1)  # [h, t, r+p]
    scores = xp.reshape(wide, (h * t, wide.shape[-1])) @ rows.mT  # [h t, s]
    return xp.reshape(scores @ rows[:, :r], (h, t, r)) @ w_uv


def premultiplied(backend: Backend, config: MLAConfig, heads: int = 2) -> dict[str, tuple[float, float]]:
    """Seconds with two factors and with their product, for one token, by which pair of weights it is."""
    c = config_with(config, heads)
    d, q, n, r, v = c.hidden_size, c.q_lora_rank, c.qk_nope_head_dim, c.kv_lora_rank, c.v_head_dim
    found, contenders = {}, []
    for name, (i, inner, o) in {"W_UQ W_UK": (q, n, r), "W_UV W_O": (r, v, d)}.items():
        x, first, second = (numbers(backend, *shape) for shape in ((heads, 1, i), (heads, i, inner), (heads, inner, o)))
        both = first @ second
        found[name] = [Contender("factored", backend.name, lambda x=x, a=first, b=second: (x @ a) @ b, Work(1, 1)),
                       Contender("merged", backend.name, lambda x=x, w=both: x @ w, Work(1, 1))]
        contenders += found[name]
    run(*contenders, rounds=2 * ROUNDS)
    return {name: (fastest(pair[0]), fastest(pair[1])) for name, pair in found.items()}


def run(*contenders: Contender, rounds: int = ROUNDS) -> None:
    for _ in measure(contenders, rounds):
        pass


def fastest(contender: Contender) -> float:
    """Seconds of the fastest round."""
    return min(contender.measured)


def rate(contender: Contender) -> float:
    """FLOP/s."""
    return contender.work.flops / fastest(contender)


def config_with(config: MLAConfig, heads: int) -> MLAConfig:
    return replace(config, num_attention_heads=heads)
