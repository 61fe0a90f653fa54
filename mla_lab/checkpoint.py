"""The attention weights of one layer, read from a safetensors checkpoint as it was published.

Names are Hugging Face's behind any prefix, or those of DeepSeek's own code; the two down-projections stand apart or
fused; numbers are float64, float32, float16, bfloat16, or e4m3 with a scale for each block. Only the bytes of that
layer are read.
"""
from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .arrays import Array, Backend
from .config import MLAConfig
from .errors import InputError, positive_int
from .fp8 import BLOCK, blocks
from .safetensors_file import Tensor, read_json, read_rows
from .shards import Checkpoint, stray
from .weights import NAMES, shapes

FUSED = "fused_qkv_a_proj_with_mqa"  # rows: query latent, latent, rope key
STEMS = {n.deepseek.removesuffix(".weight"): n.hugging_face.removesuffix(".weight") for n in NAMES}
ONLY_MLA = {FUSED, *(name for pair in STEMS.items() if pair[1].startswith("kv_") for name in pair)}
ATTENTION = re.compile(r"((?:.*\.)?layers\.(\d{1,6})\.(?:self_attn|attn)\.(?:\d+\.)?)([^.]+)\..*")
# What takes no part in dense attention: DSA's indexer, tables of positions, scales of activations.
APART = re.compile(r"indexers?[._].*|rotary_emb\..*|(?:.*\.)?(?:[qkv]|input|output)_scale")
READABLE = ("BF16", "F16", "F32", "F64")
UNKNOWN = (f"a quantisation that cannot be read (NVFP4, GPTQ, FP8 with one scale for all, ...); readable are "
           f"{', '.join(READABLE)} and F8_E4M3 with block scales called weight_scale_inv (DeepSeek's own name: scale)")


def read_layer(
    where: str | Path, layer: int, config: MLAConfig, block: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    """The weights of ``layer`` under the names of `mla_lab.weights.shapes`, all in one NumPy dtype.

    float16, float32 and float64 stay what they are; bfloat16 becomes float32 with the same values, and e4m3 the float32
    product of code and scale. If a layer mixes dtypes, all of it takes the widest.

    Parameters
    ----------
    where : path
        A folder, its index, or a single ``.safetensors`` file.
    layer : int
        Counted from 0, as in the names of the tensors.
    config : MLAConfig
    block : (int, int), optional
        Rows and columns that share a scale; by default what ``config.json`` beside the weights says, or 128 x 128.

    Raises
    ------
    InputError
        If a file is missing or damaged, a weight is missing or has another shape, index and shards disagree, or the
        layer holds something that is not understood: another quantisation, a bias.
    """
    layer, source = positive_int("layer", layer, 0), Checkpoint(where)
    block = block_size(source.folder) if block is None else _block(block)
    prefix = attention_prefix(source, layer)
    source.require(prefix)
    here = _hugging_face_names(prefix, source.files)
    try:
        plans = {leaf: _plan(leaf, here, source, config, block) for leaf in shapes(config)}
    except InputError:
        source.refuse_strays(prefix)  # says it better where a shard holds what the index lacks
        raise
    used = {tensor.name for plan in plans.values() for tensor in (plan.tensor, plan.scales) if tensor}
    for leaf, name in here.items():
        if name not in used and not APART.fullmatch(leaf):
            what = "a bias" if leaf.endswith(".bias") else "a tensor"
            raise InputError(f"{name!r} is {what} that the attention of this config does not have.")
    dtype = np.result_type(*(plan.tensor.decoded for plan in plans.values()))
    return {leaf: plan.read(dtype, block) for leaf, plan in plans.items()}


def to_backend(state: Mapping[str, np.ndarray], backend: Backend) -> dict[str, Array]:
    """The weights on ``backend``, rounded to its dtype where that is narrower than theirs."""
    return {name: backend.asarray(values) for name, values in state.items()}


def block_size(folder: Path) -> tuple[int, int]:
    """``quantization_config.weight_block_size`` of the ``config.json`` in ``folder``, 128 x 128 without one."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    for part in (config, config.get("text_config")) if isinstance(config, dict) else ():
        found = part.get("quantization_config") if isinstance(part, dict) else None
        if isinstance(found, dict) and found.get("weight_block_size") is not None:
            return _block(found["weight_block_size"])
    return BLOCK


def _block(value: object) -> tuple[int, int]:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise InputError(f"weight_block_size must be two whole numbers such as [128, 128], not {value!r}.")
    return positive_int("weight_block_size", value[0]), positive_int("weight_block_size", value[1])


# --- which tensors ---------------------------------------------------------------------------------------------------

def attention_prefix(source: Checkpoint, layer: int) -> str:
    """What the names of the layer's attention weights begin with, up to and including the last dot."""
    found = _attentions(source.files)
    if layer not in found:
        for name, file in source.strays():
            if layer in _attentions([name]):
                raise stray(name, file, source.path)
        others = f"layers that have it: {_ranges(sorted(found))}" if found else "no other layer has it either"
        raise InputError(f"layer {layer} has no MLA attention (kv_a_proj_with_mqa, ...) in {source.path}; {others}.")
    prefix, *more = sorted(found[layer])
    if more:
        raise InputError(f"layer {layer} has several attentions ({', '.join([prefix, *more])}); only one can be read.")
    return prefix


def _attentions(names: Iterable[str]) -> dict[int, set[str]]:
    """The prefixes of MLA attentions by layer, without multi-token-prediction modules that count their own layers."""
    found: dict[int, set[str]] = {}
    for match in filter(None, map(ATTENTION.fullmatch, names)):
        if match[3] in ONLY_MLA and "mtp" not in match[1].split("."):
            found.setdefault(int(match[2]), set()).add(match[1])
    return found


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as '0-2, 5'."""
    cuts = [i for i, n in enumerate(numbers) if i == 0 or n != numbers[i - 1] + 1]
    runs = [numbers[a:b] for a, b in zip(cuts, [*cuts[1:], None], strict=True)]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _hugging_face_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Hugging Face's name of each tensor of the layer, and the name that it has in the checkpoint."""
    own, found = {} if "self_attn." in prefix else STEMS, {}
    for name in names:
        if name.startswith(prefix):
            stem, dot, rest = name.removeprefix(prefix).partition(".")
            if stem in own:
                stem, rest = own[stem], "weight_scale_inv" if rest == "scale" else rest
            if (leaf := stem + dot + rest) in found:
                raise InputError(f"{found[leaf]!r} and {name!r} are one weight under two names.")
            found[leaf] = name
    return found


# --- where their rows are --------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Plan:
    """How one weight is read: rows ``start`` to ``stop`` of a tensor, with the tensor of their scales if it has any."""

    tensor: Tensor
    scales: Tensor | None
    start: int
    stop: int

    def read(self, dtype: np.dtype, block: tuple[int, int]) -> np.ndarray:
        scales = None if self.scales is None else read_rows(self.scales, 0, self.scales.shape[0])
        return read_rows(self.tensor, self.start, self.stop, dtype, scales, block)


def _plan(
    leaf: str, here: Mapping[str, str], source: Checkpoint, config: MLAConfig, block: tuple[int, int]
) -> Plan:
    (stem, _, kind), shape, start, q = leaf.rpartition("."), shapes(config)[leaf], 0, config.q_lora_rank
    rows, formula = shape[0], next((n.shape for n in NAMES if n.hugging_face == leaf), "")
    if f"{FUSED}.{kind}" in here and q and stem in ("q_a_proj", "kv_a_proj_with_mqa"):
        start = 0 if stem == "q_a_proj" else q
        stem, shape, formula = FUSED, (q + config.cached_width, *shape[1:]), "[q+r+p, d]"
    ours = [k for k in here if k.startswith(f"{stem}.") and not APART.fullmatch(k)]
    if f"{stem}.{kind}" not in here:
        for other in set(ours) - {f"{stem}.weight", f"{stem}.weight_scale_inv", f"{stem}.bias"}:
            raise InputError(f"{here[other]!r} stands in place of {leaf}, {UNKNOWN}.")
        found = ", ".join(k.removesuffix(".weight") for k in here)
        raise InputError(f"{leaf} of shape {shape} is missing in {source.path}; the layer has {found}.")
    tensor, fp8 = source.find(here[f"{stem}.{kind}"]), f"{stem}.weight_scale_inv"
    scales = [k for k in ours if "scale" in k and kind == "weight"]
    if tensor.dtype == "F8_E4M3" and not scales:
        raise InputError(f"{tensor} is F8_E4M3 without scales (weight_scale_inv), so its values are not known.")
    if scales != [fp8] * (tensor.dtype == "F8_E4M3") or tensor.dtype not in (*READABLE, "F8_E4M3"):
        raise InputError(f"{tensor} is {tensor.dtype}{' with ' * bool(scales)}{' and '.join(scales)}, {UNKNOWN}.")
    if tensor.shape != shape:
        sizes = {"h": config.num_attention_heads, "d": config.hidden_size, "q": q, "r": config.kv_lora_rank,
                 "n": config.qk_nope_head_dim, "p": config.qk_rope_head_dim, "v": config.v_head_dim}
        filled = re.sub("[a-z]", lambda letter: str(sizes[letter[0]]), formula)
        raise InputError(f"{tensor} has shape {tensor.shape}, but this config needs {shape}"
                         f"{f': {formula} is {filled}' if formula else ''}.")
    return Plan(tensor, _scales(source.find(here[fp8]), shape, block) if scales else None, start, start + rows)


def _scales(tensor: Tensor, shape: tuple[int, ...], block: tuple[int, int]) -> Tensor:
    want = blocks(shape, block) if len(shape) == 2 else "no"
    if tensor.shape != want or tensor.dtype not in ("F32", "BF16", "F16", "F8_E8M0"):
        raise InputError(f"{tensor} is {tensor.dtype} of shape {tensor.shape}, but a weight of shape {shape} in blocks "
                         f"of {block[0]} x {block[1]}, cut short at its edges, needs float scales of shape {want}.")
    return tensor
