"""A GEMM whose last wave of tiles leaves most SMs idle.

## What it finds

The feed-forward GEMM that loses most time in its last wave, if another feed-forward width within 3% is predicted to be
faster. Always information: kernels that split work along k may hide part of the loss.

## Why it costs

Tiles run on SMs in waves: 109 tiles on 108 SMs take as long as 216. Wave efficiency gives an upper bound of the
loss. On a chip described by its parts, tiles run on tensor cores in the same way.

## Example

M = 2304, N = 1600 on an A100: 117 tiles of 256 x 128, two waves; N = 1536 takes one.

## Fix

The nearby feed-forward width that is predicted to be fastest for the same work. Only this width is tried, because no
other size depends on it.

## Source

arXiv 2401.14489 (2024-01), wave quantization; NVIDIA Matrix Multiplication Background.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.operators import Gemm, Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, fixes_of, within

WORTH_A_LOOK = 0.01
"""Least share of the step that the tail must take."""


def tail_wave(context: Context) -> Iterator[Suspicion]:
    part, tp = context.shape.dense_ffn, int(context.priced_dims.tp)
    gpu = context.gpu
    if part is None or (gpu.matrix_tile and not gpu.accelerator):  # How a TPU's compiler assigns tiles is unknown.
        return
    lost_s, name, efficiency = max(_tails(context), default=(0.0, "", 1.0))
    if lost_s < WORTH_A_LOOK * float(context.baseline.time_s):
        return
    width, cores = int(part.ffn_hidden_size), "tensor cores" if gpu.accelerator else "SMs"
    yield Suspicion(
        grade=Grade.INFO,
        message=f"{name} keeps {100 * efficiency:.0f}% of {gpu.num_sms} {cores} busy (wave quantization);"
        f" a width near ffn_hidden_size={width} is faster",
        field="ffn_hidden_size",
        value=width,
        operator=name,
        fixes=fixes_of("ffn_hidden_size", within(width, context.alignment.preferred * tp), width),
        advisory=True,
    )


def _tails(context: Context) -> Iterator[tuple[float, str, float]]:
    """Seconds of the step that an idle last wave may cost, by GEMM of the dense feed-forward part."""
    for operator, cost in zip(context.baseline.graph.operators, context.baseline.costs, strict=True):
        efficiency = float(cost.details.get("wave_efficiency", 1.0))
        if isinstance(operator, Gemm) and operator.role in (Role.FFN_UP, Role.FFN_DOWN):
            yield float(cost.time_s * operator.count) * (1 - efficiency), operator.name, efficiency


RULE = Rule(code="R15", check=tail_wave, worst=Grade.INFO, page=__doc__ or "")
