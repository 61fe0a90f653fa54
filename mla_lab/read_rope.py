"""How the rope key of a published MLA configuration turns, from ``rope_parameters`` or the older ``rope_scaling``."""
from __future__ import annotations

import math
from collections.abc import Mapping

from .config import Yarn
from .config_fields import Fields
from .errors import InputError, short

UNTYPED = {"rope_theta", "partial_rotary_factor", "mrope_section"}  # a block of these alone scales nothing
# What is in the code of a class and not in its configurations, by model_type.
HALF_SPLIT = {"minicpm3", "hy_v4"}
NEVER_ROTATED = {"kimi_linear"}


def read_rope(f: Fields, p: int, notes: list[str]) -> tuple[dict, str]:
    """The fields of `MLAConfig` that concern rotation, and what about it the mathematics here lacks ('' if nothing)."""
    kind = f.text("model_type")
    found = {"rope_interleave": f.flag("rope_interleave", kind not in HALF_SPLIT),
             "mla_use_nope": f.flag("mla_use_nope", kind in NEVER_ROTATED or p == 0)}
    if found["mla_use_nope"]:
        return found, ""
    block = _block(f)
    parts = list(block.values.values())
    if parts and all(isinstance(part, Mapping) for part in parts):  # one block for each type of layer
        if any(part != parts[0] for part in parts):
            return found, f"{block.where}* differ by the type of layer"
        block = Fields(parts[0], f"{block.where}{next(iter(block.values))}.")
    theta = _theta(f, block)
    if theta is None:
        return found, f"{f.where}rope_theta is missing, so its frequencies are not known"
    found["rope_theta"] = theta
    name = _type(block)
    if name == "default":
        return found, ""
    if name not in ("yarn", "deepseek_yarn"):
        return found, f"{block.where}rope_type {short(name)} is not among the rotations here, default and yarn"
    found["rope_scaling"] = _yarn(block, notes)
    exact_corners = not block.flag("truncate", True)
    return found, f"{block.where}truncate is false, and YaRN's corners are rounded here" if exact_corners else ""


def _block(f: Fields) -> Fields:
    """The one block that is there, of the new name or the old one."""
    there = [key for key in ("rope_parameters", "rope_scaling") if f.has(key) and f.object(key).values]
    if len(there) == 2:
        new, old = (_normal(f.object(key).values) for key in there)
        if new != old:
            raise InputError(f"{f.where}rope_parameters and rope_scaling disagree; only one of them can be right.")
    return f.object(there[0] if there else "rope_parameters")


def _normal(block: Mapping) -> dict:
    named = {"rope_type" if key == "type" else key: value for key, value in block.items()}
    return {key: value for key, value in named.items() if key != "rope_theta" and value is not None}


def _type(block: Fields) -> str:
    name = block.agreed("rope_type", "type")
    if name is None:
        if set(block.values) - UNTYPED:
            raise InputError(f"{block.where.removesuffix('.')} has neither rope_type nor type; it must say which, such "
                             "as 'yarn' or 'default'.")
        return "default"
    if not isinstance(name, str):
        raise block.wrong("rope_type" if block.has("rope_type") else "type", "text")
    return name


def _theta(f: Fields, block: Fields) -> float | None:
    """From inside the block or beside it; both may say it, but then the same."""
    inside, beside = block.real("rope_theta", None, above=1), f.real("rope_theta", None, above=1)
    if None not in (inside, beside) and inside != beside:
        raise InputError(f"{block.where}rope_theta {inside:g} and {f.where}rope_theta {beside:g} disagree; "
                         "only one of them can be right.")
    return beside if inside is None else inside


def _yarn(block: Fields, notes: list[str]) -> Yarn:
    """YaRN as transformers reads it.

    ``mscale_all_dim`` absent or 0 means no mscale squared in the softmax scale. The table is multiplied by the quotient
    of the two mscales only if both are there, and by the mscale of 1 otherwise; ``attention_factor`` overrides both.
    DeepSeek's own code takes a missing ``mscale`` as 1 and a missing ``mscale_all_dim`` as 0 and always forms the
    quotient: the same if both or neither are there, so a note is left if one is.
    """
    factor, table = block.real("factor"), block.real("attention_factor", None)
    one, all_dim = block.real("mscale", 0.0, zero=True), block.real("mscale_all_dim", 0.0, zero=True)
    if table is None and not (one and all_dim):
        table = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
        if one or all_dim:
            here, gone = ("mscale", "mscale_all_dim") if one else ("mscale_all_dim", "mscale")
            notes.append(f"{block.where}{here} without {gone} is read as in transformers, not as in DeepSeek's code")
    return Yarn(
        factor, block.whole("original_max_position_embeddings"), block.real("beta_fast", 32.0),
        block.real("beta_slow", 1.0), one, all_dim, table, block.real("llama_4_scaling_beta", 0.0, zero=True))
