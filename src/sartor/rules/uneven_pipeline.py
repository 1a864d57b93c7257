"""Layers that do not divide over the pipeline's stages.

## What it finds

`num_layers` below `pp` (error: a stage would be empty) or not a multiple of it (warning).

## Why it costs

The slowest stage sets the pace: 61 layers over 4 stages take as long as 64. What is lost is the time of the layers
that would have filled the other stages.

## Example

61 (DeepSeek-V3), 62, 126 layers; good are 32, 80, 96.

## Fix

The nearest multiple: as many layers more come free, or as many fewer give the time back. (Uneven stages that give
embedding and logits a lighter stage are `sartor plan`'s matter.)

## Source

arXiv 2401.14489 (2024-01) covers pipelines; wording and price are ours.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.candidates import around, fixes_of, nearest_first, words
from sartor.rules.rule import Context, Grade, Rule, Suspicion
from sartor.units import round_up


def uneven_pipeline(context: Context) -> Iterator[Suspicion]:
    layers, pp = int(context.shape.num_layers), int(context.dims.pp)
    if layers % pp == 0:
        return
    near = around(layers, pp)
    yield Suspicion(
        grade=Grade.ERROR if layers < pp else Grade.WARN,
        message=f"num_layers={layers} does not divide over pp={pp} stages; {words(near)} would",
        field="num_layers",
        value=layers,
        fixes=fixes_of("num_layers", nearest_first(near, layers), layers),
        paced_by={"num_layers": int(round_up(layers, pp))},
        blocking=layers < pp,
    )


RULE = Rule(code="R11", check=uneven_pipeline, worst=Grade.ERROR, page=__doc__ or "")
