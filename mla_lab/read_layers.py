"""Which layers of a published configuration keep a cache that grows with the context, and which have an indexer."""
from __future__ import annotations

from .config_fields import Fields
from .errors import InputError, short

MOST_LAYERS = 10_000
# Words of ``layer_types``, as transformers and released configurations spell them.
GROWS = {"full_attention", "indexed_attention", "deepseek_sparse_attention", "attention"}
DOES_NOT_GROW = {"linear_attention", "sliding_attention", "chunked_attention", "mamba", "conv", "recurrent"}
# Keys that say in other ways which layers keep what; a count that passed over them would be wrong.
OTHER_PATTERNS = ("hybrid_override_pattern", "layers_block_type", "attn_layer_period", "attn_layer_indices",
                  "attn_type_list", "num_kv_shared_layers", "per_layer_config", "block_configs")
OWN = {"full": True, "F": True, "shared": False, "S": False}  # indexers


def attending(f: Fields, notes: list[str]) -> list[bool]:
    """For each layer, whether its kind of attention keeps every token."""
    for key in OTHER_PATTERNS:
        if f.get(key):
            raise InputError(f"{f.where}{key} says which layers cache what in a way that is not read here.")
    n, kind, hybrid = _layers(f, notes), f.text("model_type"), f.object("linear_attn_config")
    by_type = by_list = None
    if f.has("layer_types"):
        words = f.get("layer_types")
        if not isinstance(words, (list, tuple)) or len(words) != n:
            raise f.wrong("layer_types", f"a list with a word for each of the {n} layers")
        odd = next((w for w in words if not isinstance(w, str) or w not in GROWS | DOES_NOT_GROW), None)
        if odd is not None:
            raise InputError(f"{f.where}layer_types has {short(odd)}, which is not known; "
                             f"known: {', '.join(sorted(GROWS | DOES_NOT_GROW))}.")
        by_type = [word in GROWS for word in words]
    if hybrid.has("full_attn_layers"):
        full = hybrid.wholes("full_attn_layers", 1, n)  # counted from 1
        others = hybrid.wholes("kda_layers", 1, n) if hybrid.has("kda_layers") else set(range(1, n + 1)) - set(full)
        if sorted([*full, *others]) != list(range(1, n + 1)):
            raise InputError(f"{hybrid.where}full_attn_layers and kda_layers must together name each layer once, from "
                             f"1 to {n}.")
        by_list = [i + 1 in full for i in range(n)]
        if by_type not in (None, by_list):
            raise InputError(f"{f.where}layer_types and {hybrid.where}full_attn_layers disagree; one must be wrong.")
    elif by_type is None and (f.has("linear_attn_config") or kind == "kimi_linear"):
        raise InputError(f"{f.where}linear_attn_config.full_attn_layers is missing; it must list the layers with a "
                         "cache that grows.")
    if by_type is None and by_list is None:
        return _groups(f, n, notes)
    return by_list if by_type is None else by_type


def _layers(f: Fields, notes: list[str]) -> int:
    if f.text("model_type").startswith("longcat"):
        n = f.whole("num_layers", most=MOST_LAYERS)
        if f.whole("num_hidden_layers", n) not in (n, 2 * n):
            raise f.wrong("num_hidden_layers", f"num_layers {n} or twice that")
        notes.append(f"{n} layers of two attentions each")
        return 2 * n
    old = f.has("n_layer") and not f.has("num_hidden_layers")
    return f.whole("n_layer" if old else "num_hidden_layers", most=MOST_LAYERS)


def _groups(f: Fields, n: int, notes: list[str]) -> list[bool]:
    """All layers, or the last one of each group where the configuration says how large a group is."""
    for key in ("layer_group_size", "full_attention_interval"):
        size = f.whole(key, 1)
        if n % size:
            raise InputError(f"{f.where}num_hidden_layers {n} is not a multiple of {key} {size}, and code differs on "
                             "what the last few layers are.")
        if size > 1:
            return [(i + 1) % size == 0 for i in range(n)]
    for key in ("sliding_window", "attention_chunk_size"):
        if f.has(key) and f.flag("use_sliding_window", True):
            notes.append(f"layers with {key} {f.whole(key):,} keep no more tokens than that: the count holds up to it")
    return [True] * n


def owning(f: Fields, attends: list[bool]) -> list[bool]:
    """For each layer, whether it attends to a cache of its own that keeps every token."""
    n = len(attends)
    sources = f.wholes("kv_source_layers", 0, n - 1) if f.has("kv_source_layers") else list(range(n))
    if len(sources) != n:
        raise f.wrong("kv_source_layers", f"a list with a number for each of the {n} layers")
    return [kept and source == i for i, (kept, source) in enumerate(zip(attends, sources, strict=True))]


def mtp_layers(f: Fields) -> int | None:
    """Multi-token-prediction layers; None if nothing is said about them."""
    keys = [key for key in ("num_nextn_predict_layers", "num_mtp_layers") if f.has(key)]
    f.agreed(*keys)
    return f.whole(keys[0], least=0) if keys else None


def index_layers(f: Fields, attends: list[bool], notes: list[str]) -> dict:
    """The index keys of sparse attention: their width, and how many layers have an indexer of their own."""
    width, n = f.whole("index_head_dim", None), len(attends)
    if width is None:
        return {}
    if f.whole("index_kpool", 1) > 1:
        notes.append(f"its indexer pools {f.get('index_kpool')} tokens, and what it caches is not counted")
        return {}
    notes.append("sparse attention (DSA), of which the dense path is read")
    words = f.get("indexer_types", f.get("index_topk_pattern"))
    key = "indexer_types" if f.has("indexer_types") else "index_topk_pattern"
    if words is not None:
        if not isinstance(words, (str, list, tuple)) or len(words) != n or any(
                not isinstance(word, str) or word not in OWN for word in words):
            raise f.wrong(key, f"'full' or 'shared' for each of the {n} layers")
        own = [OWN[word] for word in words]
    else:
        every = f.whole("index_topk_freq", 4 if f.text("model_type").startswith("hy_v4") else 1)
        start = f.whole("index_skip_topk_offset", 2, least=0)
        own = [max(i - start + 1, 0) % every == 0 for i in range(n)]
    return {"index_head_dim": width, "index_layers": sum(a and o for a, o in zip(attends, own, strict=True))}
