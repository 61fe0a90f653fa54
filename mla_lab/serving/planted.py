"""Ways to get parallel attention wrong, as right rules with a value replaced. Each of them happened in public."""
from __future__ import annotations

import math

from ..arrays import Array, narrow, wide
from ..config import MLAConfig
from ..errors import unknown
from ..faults import Fault
from .comm import Comm
from .parallel import RIGHT, Rules, own_share


def mirrored_columns(heads: int, rank: int, size: int) -> slice:
    return own_share(heads, size - 1 - rank, size)


def on_every_rank(rank: int) -> bool:
    return True


def left_partial(comm: Comm, partial: Array) -> Array:
    return partial


def one_request_set(batch: int, rank: int, size: int) -> slice:
    return own_share(batch, 0, size)


def sharded_latent(config: MLAConfig, size: int) -> int:
    return config.cached_width // size


def local_position(index: Array, rank: int, size: int) -> Array:
    return index


def base_two(lse: Array) -> Array:
    return lse * math.log2(math.e)


def averaged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return narrow(sum(wide(heads) for heads, _ in parts) * (1 / len(parts)), parts[0][0]), parts[0][1]


PLANTED = (
    Fault("bias_on_every_rank", "each rank adds the output bias before the all-reduce",
          "huggingface/text-generation-inference#1036", {"has_bias": on_every_rank}, ("12.tp", "12.processes"),
          "DeepSeek's layers have no output bias, and on one rank nothing is wrong"),
    Fault("columns_of_other_heads", "the output projection is cut by another order of ranks than the heads",
          "NVIDIA-NeMo/Automodel#1324", {"columns": mirrored_columns}, ("12.tp",),
          "every shape fits, and on one rank the order is the same"),
    Fault("no_all_reduce", "a rank takes its own heads' output for the whole", "FlashML-org/FreeToken#429",
          {"combine": left_partial}, ("12.tp", "12.communication"), "a partial sum still decodes to fluent text"),
    Fault("latent_budgeted_as_sharded", "the latent is counted as if it were dealt out with the heads",
          "tenstorrent/tt-xla#5861", {"elements": sharded_latent}, ("12.replicated",),
          "a small test never fills the memory that was promised twice"),
    Fault("same_requests_everywhere", "every rank serves the first share of the batch", "sgl-project/sglang#4149",
          {"requests": one_request_set}, ("12.dp",), "requests that are all alike give answers that are all alike"),
    Fault("masked_by_local_position", "the causal mask counts a rank's own tokens instead of absolute positions",
          "lightseekorg/tokenspeed#364", {"key_position": local_position}, ("12.cp",),
          "a step of one token sees every cached key in any case"),
    Fault("merged_without_lse", "the ranks' parts are averaged with equal weights", "vllm-project/vllm#27491",
          {"merge": averaged}, ("12.cp",), "with striped tokens the parts weigh nearly the same"),
    Fault("lse_of_base_two", "a kernel's base-2 LSE goes into a merge by natural exponentials", "antgroup/sglang#29",
          {"lse": base_two}, ("12.cp",), "with striped tokens the parts weigh nearly the same"),
)


def fault_of(rules: Rules) -> str | None:
    """The fault that ``rules`` have in them."""
    return next((planted.id for planted in PLANTED if planted.spoil(RIGHT) == rules), None)


def rules_under(fault: str | None) -> Rules:
    """The right rules, or those of the fault called ``fault``."""
    if fault is None:
        return RIGHT
    for planted in PLANTED:
        if planted.id == fault:
            return planted.spoil(RIGHT)
    raise unknown("fault", fault, [planted.id for planted in PLANTED])
