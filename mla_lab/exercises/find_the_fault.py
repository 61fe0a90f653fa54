"""Exercises of notebook 07: who is it, what rules it out, a check of one's own, and a kernel to put right."""
from __future__ import annotations

import math

import numpy as np

from ..arrays import fresh, get_backend
from ..checks.common import SMALL
from ..diagnosis.cases import config_dict, decode_cases
from ..faults import FAULTS
from ..suspects import decode, layer
from ..weights import random_state
from .registry import Refused, exercise

ANSWERS = {
    "suspect_a": ("merged_without_lse",), "suspect_b": ("positions_restart",), "suspect_c": ("all_k_then_all_v",),
    "suspect_d": (), "suspect_e": ("scale_by_cached_width",), "suspect_f": ("norm_eps_wrong",),
    "suspect_g": ("latent_cached_before_norm",), "suspect_h": ("mask_top_left", "value_from_last_columns")}
IDS = [fault.id for fault in FAULTS]


def _but(suspect: str, *faults: str) -> tuple:
    """The right answers but for one."""
    return tuple((ANSWERS | {suspect: faults}).items())


def _ids(said: object) -> list[str]:
    """'right', one id, or several."""
    ids = [said] if isinstance(said, str) else list(said)
    ids = [] if ids == ["right"] else ids
    for one in ids:
        if one not in IDS:
            raise Refused(f"{str(one)[:40]!r} is no fault's id; say 'right', an id, or a tuple of two ids")
    return ids


@exercise("07", "find the bug", right=tuple(ANSWERS.items()), wrong={
    _but("suspect_a", "lse_in_base_2"): "suspect_a never looks at an LSE: how does it put its pieces together?",
    _but("suspect_b", "rope_key_cached_unrotated"): "suspect_b turns its keys; by which positions in the second call?",
    _but("suspect_c", "value_rows_first"): "in suspect_c no head has all of its own rows; which order gives that?",
    _but("suspect_d", "merged_without_lse"): "suspect_d passes every test; must there be something wrong with it?",
    _but("suspect_e", "scale_by_nope"): "suspect_e divides by the root of a width, but its queries are absorbed ones",
    _but("suspect_f"): "suspect_f is right for ordinary input only; look at its faint prefill",
    _but("suspect_g", "latent_not_normed"): "suspect_g has a right prefill, so the latent is normed there",
    _but("suspect_h", "mask_top_left"): "suspect_h fails with one key too, where no mask matters: there is more",
    _but("suspect_h", "value_from_last_columns"): "suspect_h has a second fault, which shows beside the first one",
})
def check_lineup(answer):
    """Which fault does each suspect have: a dict of names and fault ids, 'right' for the one without."""
    said = dict(answer)
    if said.keys() != ANSWERS.keys():
        raise Refused("a dict with an answer for each of suspect_a to suspect_h is needed")
    given = {name: _ids(ids) for name, ids in said.items()}
    good = sum(set(ids) == set(ANSWERS[name]) for name, ids in given.items())
    if good < 7:
        raise Refused(f"not yet: {good} of 8; diagnose the one of which you are least sure")
    return [[ids.count(one) for one in IDS] for _, ids in sorted(given.items())]


@exercise("07", "recall", right="scale_by_cached_width", wrong={
    "positions_restart": "in a prefill counting from 0 is right; it goes wrong with the first step",
    "latent_cached_before_norm": "the prefill norms its own latents; only later calls read the bad ones",
    "mask_top_left": "on an empty cache top left is bottom right; a step then sees the first key alone",
    "merged_without_lse": "a prefill on an empty cache is one piece; the first step merges the past with itself",
})
def check_ruled_out(answer):
    """A prefill is right and the first step after it is wrong: which fault can it not be?"""
    return answer


MSCALE = 0.1 * math.log(40) + 1


@exercise("07", "compute", close=1e-3, right=math.sqrt(192 / 576) / MSCALE**2, wrong={
    math.sqrt(192 / 576): "the default knows nothing of YaRN either: the right scale has mscale squared in it",
    math.sqrt(192 / 576) / MSCALE: "mscale counts twice: queries and keys are each multiplied by it",
    math.sqrt(576 / 192) * MSCALE**2: "that is the inverse: the wrong scale divided by the right one is asked for",
    192 / 576 / MSCALE**2: "the scale is one over the root of the width",
    math.sqrt(192 / 512) / MSCALE**2: "an absorbed query is as wide as a cached row: latent and rope key",
    math.sqrt(128 / 576) / MSCALE**2: "the right scale comes from n + p = 128 + 64",
    math.sqrt(192 / 576) * MSCALE**2: "mscale squared is in the right scale, so it is missing here, not doubled",
})
def check_default_scale(answer):
    """Logits under an attention function's default scale over the right ones, for absorbed queries of DeepSeek-V3."""
    return answer


# --- a check of one's own ---------------------------------------------------------------------------------------------

STATE, FIELDS = random_state(SMALL, get_backend("numpy"), 73), config_dict(SMALL)
HIDDEN = fresh(74)(1, 8, SMALL.hidden_size)


def rounds(hidden, cache=None):
    """A right layer whose outputs differ in their last bits from call to call, as they do on any machine."""
    out, cache = layer(hidden, STATE, FIELDS, cache)
    return out * (1 + 2.0**-50 * hidden.shape[1]), cache


def restarts(hidden, cache=None):
    """Every call counts positions from 0."""
    return layer(hidden, STATE, FIELDS, cache, positions=lambda start, t: np.arange(t))


def keeps_raw(hidden, cache=None):
    """The latent goes into the cache before its norm."""
    return layer(hidden, STATE, FIELDS, cache, keep=lambda raw, latent: raw)


def forgets(hidden, cache=None):
    """No call sees what was cached."""
    return layer(hidden, STATE, FIELDS)


def overflows(hidden, cache=None):
    """NaN from the fifth token of a call on."""
    out, cache = layer(hidden, STATE, FIELDS, cache)
    return np.where(np.arange(hidden.shape[1])[:, None] > 3, np.nan, out), cache


def drifting():
    """Each call adds to what the last one gave."""
    calls = []

    def drifts(hidden, cache=None):
        calls.append(0)
        out, cache = layer(hidden, STATE, FIELDS, cache)
        return out + 0.1 * len(calls), cache
    return drifts


def consistent(call, hidden):
    """Tokens in two calls and a step give what they give in one."""
    first, cache = call(hidden[:, :4])
    second, cache = call(hidden[:, 4:7], cache)
    third, _ = call(hidden[:, 7:], cache)
    return bool(np.allclose(np.concatenate([first, second, third], axis=1), call(hidden)[0], rtol=0, atol=1e-9))


def _split(call, hidden):
    first, cache = call(hidden[:, :4])
    return np.concatenate([first, call(hidden[:, 4:], cache)[0]], axis=1), call(hidden)[0]


def _cosine(call, hidden):
    a, b = _split(call, hidden)
    return bool(np.sum(a * b) > 0.8 * np.sqrt(np.sum(a * a) * np.sum(b * b)))


@exercise("07", "implement", right=consistent, wrong={
    lambda call, x: bool(np.isfinite(call(x)[0]).all()): "finite is a weak demand: most faults give finite outputs",
    lambda call, x: bool(np.allclose(call(x[:, :1])[0], call(x)[0][:, :1])):
        "one token at position 0 has a softmax of one term and a rotation by nothing; ask for later tokens",
    lambda call, x: bool(np.allclose(call(x)[0], call(x)[0])):
        "that is one call twice: a fault in what the cache holds shows only in a call that reads it",
    _cosine: "a cosine above 0.8 lets much through; hold the largest difference against what rounding explains",
    lambda call, x: bool(np.array_equal(*_split(call, x))):
        "right layers differ in their last bits from call to call; allow for rounding",
})
def check_own_check(answer):
    """A function (call, hidden) -> bool, true for a right layer only, where call(hidden, cache=None) runs the layer."""
    results = [answer(call, HIDDEN) for call in (rounds, restarts, keeps_raw, forgets, overflows, drifting())]
    if any(not isinstance(result, bool | np.bool_) for result in results):
        raise Refused("not yet: your function should return True or False")
    return [int(result) for result in results]


# --- a kernel to put right --------------------------------------------------------------------------------------------

def kernel(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
    t, s, r = q_nope.shape[1], kv_cache.shape[1], w_uk.shape[-1]
    key, query = np.arange(s), np.arange(t)[:, None]
    length = lengths[:, None, None]
    rows = np.where((key < lengths[:, None])[..., None], kv_cache, 0)
    seen = (key <= length - t + query + 1) & (key < length)  # [b, t, s]
    q = np.concatenate([np.einsum("bthn,hnr->bthr", q_nope, w_uk), q_rope], axis=-1)
    logits = np.einsum("bthc,bsc->bhts", q, rows) / np.sqrt(q_nope.shape[-1])
    shares = np.where(seen[:, None], np.exp(logits - logits.max(axis=-1, keepdims=True)), 0)
    total = shares.sum(axis=-1, keepdims=True)
    mixed = shares / np.where(total == 0, 1, total) @ rows[:, None, :, :r]  # [b, h, t, r]
    return np.einsum("bhtr,hrv->bthv", mixed, w_uv)


def _kernel(ahead: int, scale_of):
    """`kernel` with another mask and another scale."""
    def repaired(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale):
        scale = scale_of(q_nope.shape[-1], q_rope.shape[-1], scale)
        return decode(q_nope, q_rope, kv_cache, w_uk, w_uv, lengths, scale,
                      place=lambda query, t, length: length - t + query + ahead)[0]
    return repaired


def _given(n, p, scale):
    return scale


@exercise("07", "find the bug", right=_kernel(0, _given), wrong={
    kernel: "both mistakes are still in it; diagnose names them",
    _kernel(0, lambda n, p, scale: n**-0.5): "the mask is right now; by what are the logits multiplied?",
    _kernel(1, _given): "the scale is right now; how many keys does the first of several queries see?",
    _kernel(0, lambda n, p, scale: (n + p) ** -0.5): "that leaves out YaRN's mscale; the scale is handed in",
    _kernel(-1, _given): "now each query misses its own key",
    _kernel(0, lambda n, p, scale: scale * n**-0.5): "the logits are scaled twice",
})
def check_fixed_kernel(answer):
    """The kernel of the notebook with both of its mistakes put right."""
    outputs = []
    for case in decode_cases():
        if case.name in ("full", "one token", "empty row"):
            scale = (case.config.qk_head_dim) ** -0.5 * 1.3
            out = answer(case.q_nope, case.q_rope, case.kv_cache, case.w_uk, case.w_uv, np.array(case.lengths), scale)
            outputs.append(out[0] if isinstance(out, tuple) else out)
    return outputs
