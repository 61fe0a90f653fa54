"""Ways to get MLA's successors wrong, as values of `mla_lab.after.checks15_after.Rules`. Each happened in public."""
from __future__ import annotations

from array_api_compat import array_namespace, device

from .. import footprint as fp
from ..arrays import Array
from ..faults import Fault
from ..models import Model
from .convert import rank_factors
from .sizes import INDEX, R
from .sparse import best_visible


def identity(x: Array) -> Array:
    return x


def before_the_mask(scores: Array, visible: Array, k: int) -> Array:
    return best_visible(scores, visible | True, k)


def worst_visible(scores: Array, visible: Array, k: int) -> Array:
    return best_visible(-scores, visible, k)


def for_each_head(model: Model) -> int:
    return 64 * fp.index_bytes(model)


def latent_twice(method: str, values: int) -> int:
    return values + R if "MLA" in method else values


def without_index(method: str, values: int) -> int:
    return values - INDEX if "DSA" in method else values


def alternating(head: int, heads: int, groups: int) -> int:
    return head % groups


def cache_turned_only(q: Array, c: Array, basis: Array) -> tuple[Array, Array]:
    return q, c @ basis


def two_latents(w_k: Array, w_v: Array) -> tuple[Array, Array, Array]:
    """Keys and values factored apart: a latent for each."""
    xp, parts = array_namespace(w_k), [rank_factors(w) for w in (w_k, w_v)]
    (up_k, down_k), (up_v, down_v) = parts
    none_k, none_v = (xp.zeros((up.shape[0], other.shape[1]), dtype=up.dtype, device=device(up)) for up, other in (
        (up_k, up_v), (up_v, up_k)))
    return (xp.concat([up_k, none_k], axis=1), xp.concat([none_v, up_v], axis=1), xp.concat([down_k, down_v], axis=0))


FAULTS = (
    Fault("index_without_relu", "negative finds of an index head are subtracted", "huggingface/transformers#44398",
          {"activation": identity}, ("15.scores",), "with one index head and a positive weight the order is the same"),
    Fault("chosen_before_the_mask", "the best keys are chosen among all, future ones too",
          "huggingface/transformers#45820", {"choose": before_the_mask}, ("15.chosen", "15.dense"),
          "a decode step sees every key in any case"),
    Fault("wrong_end_chosen", "the keys with the lowest scores are kept", "1bit-MONSTER/1bit-MONSTER#2418",
          {"choose": worst_visible}, ("15.chosen",), "while k covers all that is cached both ends are the same"),
    Fault("index_key_per_head", "index keys are counted for each of the 64 index heads",
          "ROCm/rocm-libraries#11881", {"index_bytes": for_each_head}, ("15.index_keys",),
          "queries do have a part for each index head"),
    Fault("index_keys_not_counted", "the cache is planned without index keys", "sgl-project/sglang#11309",
          {"values": without_index}, ("15.sizes",), "below the limit of memory nothing happens"),
    Fault("latent_for_key_and_value", "the latent is counted once for keys and once for values",
          "LMCache/LMCache#694", {"values": latent_twice}, ("15.sizes",), "for GQA the factor 2 is right"),
    Fault("groups_alternate", "query heads take turns with the groups instead of sharing one with their neighbours",
          "ekzhang/jax-js#180", {"group_of": alternating}, ("15.gla", "15.gta", "15.converted"),
          "with one group, or as many as heads, both orders are the same"),
    Fault("cache_turned_only", "the cache is stored in another basis and the query is not",
          "unslothai/llama.cpp#129", {"turn": cache_turned_only}, ("15.tpla",), "every shape fits"),
    Fault("latents_apart", "keys and values are factored apart, and the latent is wider than it must be",
          "fxmeng/TransMLA#6", {"factors": two_latents}, ("15.joint_rank",),
          "scores and outputs are right; only the cache is larger"),
)
