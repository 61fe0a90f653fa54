"""Published figures of GPUs: what fits, how fast it is read, how fast it is multiplied.

All rates are dense (data sheets print twice as much, for 2:4 sparsity) and peaks: no kernel reaches them.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..errors import unknown


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Parameters
    ----------
    name : str
    memory_gb : float
        What the data sheet calls GB.
    driver_mib : int or None
        What nvidia-smi reports as total, in MiB; None where it was not read. It is more than ``memory_gb`` x 10^9 B.
    bandwidth_tb : float
        Memory bandwidth in TB/s (10^12 B/s).
    bf16_tflops, fp8_tflops : float or None
        Dense tensor-core peaks in 10^12 FLOP/s; None where the format does not exist.
    link_gb : float
        To the other GPUs of a node, in GB/s and one direction (data sheets add both).
    source : str
    """

    name: str
    memory_gb: float
    driver_mib: int | None
    bandwidth_tb: float
    bf16_tflops: float
    fp8_tflops: float | None
    link_gb: float
    source: str

    @property
    def ridge(self) -> float:
        """FLOP per byte at which bf16 arithmetic takes as long as reading (Williams et al., CACM 52 (2009) 65)."""
        return self.bf16_tflops / self.bandwidth_tb

    def flops(self, weight_bytes: float) -> float:
        """FLOP/s of products whose weights take ``weight_bytes`` each: fp8 where they take one and the GPU has it."""
        return 1e12 * (self.fp8_tflops if weight_bytes < 1.5 and self.fp8_tflops else self.bf16_tflops)


_TABLES = "stas00/ml-engineering@0074473:compute/accelerator/README.md"
GPUS = (
    Gpu("A100", 80, None, 2.039, 312, None, 300, f"NVIDIA A100 80GB SXM data sheet; {_TABLES}"),
    Gpu("L40S", 48, 46_068, 0.864, 362, 733, 32, f"NVIDIA L40S data sheet (PCIe 4.0 x16, no NVLink); {_TABLES}"),
    Gpu("H20", 96, 97_871, 4.0, 148, 296, 450,
        "no public data sheet; secondary: citsjtu2020/LLM-Prof:hardware_spec.md (a 141 GB version exists)"),
    Gpu("H100", 80, 81_559, 3.35, 989, 1979, 450, f"NVIDIA H100 SXM data sheet; {_TABLES}"),
    Gpu("H800", 80, 81_559, 3.35, 989, 1979, 200,
        "no public data sheet; secondary: citsjtu2020/LLM-Prof:hardware_spec.md; an H100 with NVLink of 400 GB/s"),
    Gpu("H200", 141, 143_771, 4.8, 989, 1979, 450,
        f"NVIDIA H200 SXM data sheet; {_TABLES}; mlcommons/inference_results_v4.1:closed/NVIDIA/systems"),
    Gpu("B200", 180, 183_359, 8.0, 2250, 4500, 900,
        f"{_TABLES} (which has 192 GB); mlcommons/inference_results_v6.0:closed/Nebius/systems (180 GB); "
        "pytorch/ao#4002 derives 7.67 TB/s"),
    Gpu("MI300X", 192, None, 5.3, 1307, 2614, 448, f"AMD Instinct MI300X data sheet; {_TABLES} (rounded)"),
)


def get_gpu(name: str) -> Gpu:
    """The GPU called ``name``; upper and lower case and a maker's prefix do not matter."""
    wanted = str(name).strip().lower().removeprefix("nvidia").removeprefix("amd").strip(" -_")
    for gpu in GPUS:
        if gpu.name.lower() == wanted:
            return gpu
    raise unknown("GPU", name, [gpu.name for gpu in GPUS])
