"""Which kernels a trainer runs: fused or eager, how narrow operands are made, where weight gradients go, what is sent
around for attention and experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sartor.model.choices import ContextParallel, Recipe
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


NARROWING: Mapping[Recipe, Narrowing] = MappingProxyType(
    {
        Recipe.FP8_DELAYED: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.FP8_CURRENT: Narrowing(reads=2, copies=2, kernels=2),
        Recipe.FP8_ROWWISE: Narrowing(reads=4, copies=2, kernels=4, gathered=False),
        Recipe.FP8_BLOCK: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.MXFP8: Narrowing(reads=1, copies=2, kernels=1),
        Recipe.NVFP4: Narrowing(reads=2, copies=2, kernels=3),
    }
)
"""Transformer Engine's cast kernels: the largest value must be known before a tensor is narrowed under current scaling
and NVFP4 (its outer fp32 scale): a second read. Two copies: Hopper multiplies FP8 in layout TN alone, so the weight
gradient wants a transpose; block and row scales run along what is contracted, so it wants its own whatever the device.
Scales of whole rows take a pass for the largest value and one to narrow in each direction, and torchao gathers wide.
NVFP4's copy for the weight gradient passes a Hadamard transform in a kernel of its own (NVIDIA, arXiv 2509.25149, sec.
4). Kernels recalled from transformer_engine/common (2.8), 2026-11-21."""


def usual_narrowing(dtype: DType) -> Narrowing | None:
    """What training in a narrow type does where no recipe is named: that of Transformer Engine's first recipe in it.
    None for types of 16 bits and more."""
    if dtype.activation_bytes >= 2:
        return None
    return next((how for recipe, how in NARROWING.items() if recipe.dtype is dtype), Narrowing())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Habits of a trainer that change what its devices run. The defaults are Megatron-LM's."""

    fused: bool = True
    """Norm, activation, rotary and dropout with its residual are one kernel each; else chains of elementwise ones."""
    narrowing: Narrowing | None = None
    """None: training takes what is usual for its type (``usual_narrowing``); a served model has one cast beside the
    quantizing kernel that the calibration of the product may hold."""
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
