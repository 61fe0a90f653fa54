"""Ways to estimate serving wrongly, as right rules with a value replaced. Each of them happened in public."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from ..faults import Fault
from .capacity import Deployment
from .gpus import Gpu
from .parameters import Parameters
from .requests import Rates, Request


class SharedLatent(Deployment):
    """Counts a latent as if tensor parallelism dealt it out."""

    def token_bytes_per_gpu(self) -> Fraction:
        return self.token_bytes() / (self.gpus if self.parallel == "tp" else 1)


class NoWeights(Deployment):
    """Gives all memory to the cache."""

    def weight_bytes_per_gpu(self) -> Fraction:
        return Fraction(0)

    def weight_bytes(self) -> Fraction:
        return Fraction(0)


def every_expert(p: Parameters) -> int:
    return p.total


def with_sparsity(gpu: Gpu) -> Gpu:
    return replace(gpu, bf16_tflops=2 * gpu.bf16_tflops, fp8_tflops=gpu.fp8_tflops and 2 * gpu.fp8_tflops)


def bits_as_bytes(gigabits: float) -> float:
    return gigabits


def service_alone(request: Request) -> float:
    return min(request.ttft, 0.05)


def over_all_tokens(request: Request) -> float:
    return (request.last - request.first) / request.outputs


def free_prompts(rates: Rates) -> Rates:
    return replace(rates, prefill=nothing)


def nothing(prompts: Sequence[int]) -> float:
    return 0.0


def all_at_full_price(inputs: float, hits: float, outputs: float, price_hit: float, price_miss: float,
                      price_output: float) -> float:
    return inputs * price_miss + outputs * price_output


PLANTED = (
    Fault("every_expert_active", "a token is taken to use all experts", "snowflakedb/ArcticTraining#289",
          {"active": every_expert}, ("13.sizes",), "for a dense model it is true"),
    Fault("weights_forgotten", "all memory is given to the cache", "anthony-chaudhary/fak#12415",
          {"deployment": NoWeights}, ("13.machines", "13.eight_h100", "13.outgrows"),
          "for a small model on a large GPU the weights hardly matter"),
    Fault("peaks_with_sparsity", "the data sheet's larger number is taken, which is for 2:4 sparse matrices",
          "deepseek-ai/FlashMLA#75", {"gpu": with_sparsity}, ("13.memory_bound",), "a factor of 2 is often efficiency"),
    Fault("latent_shared_by_tp", "users are counted as if tensor parallelism dealt the latent out",
          "tenstorrent/tt-xla#5861", {"deployment": SharedLatent}, ("13.deal_out",), "on one GPU the count is right"),
    Fault("bits_for_bytes", "a link of 400 Gb/s carries 400 GB/s", "inference-sim/inference-sim#806",
          {"link": bits_as_bytes}, ("13.transfer",), "MLA's cache hides behind its prefill in any case"),
    Fault("queue_left_out", "the time to the first token begins when the prompt is taken up, not when it came",
          "openfabric-systems/simllm#42", {"ttft": service_alone}, ("13.simulator",), "without load there is no queue"),
    Fault("tpot_over_all_tokens", "the time after the first token is divided by all tokens",
          "gpustack/gpustack#3427", {"tpot": over_all_tokens}, ("13.simulator",),
          "with many tokens it is nearly right"),
    Fault("prompts_cost_nothing", "a prefill does not hold up those who decode on the same node",
          "ai-dynamo/aiconfigurator#1166", {"node": free_prompts}, ("13.apart",),
          "a single request never waits for another one's prompt"),
    Fault("hits_at_full_price", "inputs found in the cache are billed like the others", "mnfst/llm-gateway#2051",
          {"revenue": all_at_full_price}, ("13.day",), "without cache hits the sum is the same"),
)
