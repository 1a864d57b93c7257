"""Fewer key/value heads than tensor-parallel devices.

## What it finds

`num_kv_heads` that is not a multiple of `tp`: each key/value head is then stored on `tp / num_kv_heads` devices. If
neither divides the other, the model cannot run (error).

## Why it costs

Every copy takes key/value cache, memory bandwidth and projection GEMMs again.

## Example

2 to 4 key/value heads at `tp=8` (Qwen2.5 0.5B to 7B); 8 at `tp=8` is good.

## Fix

A smaller `tp`, or as many key/value heads as devices.

## Source

Ainslie et al. 2023 (GQA), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.operators import Role
from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion


def replicated_kv_heads(context: Context) -> Iterator[Suspicion]:
    mixer, tp = context.shape.attention, int(context.dims.tp)
    if not isinstance(mixer, AttentionMixer) or mixer.num_kv_heads % tp == 0:
        return
    groups, heads = int(mixer.num_kv_heads), int(mixer.num_heads)
    if groups == heads:
        return
    uneven = tp % groups != 0
    copies = f"is not divisible by tp={tp}" if uneven else f"at tp={tp} stores each head on {tp // groups} devices"
    yield Suspicion(
        grade=Grade.ERROR if uneven else Grade.INFO,
        message=f"num_kv_heads={groups} {copies}; {tp} key/value heads would give each device its own",
        field="num_kv_heads",
        value=groups,
        operator=context.operator(Role.QKV),
        fixes=tuple(_fixes(groups, heads, tp, uneven)),
        blocking=uneven,
        axis="tp",
    )


def _fixes(groups: int, heads: int, tp: int, uneven: bool) -> Iterator[Fix]:
    if heads % tp == 0:
        yield {"num_kv_heads": tp}
    if not uneven:
        yield {"tp": groups}


RULE = Rule(code="R19", check=replicated_kv_heads, worst=Grade.ERROR, page=__doc__ or "")
