"""Our layer equals that of transformers: to 1e-6 as theirs is, to 1e-12 once their float32 islands are float64."""
import copy
import json
import math
from dataclasses import replace

import hf
import pytest

from mla_lab.cache import LatentCache
from mla_lab.decode import forward
from mla_lab.read_config import read_config
from mla_lab.recipe import RIGHT
from mla_lab.rope import half_split_order
from mla_lab.weights import MLAWeights

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")

TOKENS = 17  # beyond YaRN's original context, and in the third context of Mistral 4
PIECES = ((0, 9), (9, 12), (12, 13), (13, 14), (14, TOKENS))  # a prefill, a chunk, two steps, a chunk
assert TOKENS > hf.ORIGINAL + 1


tolerance = hf.tolerance


def ours(pair, hidden, recipe=RIGHT, config=None, counts=None, pieces=PIECES, modes=("absorb", "naive")):
    """Our outputs in pieces, by both modes in turn, through a cache whose unused slots hold NaN; and the cache."""
    config = config or pair.config
    cache, outs = LatentCache.allocate(config, hidden.shape[0], TOKENS + 2, hf.BACKEND, fill=math.nan), []
    for i, (low, high) in enumerate(pieces):
        out, cache = forward(hidden[:, low:high], pair.weights, config, cache, modes[i % 2], counts, recipe)
        outs.append(out)
    return torch.cat(outs, 1), cache


@pytest.mark.parametrize("name, rope", hf.CASES, ids=hf.IDS)
def test_prefill_and_decode(name, rope, tolerance):
    pair, hidden = hf.theirs_and_ours(hf.FAMILIES[name], hf.FAMILIES[name].rope[rope]), hf.draw_hidden(2, TOKENS)
    whole, cache = pair.run(hidden), transformers.DynamicCache(config=pair.theirs)
    stepwise = torch.cat([pair.run(hidden[:, low:high], cache=cache) for low, high in PIECES], 1)
    got, own = ours(pair, hidden)
    full, _ = ours(pair, hidden, pieces=((0, TOKENS),))
    assert hf.off(full, whole) < tolerance and hf.off(got, stepwise) < tolerance and hf.off(got, whole) < tolerance
    # What they cache is what we cache, but for the order in which the rope channels are written.
    latent, rope_key = cache.layers[0].keys[:, 0], cache.layers[0].values[:, 0]
    assert latent.shape[-1] + rope_key.shape[-1] == pair.config.cached_width
    assert hf.off(own.c_kv[:, :TOKENS], latent) < tolerance
    rewritten = pair.config.rope_interleave and not pair.config.mla_use_nope and not name.startswith("deepseek_v2")
    order = half_split_order(8) if rewritten else slice(None)
    assert hf.off(own.k_rope[:, :TOKENS][..., order], rope_key) < tolerance


@pytest.mark.parametrize("name, rope", hf.CASES, ids=hf.IDS)
def test_the_configuration_that_they_write_is_read_as_the_layer_that_agrees(name, rope):
    pair = hf.theirs_and_ours(hf.FAMILIES[name], hf.FAMILIES[name].rope[rope])
    model = read_config(json.loads(pair.theirs.to_json_string(use_diff=False)))
    assert model.mla == pair.config and not model.unsupported


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3", "minicpm3", "longcat_flash", "mistral4", "kimi_linear",
                                  "bailing_hybrid", "glm_moe_dsa dense"])
def test_left_padding(name, tolerance):
    """Theirs pads on the left and masks; ours has no padding on the left: each row begins at its first token, and
    ``counts`` says how many tokens are real. The real tokens come out the same, and so do two more for each row."""
    pair, padding = hf.theirs_and_ours(hf.FAMILIES[name], hf.FAMILIES[name].rope[-1]), (0, 5)
    hidden, later = hf.draw_hidden(2, 13), hf.draw_hidden(2, 2, seed=22)
    cache = transformers.DynamicCache(config=pair.theirs)
    want = pair.run(hidden, cache=cache, padding=padding), pair.run(later, cache=cache, padding=padding)
    moved = torch.stack([torch.roll(row, -p, 0) for row, p in zip(hidden, padding, strict=True)])
    own = LatentCache.allocate(pair.config, 2, 15, hf.BACKEND, fill=math.nan)
    first, own = forward(moved, pair.weights, pair.config, own, counts=[13 - p for p in padding])
    second, own = forward(later, pair.weights, pair.config, own)
    assert own.lengths == (15, 10) and hf.off(second, want[1]) < tolerance
    for row, p in enumerate(padding):
        assert hf.off(first[row, : 13 - p], want[0][row, p:]) < tolerance
    ignored = pair.run(hidden)  # without the mask the padded row is another one
    assert hf.off(first[1, :8], ignored[1, 5:]) > 1e-3


@pytest.mark.parametrize("given", [
    {}, {"mscale": 0.707}, {"mscale_all_dim": 0.707}, {"mscale": 0.707, "mscale_all_dim": 0.707},
    {"mscale": 1.0, "mscale_all_dim": 0.707}, {"mscale": 0, "mscale_all_dim": 1.0}, {"attention_factor": 0.9},
    {"mscale_all_dim": 1.0, "attention_factor": 1.1}], ids=str)
@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_yarn_coefficients_that_are_missing(name, given, tolerance):
    rope = {k: v for k, v in hf.YARN.items() if not k.startswith("mscale")} | given
    pair, hidden = hf.theirs_and_ours(hf.FAMILIES[name], rope), hf.draw_hidden(1, TOKENS)
    assert hf.off(ours(pair, hidden)[0], pair.run(hidden)) < tolerance


DEEPSEEKS = {  # what a reader of the configuration who takes every model for a DeepSeek-V3 would assume
    "deepseek_v3 half-split": {"rope_interleave": True}, "youtu half-split": {"rope_interleave": True},
    "minicpm3": {"rope_interleave": True}, "longcat_flash": {"mla_scale_q_lora": False},
    "longcat_flash ": {"mla_scale_kv_lora": False}, "kimi_linear": {"mla_use_nope": False},
    "mistral4": {"rope_scaling": hf.yarn_of(hf.YARN)}, "deepseek_v3": {"rope_scaling": None},
    "deepseek_v2": {"rope_interleave": False},
}


@pytest.mark.parametrize("name", DEEPSEEKS)
def test_a_layer_read_by_the_wrong_convention_is_seen(name):
    family = hf.FAMILIES[name.strip()]
    pair, hidden = hf.theirs_and_ours(family, family.rope[-1]), hf.draw_hidden(1, TOKENS)
    wrong, _ = ours(pair, hidden, config=replace(pair.config, **DEEPSEEKS[name]))
    assert hf.off(wrong, pair.run(hidden)) > 1e-3


@pytest.mark.parametrize("changes", [{"norm_kv": lambda x, k, w, e: (x, k)}, {"gate": lambda x: 1.0 + 0 * x},
                                     {"latent_scales": lambda c: (1.0, 2.0)}, {"query_scale": lambda c, at: 1.1}],
                         ids=lambda c: next(iter(c)))
def test_a_recipe_with_a_value_replaced_is_seen(changes):
    pair, hidden = hf.theirs_and_ours(hf.FAMILIES["bailing_hybrid"], hf.PLAIN), hf.draw_hidden(1, TOKENS)
    assert hf.off(ours(pair, hidden, replace(RIGHT, **changes))[0], pair.run(hidden)) > 1e-3


# --- a whole model ---

NEW = 32
PROMPT = [[0, 0, 0, 5, 9, 2, 7], [3, 11, 4, 8, 6, 5, 10]]
MASK = [[0, 0, 0, 1, 1, 1, 1], [1] * 7]


class InPlaceOfTheirs(torch.nn.Module):
    """Our attention where theirs was. Their cache goes on counting the tokens; the rows are in ours."""

    def __init__(self, attention, config, recipe):
        super().__init__()
        self.layer_idx, self.config, self.recipe = attention.layer_idx, config, recipe
        self.weights, self.rows = MLAWeights.from_hugging_face(attention.state_dict(), config, recipe), None
        self.dtype = str(self.weights.w_o.dtype).removeprefix("torch.")

    def forward(self, hidden_states, attention_mask=None, cache=None, **_):
        b, t, _ = hidden_states.shape
        padding = [0] * b
        if cache.get_seq_length(self.layer_idx) == 0:
            self.rows = LatentCache.allocate(self.config, b, t + NEW, hf.BACKEND.with_dtype(self.dtype), fill=math.nan)
            last = attention_mask[:, 0, -1]  # what the last query sees: True, or 0 added to its logits
            padding = (~last if last.dtype == torch.bool else last < 0).sum(-1).tolist()
        moved = torch.stack([torch.roll(row, -p, 0) for row, p in zip(hidden_states, padding, strict=True)])
        out, self.rows = forward(moved, self.weights, self.config, self.rows, counts=[t - p for p in padding],
                                 recipe=self.recipe)
        cache.update(hidden_states[:, None, :, :1], hidden_states[:, None, :, :1], self.layer_idx)
        return torch.stack([torch.roll(row, p, 0) for row, p in zip(out, padding, strict=True)]), None


def tiny_model(version: str, dtype, attention: str):
    """A whole model whose choice of tokens depends on its attention, and the configuration of its layers."""
    config = getattr(transformers, f"Deepseek{version}Config")(
        **hf.DIMS, num_key_value_heads=3, vocab_size=61, num_hidden_layers=3, first_k_dense_replace=1,
        intermediate_size=26, moe_intermediate_size=13, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2,
        n_group=2, topk_group=1, rope_parameters=hf.YARN, max_position_embeddings=64, initializer_range=0.25,
        pad_token_id=0, bos_token_id=None, eos_token_id=None, attn_implementation=attention,
        experts_implementation="eager")
    torch.manual_seed(5)
    model = getattr(transformers, f"Deepseek{version}ForCausalLM")(config).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(0.3 * torch.randn_like(weight))
    return model, hf.our_config(hf.DIMS, hf.YARN)


def generated(model):
    return model.generate(torch.tensor(PROMPT), attention_mask=torch.tensor(MASK), max_new_tokens=NEW, do_sample=False)


@pytest.mark.parametrize("version", ["V2", "V3"])
@pytest.mark.parametrize("dtype, attention", [(torch.float64, "sdpa"), (torch.float32, "eager")], ids=str)
def test_greedy_generation_gives_the_same_tokens(version, dtype, attention):
    """Two prompts, one padded on the left, 32 tokens each. With one convention wrong the tokens change."""
    theirs, config = tiny_model(version, dtype, attention)
    want = generated(theirs)
    assert want.shape == (2, 7 + NEW) and all(len(set(row[7:].tolist())) > 8 for row in want)

    def with_ours(config, recipe=RIGHT):
        model = copy.deepcopy(theirs)
        for layer in model.model.layers:
            layer.self_attn = InPlaceOfTheirs(layer.self_attn, config, recipe)
        return generated(model)

    assert torch.equal(with_ours(config), want)
    assert not torch.equal(with_ours(replace(config, rope_interleave=False)), want)
    assert not torch.equal(with_ours(config, replace(RIGHT, scale=lambda c: c.qk_head_dim**-0.5)), want)
