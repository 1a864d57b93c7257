"""Rotary positions that take a kernel of their own.

## What it finds

Rotary embeddings whose kernels take 1% of the step or more.

## Why it costs

Rotary and ALiBi positions change no matrix product. As separate kernels they read and write queries and keys once
more; fused into the attention kernel or the projection's epilogue they are nearly free. The gain shown is an upper
bound.

## Example

Any model with rotary embeddings run by an eager framework.

## Fix

None in the shape: take a fused kernel.

## Source

codesign.md section 3, R18.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sartor.model.layer import AttentionMixer, Layer, Mixer
from sartor.model.shape import TransformerShape
from sartor.rules.rule import Context, Grade, Rule, Suspicion


def unfused_positions(context: Context) -> Iterator[Suspicion]:
    mixer = context.shape.attention
    if not isinstance(mixer, AttentionMixer) or not mixer.rotary_dim:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message="rotary positions as kernels of their own move queries and keys once more; fused kernels save that",
        field="head_dim",
        value=int(mixer.head_dim),
        operator=context.operator("rotary"),
        remedy=without_rotary(context.shape),
        advisory=True,
    )


def without_rotary(shape: TransformerShape) -> TransformerShape:
    """The same model with positions that cost nothing."""
    main = shape.main
    runs = tuple(replace(run, layer=_plain(run.layer)) for run in main.runs)
    stacks = tuple(replace(main, runs=runs) if stack is main else stack for stack in shape.stacks)
    return replace(shape, stacks=stacks)


def _plain(layer: Layer) -> Layer:
    mixers: tuple[Mixer, ...] = tuple(
        replace(mixer, rotary_dim=0) if isinstance(mixer, AttentionMixer) else mixer for mixer in layer.mixers
    )
    return replace(layer, mixers=mixers)


RULE = Rule(code="R18", check=unfused_positions, worst=Grade.INFO, page=__doc__ or "")
