"""A ``torch.nn.Module`` with the signature of Hugging Face's attention classes, as the protocol ``layer``."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import InputError
from ..rope import frequencies, table_scale
from .cases import config_from

CACHE_NAMES = ("past_key_values", "past_key_value", "cache", "layer_past")


class GrowingCache:
    """The part of Hugging Face's cache that an attention layer uses: keys and values, concatenated."""

    def __init__(self):
        self.held: tuple | None = None

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple:
        import torch
        new = (keys, values)
        self.held = new if self.held is None else tuple(
            torch.cat([old, more], dim=-2) for old, more in zip(self.held, new, strict=True))
        return self.held

    def get_seq_length(self, *_: Any) -> int:
        return 0 if self.held is None else self.held[0].shape[-2]


def as_layer(make: Callable[[dict], Any]) -> Callable:
    """The function ``layer(hidden, weights, config, cache=None)`` around what ``make(config)`` returns.

    ``make`` gets the fields of config.json and returns the attention module, or the module and the rotary embedding
    that its model would call, ``rotary(hidden, position_ids)``. Without one, the module is handed cos and sin
    ``[b, t, p]``, each pair's angle in both halves, as transformers' Llama-like models do.
    """

    def layer(hidden: Any, weights: dict, config: dict, cache: Any = None) -> tuple[Any, Any]:
        import torch
        if cache is None:
            made = make(config)
            module, rotary = made if isinstance(made, tuple) else (made, None)
            if not isinstance(module, torch.nn.Module):
                raise InputError(f"the factory must return a torch.nn.Module, or one and its rotary embedding, not "
                                 f"{type(module).__name__}.")
            module = module.to(hidden.dtype).eval()
            load(module, weights)
            cache = (module, rotary, GrowingCache(), 0)
        module, rotary, held, start = cache
        b, t, _ = hidden.shape
        at = torch.arange(start, start + t)[None].expand(b, t)
        known = inspect.signature(module.forward).parameters
        given = {"hidden_states": hidden, "position_embeddings": embeddings(hidden, at, config, rotary),
                 "attention_mask": mask(start, t, hidden), "position_ids": at, "cache_position": at[0],
                 "use_cache": True, **{name: held for name in CACHE_NAMES}}
        with torch.no_grad():
            result = module(**{name: value for name, value in given.items() if name in known})
        return result[0] if isinstance(result, tuple) else result, (module, rotary, held, start + t)

    return layer


def load(module: Any, weights: dict) -> None:
    """Put the battery's weights into the module's own parameters; every name and shape must be the module's."""
    own = module.state_dict()
    for name in {*own, *weights}:
        if name not in own or name not in weights:
            where = "module" if name not in own else "battery"
            raise InputError(f"the {where} has no weight {name!r}; parameters must have Hugging Face's names.")
        if own[name].shape != weights[name].shape:
            raise InputError(f"weight {name!r} has shape {tuple(own[name].shape)} in the module, but its configuration "
                             f"makes {tuple(weights[name].shape)}.")
    module.load_state_dict(weights)


def embeddings(hidden: Any, at: Any, config: dict, rotary: Any) -> Any:
    """What the module is handed as ``position_embeddings``."""
    import torch
    if rotary is not None:
        return rotary(hidden, at)
    ours = config_from(config)
    angle = at[..., None].double() * torch.from_numpy(frequencies(ours))
    both = torch.cat([angle, angle], dim=-1)
    return tuple((f(both) * table_scale(ours)).to(hidden.dtype) for f in (torch.cos, torch.sin))


def mask(start: int, t: int, hidden: Any) -> Any:
    """Additive causal mask [b, 1, t, s], aligned bottom-right."""
    import torch
    query, key = torch.arange(t)[:, None] + start, torch.arange(start + t)[None, :]
    shut = torch.finfo(torch.bfloat16).min  # finite in every dtype that a softmax may run in
    additive = torch.zeros(t, start + t, dtype=hidden.dtype).masked_fill(key > query, shut)
    return additive.expand(hidden.shape[0], 1, t, start + t)
