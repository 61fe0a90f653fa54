"""A published ``config.json`` as a `Model`: what it caches, and the dimensions of its MLA layer if it has one.

MLA is recognised by ``kv_lora_rank``, never by a name. ``head_dim`` and ``num_key_value_heads`` of an MLA configuration
describe no cache and are not read. What cannot be read is refused in one sentence that names the key.
"""
from __future__ import annotations

import os
from collections.abc import Mapping

from .config import MLAConfig
from .config_fields import MOST, Fields, language_model, load
from .errors import InputError
from .models import Model
from .read_layers import attending, index_layers, mtp_layers, owning
from .read_rope import read_rope

# What MLA configurations have beside kv_lora_rank. Without it they are something else.
LOOKS_LIKE_MLA = ("compress_ratios", "qk_rope_head_dim", "qk_nope_head_dim", "q_lora_rank", "o_lora_rank")
# What is in the code of a class and not in its configurations, by model_type.
SCALED_LATENTS = {"longcat_flash", "longcat_flash_ngram"}
GATE_PER_HEAD = {"bailing_hybrid"}
LACKING = {
    "axk2": "one projection of the query latent, normed and not, makes its queries and an output gate together",
    "dots3_note_text": "its rope key is normed before it is rotated",
    "mistral_large4_text": "every fourth of its layers is not rotated",
} | dict.fromkeys(("hy_v4", "hy_v4_vl_text"), "its softmax has attention sinks")


def read_config(source: str | os.PathLike | Mapping, name: str | None = None) -> Model:
    """Read a configuration.

    Parameters
    ----------
    source : path or mapping
        A ``config.json``, a folder that holds one, or its content.
    name : str, optional
        What to call the model; by default after its file or folder.

    Raises
    ------
    InputError
        If it is not JSON, lacks a key that matters, or says two things at once.
    """
    raw, where, called = load(source)
    name, notes = name or called, []
    f = language_model(raw, notes)
    mla = f.has("kv_lora_rank") and f.flag("use_mla", True)
    if not mla:
        _refuse_lookalikes(f, name)
    attends = attending(f, notes)
    grows = owning(f, attends)
    if not any(grows):
        raise InputError(f"{name} has no layer whose cache grows with the context, so there is nothing to count.")
    found = _mla(f, attends, notes) if mla else _heads(f, notes)
    return Model(name=name, num_hidden_layers=len(attends), cache_layers=sum(grows), source=where,
                 source_kind="config_file", num_nextn_predict_layers=mtp_layers(f), **found,
                 **_quantization(f, Fields(raw), notes), notes="; ".join(notes))


def _refuse_lookalikes(f: Fields, name: str) -> None:
    found = next((key for key in LOOKS_LIKE_MLA if f.get(key)), None)
    if f.has("compress_ratios"):
        raise InputError(f"{name} is not MLA: no {f.where}kv_lora_rank, but compress_ratios, DeepSeek-V4's compressed "
                         f"streams of one shared key-value head ({f.said('head_dim')}), which are not counted.")
    if found:
        raise InputError(f"{name} has {f.where}{found} but no kv_lora_rank: neither MLA nor plain heads, so what it "
                         "caches cannot be told.")
    if f.get("v_head_dim") and f.get("v_head_dim") != f.get("head_dim"):
        raise InputError(f"{f.said('v_head_dim')} is not {f.said('head_dim')} and there is no kv_lora_rank: keys and "
                         "values of two widths are not counted.")


# --- attention -----------------------------------------------------------------------------------------------------

def _mla(f: Fields, attends: list[bool], notes: list[str]) -> dict:
    kind, dims = f.text("model_type"), {key: f.whole(key) for key in (
        "hidden_size", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim")}
    dims["qk_rope_head_dim"] = p = f.whole("qk_rope_head_dim", least=0)
    derived = dims["hidden_size"] // dims["num_attention_heads"] if kind == "minicpm3" else None
    dims["v_head_dim"] = f.whole("v_head_dim", derived) if derived else f.whole("v_head_dim")
    dims["q_lora_rank"] = f.whole("q_lora_rank", 0, least=0) or None
    whole_head = dims["qk_nope_head_dim"] + p
    if f.whole("qk_head_dim", whole_head) != whole_head:
        raise f.wrong("qk_head_dim", f"qk_nope_head_dim + qk_rope_head_dim = {whole_head}")
    rope, lacks = read_rope(f, p, notes)
    scaled = kind in SCALED_LATENTS
    gate = "value" if f.flag("mla_use_output_gate", False) else "head" if kind in GATE_PER_HEAD else None
    config = MLAConfig(
        **dims, **rope, rms_norm_eps=f.real("rms_norm_eps", 1e-6, zero=True),
        attention_bias=f.flag("attention_bias", False), output_gate=gate,
        mla_scale_q_lora=f.flag("mla_scale_q_lora", scaled) and dims["q_lora_rank"] is not None,
        mla_scale_kv_lora=f.flag("mla_scale_kv_lora", scaled))
    return {"attention": "mla", "num_attention_heads": config.num_attention_heads, "mla": config,
            "unsupported": LACKING.get(kind, lacks), **index_layers(f, attends, notes)}


def _heads(f: Fields, notes: list[str]) -> dict:
    """Multi-head, grouped-query or multi-query attention."""
    heads = f.whole("n_head" if f.has("n_head") and not f.has("num_attention_heads") else "num_attention_heads")
    if f.flag("multi_query", False) and not f.flag("new_decoder_architecture", False):
        groups = 1
        if f.get("num_kv_heads", 1) != 1:
            notes.append(f"multi_query means one key-value head; {f.said('num_kv_heads')} is not used")
    else:
        groups = f.whole("num_key_value_heads", f.whole("num_kv_heads", heads))
    if heads % groups:
        raise f.wrong("num_key_value_heads", f"a divisor of num_attention_heads {heads}")
    width = f.whole("head_dim", None)
    if width is None:
        hidden = f.whole("hidden_size")
        if hidden % heads:
            raise f.wrong("hidden_size", f"a multiple of num_attention_heads {heads}, because there is no head_dim")
        width = hidden // heads
        notes.append(f"head_dim is hidden_size / num_attention_heads = {width}")
    kind = "mha" if groups == heads else "mqa" if groups == 1 else "gqa"
    return {"attention": kind, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width}


# --- how it is stored ----------------------------------------------------------------------------------------------

def _quantization(f: Fields, outer: Fields, notes: list[str]) -> dict:
    """In a word or two, and the blocks that share a scale."""
    q = f.object("quantization_config") if f.has("quantization_config") else outer.object("quantization_config")
    words = [q.text("quant_method"), q.text("quant_algo"), q.text("fmt", q.text("format"))]
    block = tuple(q.wholes("weight_block_size", 1, MOST)) if q.has("weight_block_size") else None
    if block is not None and len(block) != 2:
        raise q.wrong("weight_block_size", "two whole numbers, such as [128, 128]")
    if block:
        words.append(f"with a scale for each block of {block[0]} x {block[1]}")
    bits = q.object("kv_cache_scheme").whole("num_bits", None)
    if bits:
        notes.append(f"{q.where}kv_cache_scheme asks for a cache of {bits} bits (--dtype says what is counted)")
    return {"weight_block_size": block, "quantization": " ".join(filter(None, words))}
