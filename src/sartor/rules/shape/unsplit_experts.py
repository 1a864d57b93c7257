"""Experts that do not split evenly over the expert-parallel devices.

## What it finds

`num_experts` that is not a multiple of `ep`: the model cannot run with this `ep`.

## Why it costs

Every device of an expert-parallel group holds as many whole experts as the others. Frameworks refuse to start.

## Example

8 experts at `ep=3`; 128 at `ep=8` is good.

## Fix

The nearest `ep` that divides the number of experts. The finding has no gain, because there is no working baseline to
compare with.

## Source

Megatron-Core, transformer/moe/moe_layer.py (`num_moe_experts % expert_model_parallel_size == 0`), read 2026-11.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.model.lower.setting import near_degrees
from sartor.operators import Role
from sartor.rules.rule import Context, Grade, Rule, Suspicion, fixes_of, words


def unsplit_experts(context: Context) -> Iterator[Suspicion]:
    part, ep = context.shape.moe_ffn, int(context.dims.ep)
    if part is None or part.num_experts % ep == 0:
        return
    experts = int(part.num_experts)
    degrees = near_degrees(context.shape, "ep", ep)
    yield Suspicion(
        grade=Grade.ERROR,
        message=f"num_experts={experts} is not divisible by ep={ep}. Use ep={words(degrees)}",
        field="num_experts",
        value=experts,
        operator=context.operator(Role.EXPERT_UP),
        fixes=fixes_of("ep", degrees, ep),
        blocking=True,
        axis="ep",
    )


RULE = Rule(code="R23", check=unsplit_experts, worst=Grade.ERROR, page=__doc__ or "")
