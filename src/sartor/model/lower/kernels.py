"""Which kernels a trainer runs: fused or eager, how narrow operands are made, where weight gradients go, what is sent
around for attention and experts."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.model.training import ContextParallel
from sartor.operators import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """How a recipe makes an 8- or 4-bit operand of a 16-bit tensor."""

    reads: int = 1
    """Times the wide tensor is read: once, and once more where its largest value must be known first."""
    copies: int = 2
    """Narrow copies written: a second where the weight gradient needs another layout or scales along tokens."""
    kernels: int = 1
    gathered: bool = True
    """Sequence parallelism gathers what is narrow already."""
    weights: bool = False
    """Weights are narrowed again for every microbatch, not once a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Habits of a trainer that change what its devices run. The defaults are Megatron-LM's."""

    fused: bool = True
    """Norm, activation, rotary and dropout with its residual are one kernel each; else chains of elementwise ones."""
    narrowing: Narrowing | None = None
    """None: one cast beside whatever quantizing kernel the calibration of the product holds (as served models do)."""
    weight_gradients: bool = True
    """False: the weights are frozen (adapters)."""
    accumulates: bool = True
    """Weight gradients are added to a main gradient by the product itself (Megatron's gradient accumulation fusion);
    else written in the operands' wide type."""
    gradient_bytes: float = 0.0
    """Traffic per weight of adding its gradient to that of earlier microbatches in a kernel of its own."""
    strided_heads: bool = False
    """Unfused attention reads heads where the projection left them (Megatron's [tokens, batch x heads x head_dim]): a
    head that does not start on 16 bytes keeps its products off the matrix units."""
    grouped_apart: bool = False
    """Experts' products may run as one library product each, side by side on a few streams, where that is faster."""
    main_grad: DType = DType.FP32
    context_parallel: ContextParallel = ContextParallel.RING
    dispatch_once_per: int = 0
    """Devices (neighbours by number) that a token is sent to once, however many of its experts they hold; 0: it goes to
    each of its experts."""
    splits_experts: bool = True
    """Tensor parallelism divides every expert; else its ranks are expert-parallel ranks, and experts stay whole
    (Megatron's ``expert_tensor_parallel_size`` 1)."""
