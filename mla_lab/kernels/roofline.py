"""The roofline: a kernel is no faster than its FLOPs at full arithmetic and its bytes at full bandwidth allow.

Williams, Waterman, Patterson, "Roofline", CACM 52 (2009) 65. The two limits meet at the ridge, the intensity in FLOP/B
where a machine does both at once.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..config import MLAConfig
from .counts import Work


@dataclass(frozen=True)
class Device:
    """A machine by two numbers: FLOP/s of 16-bit matrix products without sparsity, and B/s of its memory."""

    name: str
    flops: float
    bandwidth: float
    source: str

    @property
    def ridge(self) -> float:
        """FLOP/B above which arithmetic is the limit."""
        return self.flops / self.bandwidth

    def seconds(self, work: Work) -> float:
        """The nearer limit as a time: nothing takes less."""
        return max(work.flops / self.flops, work.bytes / self.bandwidth)

    def attainable(self, intensity: float) -> float:
        """FLOP/s at this intensity: the roof."""
        return min(self.flops, self.bandwidth * intensity)

    def bound(self, intensity: float) -> str:
        """'memory' or 'compute'."""
        return "compute" if intensity > self.ridge else "memory"

    def rows_at_ridge(self, config: MLAConfig, itemsize: int = 2) -> float:
        """Query rows (heads x new tokens) at which decode over a long cache changes from memory- to compute-bound."""
        return self.ridge / (intensity_limit(config, itemsize=itemsize) / config.num_attention_heads)


def intensity_limit(config: MLAConfig, new: int = 1, itemsize: int = 2) -> float:
    """FLOP/B of absorbed decode as the cache grows: ``2 h t (2r + p) / ((r + p) itemsize)``; queries count no more."""
    r, p = config.kv_lora_rank, config.qk_rope_head_dim
    return 2 * config.num_attention_heads * new * (2 * r + p) / ((r + p) * itemsize)


DEVICES = {device.name: device for device in (
    Device("H800", 990e12, 3.35e12, "NVIDIA's data sheet for H100 SXM5"),
    Device("H800, throttled", 865e12, 3.35e12, "FlashMLA's deep dive of 2025-04-22: about 1,600 MHz under load"),
    Device("H200", 990e12, 4.8e12, "NVIDIA's data sheet"),
    Device("H200, measured", 790e12, 4.3e12, "bf16 product and copy of one H200; not measured by this code"),
    Device("H20", 148e12, 4.0e12, "NVIDIA's data sheet"),
    Device("B200", 2250e12, 8.0e12, "NVIDIA's data sheet"),
)}
