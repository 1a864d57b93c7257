"""Tensor parallelism wider than the fast links reach.

## What it finds

``tp`` above the number of devices that share the innermost links (NVLink, NVSwitch, ICI): its collectives, several in
every layer, go over the network between nodes.

## Why it costs

Every layer waits for an all-gather and a reduce-scatter forward and backward; between nodes they take 5 to 20 times as
long as inside one.

## Fix

The ``tp`` that stays inside, with the rest given to the pipeline or to data parallelism.

## Source

Narayanan et al. 2021 (arXiv 2104.04473), takeaway 1: tensor parallelism up to the size of a node.
"""

from __future__ import annotations

from collections.abc import Iterator

from sartor.rules.plan.rule import PlanContext, PlanRule, PlanSuspicion, changed
from sartor.rules.rule import Grade


def tensor_parallel_beyond_links(context: PlanContext) -> Iterator[PlanSuspicion]:
    tp, node, pp = int(context.plan.dims.tp), context.node, int(context.plan.dims.pp)
    if tp <= node:
        return
    factor = -(-tp // node)
    remedies = [*changed(context, tp=tp // factor), *changed(context, tp=tp // factor, pp=pp * factor)]
    tier = context.cluster.tiers[0]
    yield PlanSuspicion(
        grade=Grade.WARN,
        message=f"tp={tp} leaves the {node} devices that share {tier.name}: its collectives cross the network",
        field="tp",
        value=tp,
        remedies=tuple(remedies),
    )


RULE = PlanRule(code="P2", check=tensor_parallel_beyond_links, page=__doc__ or "")
