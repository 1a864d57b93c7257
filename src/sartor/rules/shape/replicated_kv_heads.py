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
from sartor.model.lower.setting import undivided
from sartor.operators import Role
from sartor.rules.rule import Context, Fix, Grade, Rule, Suspicion, split_fixes


def replicated_kv_heads(context: Context) -> Iterator[Suspicion]:
    mixer, tp = context.shape.attention, int(context.dims.tp)
    if not isinstance(mixer, AttentionMixer) or mixer.num_kv_heads % tp == 0:
        return
    groups, heads = int(mixer.num_kv_heads), int(mixer.num_heads)
    if groups == heads:
        return
    sizes = (("num_heads", heads), ("num_kv_heads", groups))
    divisions = {d.field: d for d in undivided(context.shape, context.dims) if (d.field, int(d.value)) in sizes}
    uneven = divisions.get("num_kv_heads")
    words = f"num_kv_heads={groups} at tp={tp} stores each head on {tp // groups} devices; {tp} key/value heads would"
    words += " give each device its own"
    fixes: tuple[Fix, ...] = (*(({"num_kv_heads": tp},) if heads % tp == 0 else ()), {"tp": groups})
    if uneven is not None:
        fixes = split_fixes(context.shape, divisions.get("num_heads", uneven))  # one change for both
        near = dict.fromkeys(str(fix["num_kv_heads"]) for fix in fixes[:2])
        words = f"num_kv_heads={groups} is not divisible by tp={tp}. Use {' or '.join(near) or 'a smaller tp'}"
    yield Suspicion(
        grade=Grade.INFO if uneven is None else Grade.ERROR,
        message=words,
        field="num_kv_heads",
        value=groups,
        operator=context.operator(Role.QKV),
        fixes=fixes,
        blocking=uneven is not None,
        axis="tp",
    )


RULE = Rule(code="R19", check=replicated_kv_heads, worst=Grade.ERROR, page=__doc__ or "")
