"""Kernels that quantize a GEMM's input, which frameworks' tables time together with it.

Timed alone, every framework quantizes a 16-bit input: vLLM and SGLang in one kernel, TensorRT-LLM's fp8 in three, as a
layer without a checkpoint has no scale (one clears it, one looks for the largest element, one narrows). In a model the
scale is the checkpoint's, so one is left; its nvfp4 inputs come quantized from norms, attention and activations.

Read in TensorRT-LLM (cpp/tensorrt_llm/common/cudaFp8Utils.cu, _torch/modules/linear.py) and in the collectors of
ai-dynamo/aiconfigurator (collector/*/collect_gemm.py) on 2026-11-27; times are fitted (lab/fit_gemm_kernels.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sartor.operators import DType
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantizing:
    """Kernels before one GEMM."""

    kernels: int
    element_bytes: float
    """Their traffic per element of the input."""

    def time_s(self, elements: Floats, kernel_s: float, byte_s: float) -> Floats:
        """Seconds for an input of so many elements, at these per kernel and per byte."""
        return self.kernels * kernel_s + self.element_bytes * byte_s * elements


ALONE: Mapping[tuple[str, DType], Quantizing] = MappingProxyType(
    {("trtllm", DType.FP8): Quantizing(kernels=3, element_bytes=5.0)}
)
"""By framework and type, in a GEMM timed alone, where it is not one kernel."""

IN_A_MODEL: Mapping[tuple[str, DType], Quantizing] = MappingProxyType(
    {
        ("trtllm", DType.FP8): Quantizing(kernels=1, element_bytes=3.0),
        ("trtllm", DType.NVFP4): Quantizing(kernels=0, element_bytes=0.0),
    }
)
"""The same in a model, where it differs."""


def quantizing_of(framework: str, dtype: DType, *, alone: bool) -> Quantizing:
    """The kernels of a framework that quantize the input of a GEMM of this type."""
    once = Quantizing(kernels=1, element_bytes=2.0 + dtype.bytes)
    timed = ALONE.get((framework, dtype), once)
    return timed if alone else IN_A_MODEL.get((framework, dtype), timed)


def waits_for_the_host(kernels: str, dtype: DType) -> bool:
    """Whether GEMMs of this type were timed call by call, not from a graph (``use_cuda_graph`` in the collector)."""
    return (kernels.partition("_")[0], dtype) == ("vllm", DType.FP8_BLOCK)
