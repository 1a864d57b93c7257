"""Heads that do not split evenly over the tensor-parallel devices.

## What it finds

`num_heads` that is not a multiple of `tp`: the model cannot run with this `tp`.

## Why it costs

Every device needs whole heads. Frameworks refuse to start, or pad with unused heads.

## Example

71 heads (Falcon 7B) at any `tp`; 25 (GPT-2 XL); 14 (Qwen2.5 0.5B) at `tp=4`. 32 at `tp=8` is good.

## Fix

The nearest number of heads that splits, at the same `num_heads * head_dim` where a head dimension allows it, or the
nearest `tp` that splits every size of the model. The finding has no gain, because there is no working baseline to
compare with.

## Source

arXiv 2401.14489 (2024-01), rule list ("b*a/t an integer").
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.layer import AttentionMixer
from sartor.model.lower.setting import near_degrees
from sartor.operators import Role
from sartor.rules.rule import (
    Context,
    Fix,
    Grade,
    Rule,
    Suspicion,
    around,
    head_fixes,
    kv_heads_for,
    nearest_first,
    words,
)


def unsplit_heads(context: Context) -> Iterator[Suspicion]:
    mixer, tp = context.shape.attention, int(context.dims.tp)
    if mixer is None or mixer.num_heads % tp == 0:
        return
    heads = int(mixer.num_heads)
    near = around(heads, tp)
    degrees = " or ".join(map(str, near_degrees(context.shape, "tp", tp)))
    yield Suspicion(
        grade=Grade.ERROR,
        message=f"num_heads={heads} is not divisible by tp={tp}. Use {words(near)} heads, or tp={degrees}",
        field="num_heads",
        value=heads,
        operator=context.operator(Role.ATTENTION, Role.SCORE),
        fixes=tuple(_fixes(mixer, near, tp))
        if isinstance(mixer, AttentionMixer)
        else tuple({"num_heads": value} for value in near),
        blocking=True,
        axis="tp",
    )


def _fixes(mixer: AttentionMixer, near: tuple[int, ...], tp: int) -> Iterator[Fix]:
    """Nearest first; the number of key/value heads changes only if the old one no longer divides or splits."""
    grouped, groups = mixer.num_kv_heads != mixer.num_heads, int(mixer.num_kv_heads)
    for heads in nearest_first(near, int(mixer.num_heads)):
        keeps = not grouped or (heads % groups == 0 and (groups % tp == 0 or tp % groups == 0))
        yield {"num_heads": heads} | ({} if keeps else {"num_kv_heads": kv_heads_for(heads, groups, tp)})
    yield from head_fixes(mixer, tp)


RULE = Rule(code="R7", check=unsplit_heads, worst=Grade.ERROR, page=__doc__ or "")
