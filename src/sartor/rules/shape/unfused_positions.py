"""Rotary embeddings that run as separate kernels.

## What it finds

Rotary embedding kernels that take 1% of the step or more.

## Why it costs

Separate kernels read and write queries and keys once more. Fused into the attention kernel or the epilogue of the
projection, rotary embeddings are nearly free. The gain shown is an upper bound.

## Example

Any model with rotary embeddings run by an eager framework.

## Fix

Not in the shape: use a fused kernel.

## Source

Derived from the traffic of the separate kernel; no published measurement (2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sartor.model.layer import AttentionMixer, Layer, Mixer
from sartor.model.shape import TransformerShape
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion


def unfused_positions(context: Context) -> Iterator[Suspicion]:
    mixer = context.shape.attention
    if not isinstance(mixer, AttentionMixer) or not mixer.rotary_dim:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message="separate rotary embedding kernels read and write queries and keys once more; fused kernels do not",
        field="head_dim",
        value=int(mixer.head_dim),
        operator=context.operator(Role.ROTARY),
        remedy=_without_rotary(context.shape),
        advisory=True,
    )


def _without_rotary(shape: TransformerShape) -> TransformerShape:
    """The same model with position embeddings that cost nothing."""
    main = shape.main
    runs = tuple(replace(run, layer=_plain(run.layer)) for run in main.runs)
    stacks = tuple(replace(main, runs=runs) if stack is main else stack for stack in shape.stacks)
    return replace(shape, stacks=stacks)


def _plain(layer: Layer) -> Layer:
    mixers: tuple[Mixer, ...] = tuple(
        replace(mixer, rotary_dim=0) if isinstance(mixer, AttentionMixer) else mixer for mixer in layer.mixers
    )
    return replace(layer, mixers=mixers)


RULE = Rule(code="R18", check=unfused_positions, worst=Grade.INFO, page=__doc__ or "", remark=True)
