"""Routing that takes a token's experts from few groups sends it to few nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from sartor.model.layer import DenseFfn, MoeFfn
from sartor.model.lower.ffn import _reachable
from sartor.model.zoo import load_model

MOE = MoeFfn(num_experts=256, experts_per_token=8, expert=DenseFfn(ffn_hidden_size=2048, gated=True))


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
@pytest.mark.parametrize("chosen", [1, 3, 4, 8])
def test_nodes_a_token_can_reach_are_those_counted_over_every_choice_of_groups(nodes: int, chosen: int) -> None:
    part = replace(MOE, routing_groups=8, groups_per_token=chosen)
    each = [len({group * nodes // 8 for group in choice}) for choice in combinations(range(8), chosen)]
    assert _reachable(nodes * 1.0, part) == pytest.approx(sum(each) / len(each))


def test_where_nothing_limits_routing_every_node_is_reached_and_a_group_over_two_nodes_counts_both() -> None:
    assert _reachable(16.0, MOE) == 16
    assert _reachable(16.0, replace(MOE, routing_groups=8, groups_per_token=4)) == pytest.approx(8)


@pytest.mark.parametrize(("name", "groups"), [("deepseek-v3", (8, 4)), ("kimi-k2", (1, 1)), ("mixtral-8x7b", (1, 1))])
def test_the_zoo_says_how_many_groups_a_token_chooses_from(name: str, groups: tuple[int, int]) -> None:
    moe = load_model(name).moe_ffn
    assert moe is not None
    assert (moe.routing_groups, moe.groups_per_token) == groups
