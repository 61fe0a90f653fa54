"""Relatives of MLA in transformers whose attention does more than ours: what is MLA in them equals ours.

Sparse layers run on their dense path: an indexer that selects every key. What these layers add (gates fed by another
input, attention sinks, a norm of the rope key, a learned query scale) is added here, around our layer.
"""
import math
from dataclasses import replace
from functools import partial

import hf
import pytest

from mla_lab.attention import attend, merge_heads, per_head, project, project_out, visible_keys
from mla_lab.cache import LatentCache
from mla_lab.decode import attend_new, positions_from
from mla_lab.recipe import RIGHT, keep, rms_norm, sigmoid
from mla_lab.rope import frequencies, rotate

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the comparison needs transformers")

tolerance = hf.tolerance
TOKENS = 17
INDEXED = hf.SPARSE | {"layer_types": ["indexed_attention"], "indexer_types": ["full"]}


def renamed(state):
    """Hunyuan's names: the gate is called gate_proj; the sinks are no weight of ours."""
    return {k.replace("gate_proj", "g_proj"): v for k, v in state.items() if k != "sinks"}


def without(*names):
    return lambda state: {k: v for k, v in state.items() if k not in names}


def square_query(state):
    """A.X-K2 has no q_b_proj; a stand-in of its shape, which the test replaces."""
    return {k: v for k, v in state.items() if k != "q_gate_proj.weight"} | {
        "q_b_proj.weight": state["q_gate_proj.weight"][: 3 * 18, :20]}


LATE = {"rms_norm_eps": 1e-4}  # these layers take the norm's epsilon from the configuration
HY = {"output_gate": "value"}
KIN = {
    "hy_v4": hf.Family("hy_v4", "HYV4Config", "HYV4Attention", INDEXED, HY | hf.HALF, adapt=renamed),
    "hy_v4_vl": hf.Family("hy_v4_vl", "HYV4VLTextConfig", "HYV4VLAttention", INDEXED | LATE, HY | LATE, adapt=renamed,
                          rope=({**hf.PLAIN, "mrope_section": [2, 1, 1]},)),
    "axk2": hf.Family("axk2", "AXK2Config", "AXK2Attention", hf.SPARSE, adapt=square_query),
    "glm5_next": hf.Family("glm5_next", "Glm5NextTextConfig", "Glm5NextTextAttention",
                           INDEXED | LATE | {"qk_rope_head_dim": 0},
                           LATE | {"mla_use_nope": True, "qk_rope_head_dim": 0}, rope=(None,)),
    "dots3_note": hf.Family("dots3_note", "Dots3NoteTextConfig", "Dots3NoteTextAttention", hf.ONE_MLA | LATE | {
        "use_dsa": False, "head_dim": 18}, {"output_gate": "head", "mla_scale_q_lora": True, "mla_scale_kv_lora": True}
        | LATE, adapt=without("k_rope_only_layernorm.weight"), rope=(hf.PLAIN,)),
    "mistral_large4": hf.Family("mistral_large4", "MistralLarge4TextConfig", "MistralLarge4TextAttention",
                                INDEXED | LATE | {"q_lora_rank": None, "no_rope_layers": [1]}, LATE,
                                adapt=without("softmax_scaling.scale", "softmax_scaling.bias")),
    "mistral_large4 nope": hf.Family("mistral_large4", "MistralLarge4TextConfig", "MistralLarge4TextAttention",
                                     INDEXED | LATE | {"q_lora_rank": None, "no_rope_layers": [0]},
                                     LATE | {"qk_nope_head_dim": 18, "qk_rope_head_dim": 0, "mla_use_nope": True},
                                     adapt=without("softmax_scaling.scale", "softmax_scaling.bias")),
}


def prefilled(pair, hidden, recipe=RIGHT):
    """Heads, LSE and output of our layer after a prefill and three steps, by both modes in turn."""
    cache, parts = LatentCache.allocate(pair.config, hidden.shape[0], TOKENS, hf.BACKEND, fill=math.nan), []
    for i, (low, high) in enumerate(((0, 14), (14, 15), (15, 16), (16, 17))):
        out, done, cache = attend_new(hidden[:, low:high], pair.weights, pair.config, cache, ("absorb", "naive")[i % 2],
                                      recipe=recipe)
        parts.append((done.heads, done.lse, out))
    return torch.cat([p[0] for p in parts], 2), torch.cat([p[1] for p in parts], 2), torch.cat([p[2] for p in parts], 1)


@pytest.mark.parametrize("name, rope", [("hy_v4", 0), ("hy_v4", 1), ("hy_v4_vl", 0)])
def test_hunyuan_4_is_our_layer_with_a_sink_in_the_softmax(name, rope, tolerance):
    """A sink is a key of value 0 and a learned logit: it takes ``sigmoid(lse - sink)`` of the heads away."""
    pair, hidden = hf.theirs_and_ours(KIN[name], KIN[name].rope[rope]), hf.draw_hidden(2, TOKENS)
    heads, lse, out = prefilled(pair, hidden)
    share = sigmoid(lse - pair.layer.sinks.detach()[:, None])
    want = pair.run(hidden)
    assert hf.off(project_out(heads * share[..., None], hidden, pair.weights), want) < tolerance
    assert hf.off(out, want) > 1e-3  # the sink matters


def test_ax_k2_is_our_layer_with_a_query_of_both_latents(tolerance):
    """Query and gate come from ``[normed | raw]`` query latents in one matrix."""
    pair, hidden = hf.theirs_and_ours(KIN["axk2"], hf.YARN), hf.draw_hidden(2, TOKENS)
    both = replace(RIGHT, norm_query=lambda x, w, eps: torch.cat([rms_norm(x, w, eps), x], -1))
    fused = pair.layer.q_gate_proj.weight.detach().reshape(3, 18 + 11, 40)
    pair.weights = replace(pair.weights, w_uq=fused[:, :10], w_qr=fused[:, 10:18])
    heads, _, out = prefilled(pair, hidden, both)
    c_q = both.norm_query(hidden @ pair.weights.w_dq.mT, pair.weights.norm_q, 1e-6)
    gated = merge_heads(heads * sigmoid(per_head(c_q, fused[:, 18:])))
    assert hf.off(gated @ pair.weights.w_o.mT, pair.run(hidden)) < tolerance
    assert hf.off(out, pair.run(hidden)) > 1e-3  # the gate matters


class Everything(torch.nn.Module):
    """An indexer of GLM-5.3's kind that selects every key up to the query's own."""

    def forward(self, hidden_states, **_):
        b, t, _ = hidden_states.shape
        key = torch.arange(t)
        return torch.where(key <= key[:, None], key, -1).expand(b, t, t).to(torch.int32)


def test_glm_5_3_has_no_rope_channels_at_all(tolerance):
    pair, hidden = hf.theirs_and_ours(KIN["glm5_next"], None), hf.draw_hidden(2, TOKENS)
    pair.layer.indexer = Everything()
    assert pair.config.cached_width == 28
    assert hf.off(prefilled(pair, hidden)[2], pair.run(hidden)) < tolerance
    wrong = replace(pair.config, rms_norm_eps=1e-6)
    assert hf.off(prefilled(replace(pair, config=wrong), hidden)[2], pair.run(hidden)) > 1e-5


def all_at_once(pair, hidden, change, recipe=RIGHT):
    """Our layer over all tokens, with ``change`` applied to what it projects; both modes, which must agree."""
    b, t, _ = hidden.shape
    at = positions_from((0,) * b, t, hidden)
    q = change(project(hidden, pair.weights, pair.config, at, recipe), at)
    seen = visible_keys((0,) * b, (t,) * b, t, t, hidden)
    outs = [project_out(attend(q, q.c_kv, q.k_rope, pair.weights.w_uk, pair.weights.w_uv, pair.config, seen, mode,
                               recipe).heads, hidden, pair.weights, recipe) for mode in ("naive", "absorb")]
    assert hf.off(*outs) < 1e-12
    return outs[0]


def test_dots3_is_longcat_with_a_gate_and_a_norm_of_the_rope_key(tolerance):
    pair, hidden = hf.theirs_and_ours(KIN["dots3_note"], hf.PLAIN), hf.draw_hidden(2, TOKENS)
    pair.rotary = partial(pair.rotary, layer_type="full_attention")
    norm = pair.layer.k_rope_only_layernorm.weight.detach()

    def normed(q, at):
        raw = rms_norm(hidden @ pair.weights.w_kr.mT, norm, pair.config.rms_norm_eps)
        return replace(q, k_rope=rotate(raw, at, frequencies(pair.config)))

    want = pair.run(hidden)
    assert hf.off(all_at_once(pair, hidden, normed), want) < tolerance
    assert hf.off(all_at_once(pair, hidden, keep), want) > 1e-3  # the norm matters


@pytest.mark.parametrize("name", ["mistral_large4", "mistral_large4 nope"])
def test_mistral_large_4_is_our_layer_with_learned_frequencies_and_query_scale(name, tolerance):
    """Each head's query grows with the logarithm of its position; each frequency has a learned factor; one layer in
    four has no position at all, and then the rope channels are nope channels."""
    pair, hidden = hf.theirs_and_ours(KIN[name], hf.YARN | {"attention_factor": 1.0}), hf.draw_hidden(2, TOKENS)
    scaling, alpha = pair.layer.softmax_scaling, 0.3 * torch.arange(4.0)
    pair.rotary.alpha.data, pair.also = alpha, {"shared_kv_states": {}}

    def scaled(q, at):
        factor = scaling.scale[None, :, None] * torch.log(at + 1.0)[:, None] + scaling.bias[None, :, None]
        factor = factor.detach()[..., None].to(torch.float64)
        return replace(q, q_nope=q.q_nope * factor, q_rope=q.q_rope * factor)

    learned = replace(RIGHT, frequencies=lambda c: frequencies(c) * torch.exp(alpha).numpy()[: c.qk_rope_head_dim // 2])
    want = pair.run(hidden)
    assert hf.off(all_at_once(pair, hidden, scaled, learned), want) < tolerance
    assert hf.off(all_at_once(pair, hidden, keep, learned), want) > 1e-3  # the query scale matters
