"""Tensor parallelism across slow links.

## What it finds

``tp`` above the number of devices that share the fastest links (NVLink, NVSwitch, ICI): its collectives, several in
every layer, cross the network between nodes.

## Why it costs

Every layer waits for an all-gather and a reduce-scatter in forward and backward; between nodes these take 5 to 20 times
as long as inside one.

## Fix

A ``tp`` that stays inside a node, and more pipeline or data parallelism.

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
        message=f"tp={tp} is wider than the {node} devices that share {tier.name}, so its collectives cross the"
        f" network",
        field="tp",
        value=tp,
        remedies=tuple(remedies),
    )


RULE = PlanRule(code="P2", check=tensor_parallel_beyond_links, page=__doc__ or "")
