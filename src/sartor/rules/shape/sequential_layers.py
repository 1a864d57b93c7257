"""Sequential attention and feed-forward layers, where parallel ones would fuse their GEMMs.

## What it finds

In training: a dense model that computes attention and feed-forward one after the other, where the same shape with
parallel layers is predicted to be faster.

## Why it costs

Parallel layers share one norm and one residual sum, and end in one tensor-parallel collective instead of two; GEMMs
that read the same input fuse. PaLM reports about 15% faster training at scale, with a small loss of quality at 8B and
none at 62B.

## Example

GPT-J, GPT-NeoX, Falcon and Pythia are parallel; most others are not.

## Fix

No single field: parallel layers are a different architecture, to be chosen before training.

## Source

Chowdhery et al. 2022 (PaLM), section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sartor.model.layer import DenseFfn, Layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import Phase
from sartor.rules.rule import Context, Grade, Rule, Suspicion


def sequential_layers(context: Context) -> Iterator[Suspicion]:
    shape = context.shape
    sequential = [run.layer for run in shape.main.runs if _is_sequential(run.layer)]
    if context.workload.phase is not Phase.TRAIN or not sequential or shape.moe_ffn is not None:
        return
    yield Suspicion(
        grade=Grade.INFO,
        message="parallel attention and feed-forward layers would share one norm and one residual sum, and one"
        " collective under tensor parallelism (a different architecture: check model quality)",
        field="num_layers",
        value=int(shape.num_layers),
        remedy=_in_parallel(shape),
        advisory=True,
    )


def _is_sequential(layer: Layer) -> bool:
    return not layer.parallel and len(layer.mixers) == 1 and isinstance(layer.ffn, DenseFfn)


def _in_parallel(shape: TransformerShape) -> TransformerShape:
    """The same model with attention and feed-forward of every layer in parallel, on one norm."""
    main = shape.main
    runs = tuple(
        replace(run, layer=replace(run.layer, parallel=True, norms=run.layer.norms[:1]))
        if _is_sequential(run.layer)
        else run
        for run in main.runs
    )
    stacks = tuple(replace(main, runs=runs) if stack is main else stack for stack in shape.stacks)
    return replace(shape, stacks=stacks)


RULE = Rule(code="R17", check=sequential_layers, worst=Grade.INFO, page=__doc__ or "", remark=True)
