"""A number of layers that is not divisible by the pipeline stages.

## What it finds

`num_layers` below `pp` (error: a stage would be empty) or not a multiple of it (warning).

## Why it costs

The slowest stage limits throughput: 61 layers over 4 stages take as long as 64.

## Example

61 (DeepSeek-V3), 62 and 126 layers; 32, 80 and 96 are good.

## Fix

The nearest multiple: extra layers up to it cost no time, and fewer layers save time. (`sartor plan` also finds uneven
stages that balance embedding and logits.)

## Source

arXiv 2401.14489 (2024-01) covers pipelines; the price is our own.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.rule import Context, Grade, Rule, Suspicion, around, fixes_of, words
from sartor.units import round_up

MOST_CHANGE = 0.1
"""Share of the layers that a fix may add or take away where another multiple is nearer: a model of about that size."""


def uneven_pipeline(context: Context) -> Iterator[Suspicion]:
    layers, pp = int(context.shape.num_layers), int(context.dims.pp)
    if layers % pp == 0:
        return
    near = around(layers, pp)
    same_size = [value for value in near if abs(value / layers - 1) <= MOST_CHANGE] or near
    yield Suspicion(
        grade=Grade.ERROR if layers < pp else Grade.WARN,
        message=f"num_layers={layers} is not divisible by pp={pp} stages. Use {words(near)}",
        field="num_layers",
        value=layers,
        fixes=fixes_of("num_layers", same_size, layers),
        paced_by={"num_layers": int(round_up(layers, pp))},
        blocking=layers < pp,
        axis="pp",
    )


RULE = Rule(code="R11", check=uneven_pipeline, worst=Grade.ERROR, page=__doc__ or "")
