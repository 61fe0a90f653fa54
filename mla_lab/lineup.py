"""The tests that people usually write, tried on somebody's layer or decode kernel, for the line-up of notebook 07."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from . import by_the_book
from .arrays import Array, Backend, fresh, to_numpy
from .checks.common import SMALL
from .diagnosis.cases import Case, config_dict
from .diagnosis.isolate import battery
from .diagnosis.observe import observe
from .diagnosis.result import conclude
from .diagnosis.words import Diagnosis
from .errors import unknown
from .rope import softmax_scale
from .suspects import PROTOCOL
from .weights import random_state

CONFIG = replace(SMALL, rms_norm_eps=1e-5)
TOLERANCE = 1e-3  # hand-picked, as usual: what it lets through is the point
FAINT = 2.0**-9  # times the input


@lru_cache(maxsize=2)
def cases(protocol: str) -> tuple[Case, ...]:
    """The battery of a protocol, the same objects each time: predictions are remembered by case."""
    return tuple(battery(protocol, None, False))


def diagnosed(suspect: Callable, backend: Backend) -> Diagnosis:
    """`mla_lab.diagnose` in float64 for one of several: what one suspect made it predict is kept for the next."""
    protocol, package = PROTOCOL[suspect], backend.name.split("-")[0]
    seen = observe(suspect, cases(protocol), "float64", package)
    return conclude(suspect.__name__, protocol, "float64", package, cases(protocol), seen)


def same(got: Array, want: np.ndarray) -> bool:
    """Whether no element is further off than `TOLERANCE` times the rms size of what is right."""
    got = to_numpy(got)
    return got.shape == want.shape and bool(np.abs(got - want).max() <= TOLERANCE * np.sqrt(np.mean(want**2)))


def usual_tests(implementation: Callable, backend: Backend, protocol: str | None = None) -> dict[str, bool]:
    """Which usual tests an implementation passes, by their names.

    Parameters
    ----------
    implementation : callable
        Of the protocols 'layer' or 'decode' of `mla_lab.diagnose`.
    protocol : str, optional
        May be left out for the suspects.
    """
    protocol = protocol or PROTOCOL[implementation]
    if protocol not in ("layer", "decode"):
        raise unknown("protocol", protocol, ("layer", "decode"))
    return (_of_layer if protocol == "layer" else _of_decode)(implementation, backend)


def _of_layer(layer: Callable, backend: Backend) -> dict[str, bool]:
    state, fields = random_state(CONFIG, backend, seed=70), config_dict(CONFIG)
    tokens = fresh(71)(1, 9, CONFIG.hidden_size)

    def run(hidden: np.ndarray, pieces: tuple[int, ...]) -> np.ndarray:
        cache, outputs = None, []
        for new in np.split(hidden, np.cumsum(pieces)[:-1], axis=1):
            out, cache = layer(backend.asarray(new), state, fields, cache)
            outputs.append(to_numpy(out))
        return np.concatenate(outputs, axis=1)

    def right(hidden: np.ndarray) -> np.ndarray:
        return by_the_book.layer(hidden[0], {name: to_numpy(w) for name, w in state.items()}, CONFIG)[None]

    whole, steps, faint = (9,), (6, 1, 1, 1), FAINT * tokens
    return {
        "one token": same(run(tokens[:, :1], (1,)), right(tokens[:, :1])),
        "a prefill of 9": same(run(tokens, whole), right(tokens)),
        "6 and 3 steps = own prefill": same(run(tokens, steps), run(tokens, whole)),
        "6 and 3 steps": same(run(tokens, steps), right(tokens)),
        "faint prefill": same(run(faint, whole), right(faint)),
    }


def _of_decode(decode: Callable, backend: Backend) -> dict[str, bool]:
    c, draw = CONFIG, fresh(72)
    h, r = c.num_attention_heads, c.kv_lora_rank
    w_uk, w_uv = (draw(*shape) / math.sqrt(r) for shape in ((h, c.qk_nope_head_dim, r), (h, r, c.v_head_dim)))

    def passes(t: int, keys: int) -> bool:
        given = (draw(1, t, h, c.qk_nope_head_dim), draw(1, t, h, c.qk_rope_head_dim), draw(1, keys, c.cached_width),
                 w_uk, w_uv)
        lengths = backend.xp.asarray([keys], device=backend.device)
        out = decode(*map(backend.asarray, given), lengths, softmax_scale(c))
        return same(out[0] if isinstance(out, tuple) else out, rebuilt(*given, softmax_scale(c)))

    return {"1 query, 1 key": passes(1, 1), "1 query, 12 keys": passes(1, 12), "3 queries, 12 keys": passes(3, 12),
            "1 query, 150 keys": passes(1, 150)}


def rebuilt(q_nope: np.ndarray, q_rope: np.ndarray, rows: np.ndarray, w_uk: np.ndarray, w_uv: np.ndarray,
            scale: float) -> np.ndarray:
    """Attention ``[b, t, h, v]`` of the last t of s tokens, keys and values rebuilt (DeepSeek-V2 eq. 13-18)."""
    (b, t, h, _), s, r = q_nope.shape, rows.shape[1], w_uk.shape[-1]
    out = np.empty((b, t, h, w_uv.shape[-1]))
    for i, j, head in np.ndindex(b, t, h):
        latents = rows[i, : s - t + j + 1, :r]  # what query j sees
        logits = latents @ w_uk[head].T @ q_nope[i, j, head] + rows[i, : len(latents), r:] @ q_rope[i, j, head]
        shares = np.exp(scale * (logits - logits.max()))
        out[i, j, head] = shares / shares.sum() @ (latents @ w_uv[head])
    return out
