"""The checker's price of one placement by hand, and each of its limits: reached, and passed by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sartor.placement.check import SLACK, _Check, price, price_with_terms
from sartor.placement.problem import (
    DeviceType,
    Edge,
    PlacedLayer,
    PlacedOptimizer,
    PlacementProblem,
    PlacementTerms,
    Plan,
    Stage,
    Tier,
    Width,
)  # fmt: skip


def layer(id_: int, params: float, activations: float, forward: float, experts: float = 0.0) -> PlacedLayer:
    return PlacedLayer(
        id=id_, param_bytes=params, activation_bytes=activations, forward_s=forward, backward_s=2 * forward,
        is_split=False, expert_param_bytes=experts,
    )  # fmt: skip


WIDTH = Width(
    tensor_parallel=1,
    layers=(layer(0, 6, 3, 1, 2), layer(1, 4, 2, 2), layer(2, 2, 1, 3)),
    edges=(Edge(source=0, dest=1, size_bytes=5), Edge(source=1, dest=2, size_bytes=10)),
)
PROBLEM = PlacementProblem(
    widths=(WIDTH,), memory_bytes=24, num_devices=4, link_bytes_per_s=5, num_microbatches=4, recompute=False,
    optimizer=PlacedOptimizer.ADAM, update_s_per_byte=0.5,
)  # fmt: skip
STAGES = ((0,), (1, 2))


def test_the_price_of_two_stages_in_two_copies_is_the_sum_of_its_terms() -> None:
    """Stage 0: forward 1; the gradient of 5 bytes arrives after 1 s, backward 2. Stage 1: the input arrives after 1 s,
    forward 2 + 3, backward 6 + 4. So the slower stage takes 16 s, in 4 / 2 + 2 - 1 = 3 rounds. The copies of stage 0
    reduce 1/2 of 6 bytes, times 4, at 5 bytes/s; its 6 bytes are updated at 0.5 s each."""
    priced = price(PROBLEM, WIDTH, STAGES, 2)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 1 + 2, 1 + 2 + 3 + 6 + 4]
    assert priced.time_per_batch_s == pytest.approx(3 * 16 + 4 * 3 / 5 + 0.5 * 6)
    assert priced.memory_bytes == (2 * 6 + 6 + 3 + 3, 2 * 6 + 6 + 3)  # the first stage stashes one more microbatch
    assert priced.faults == ()


def test_every_option_changes_its_own_term() -> None:
    recomputed = price(replace(PROBLEM, recompute=True), WIDTH, STAGES, 2)
    assert [stage.load_s for stage in recomputed.plan.stages] == [1 + 1 + 2, 16]  # 1 s of recomputation while it waits
    assert recomputed.memory_bytes == (24 - 3, 21)  # nothing enters the first stage
    sharded = price(replace(PROBLEM, zero_stage=1), WIDTH, STAGES, 2)
    assert sharded.time_per_batch_s == pytest.approx(3 * 16 + 4 * 3 / 5 + 0.5 * 3)
    assert sharded.memory_bytes == (24 - 3, 21 - 3)
    two_experts = replace(WIDTH, expert_parallel=2)
    split = price(PROBLEM, two_experts, STAGES, 2)  # 2 of 6 bytes belong to experts, which no copy repeats
    assert split.time_per_batch_s == pytest.approx(3 * 16 + 4 * 0.5 * 4 / 5 + 0.5 * 6)
    both = price(replace(PROBLEM, zero_stage=1), two_experts, STAGES, 2)
    assert both.time_per_batch_s == pytest.approx(3 * 16 + 4 * 0.5 * 4 / 5 + 0.5 * (4 / 2 + 2))
    assert both.memory_bytes == (2 * 6 + 4 / 2 + 2 + 3 + 3, 18)
    tied = price(PROBLEM, replace(WIDTH, tied_bytes=1), ((0, 1, 2),), 1)
    assert tied.memory_bytes == (3 * (12 - 1) + 6,)
    assert tied.time_per_batch_s == pytest.approx(4 * 18 + 0.5 * (12 - 1))


@pytest.mark.parametrize(
    ("reached", "passed", "said"),
    [
        ({"memory_bytes": 24}, {"memory_bytes": 23}, "stage 0 needs 24 bytes of 23"),
        ({"num_devices": 4}, {"num_devices": 3}, "2 devices x 2 copies exceed 3"),
        ({"num_microbatches": 2}, {"num_microbatches": 1}, "2 copies have only 1 microbatches"),
        ({"even_copies": True}, {"even_copies": True, "num_microbatches": 5}, "5 microbatches do not divide"),
    ],
)
def test_a_limit_may_be_reached_and_not_passed(reached: dict[str, Any], passed: dict[str, Any], said: str) -> None:
    assert price(replace(PROBLEM, **reached), WIDTH, STAGES, 2).faults == ()
    (fault,) = price(replace(PROBLEM, **passed), WIDTH, STAGES, 2).faults
    assert said in fault


def test_layers_in_a_wrong_place_are_named() -> None:
    assert price(PROBLEM, WIDTH, ((1, 2), (0,)), 1).faults == ("edge 0 -> 1 goes back to an earlier stage",)
    assert price(PROBLEM, WIDTH, ((0,), (0, 1, 2)), 1).faults[0] == "every layer must be in exactly one stage"
    (fault,) = price(PROBLEM, replace(WIDTH, expert_parallel=3), STAGES, 2).faults
    assert fault == "2 copies are not a multiple of expert_parallel=3"


TERMS = PlacementTerms()
PLAN = Plan(
    tensor_parallel=1, context_parallel=1, expert_parallel=1, data_parallel=2, time_per_batch_s=0,
    stages=(Stage(layers=(0,), devices=1, load_s=0), Stage(layers=(1, 2), devices=1, load_s=0)),
)  # fmt: skip
PLAIN = replace(PROBLEM, update_s_per_byte=0)


def test_the_extended_price_of_plain_terms_is_the_plain_price() -> None:
    priced = price_with_terms(PLAIN, TERMS, PLAN)
    assert priced.time_per_batch_s == pytest.approx(3 * 16 + TERMS.resync_factor * 3 / 5)
    assert priced.faults == ()


def test_tiers_add_their_latency_and_reduce_one_after_the_other() -> None:
    """Copies are neighbours: the two of a stage share a node of 2, so gradients stay in it, and what passes between
    stages leaves it."""
    terms = replace(
        TERMS, tiers=(Tier(size=2, bytes_per_s=10, latency_s=0.25), Tier(size=4, bytes_per_s=5, latency_s=0.5))
    )
    priced = price_with_terms(PLAIN, terms, PLAN)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 1.5 + 2, 1.5 + 15]
    resync = terms.resync_factor * 0.5 * 6 / 10 + 2 * (2 * 0.25)  # parameters of experts are reduced by themselves
    assert priced.time_per_batch_s == pytest.approx(3 * 16.5 + resync)
    without_experts = _Check(PLAIN, terms, PLAN).agreement(1)  # nothing to reduce takes no message either
    assert without_experts == pytest.approx(terms.resync_factor * 0.5 * 6 / 10 + 2 * 0.25)


@pytest.mark.parametrize(
    ("reached", "passed", "said"),
    [
        ({"memory_bytes": 24}, {"memory_bytes": 23}, "stage 0 needs 24 bytes of 23"),
        ({"num_devices": 4}, {"num_devices": 3}, "2 x 2 devices exceed 3"),
        ({"num_microbatches": 2}, {"num_microbatches": 1}, "2 copies share 1 microbatches"),
        ({"even_copies": True}, {"even_copies": True, "num_microbatches": 5}, "5 microbatches do not divide"),
    ],
)
def test_an_extended_limit_may_be_reached_and_not_passed(
    reached: dict[str, Any], passed: dict[str, Any], said: str
) -> None:
    assert price_with_terms(replace(PLAIN, **reached), TERMS, PLAN).faults == ()
    (fault,) = price_with_terms(replace(PLAIN, **passed), TERMS, PLAN).faults
    assert said in fault


def test_wrong_devices_types_and_rounds_are_named() -> None:
    wide = replace(PLAN, stages=(replace(PLAN.stages[0], devices=2), PLAN.stages[1]), data_parallel=1)
    assert price_with_terms(PLAIN, TERMS, wide).faults == ("stage 0 takes 2 devices",)
    types = replace(TERMS, device_types=tuple(DeviceType(name=n, num_devices=4, memory_bytes=99) for n in "ab"))
    three = tuple(Stage(layers=(i,), devices=1, load_s=0, device_type=kind) for i, kind in enumerate("aba"))
    assert price_with_terms(PLAIN, types, replace(PLAN, data_parallel=1, stages=three)).faults == (
        "the stages on one device type must be neighbours",
    )
    together = tuple(replace(stage, device_type=kind) for stage, kind in zip(three, "aab", strict=True))
    assert price_with_terms(PLAIN, types, replace(PLAN, data_parallel=1, stages=together)).faults == ()


def test_a_slower_type_takes_longer_and_zero_shares_states() -> None:
    slow = DeviceType(name="slow", num_devices=4, memory_bytes=99, slowdown=2)
    stages = tuple(replace(stage, device_type="slow") for stage in PLAN.stages)
    priced = price_with_terms(PLAIN, replace(TERMS, device_types=(slow,)), replace(PLAN, stages=stages))
    assert [stage.load_s for stage in priced.plan.stages] == [2 * 1 + 1 + 2 * 2, 1 + 2 * 5 + 2 * 10]
    experts = replace(WIDTH, expert_parallel=2)
    problem = replace(PLAIN, widths=(experts,), memory_bytes=20)
    sharded = replace(PLAN, expert_parallel=2, zero_stage=1)  # 2 x 6, states of 4 / 2 + 2, activations 3 + 3
    (fault,) = price_with_terms(problem, replace(TERMS, zero_stages=(1,)), sharded).faults
    assert fault == "stage 0 needs 22 bytes of 20"


SPLIT = replace(
    WIDTH, tensor_parallel=2, context_parallel=2, expert_parallel=2,
    layers=(replace(WIDTH.layers[0], is_split=True), *WIDTH.layers[1:]),
)  # fmt: skip
WIDE = replace(PLAIN, widths=(SPLIT,), num_devices=15, num_microbatches=6, memory_bytes=24)


def test_a_split_layer_takes_a_group_of_devices_and_has_more_replicas_of_its_parameters() -> None:
    """Stage 0 is split over 2 tensor and 2 context ranks: 4 devices, and its parameters have 3 x 2 replicas, of which
    2 x 3 hold each expert of two."""
    priced = price(WIDE, SPLIT, STAGES, 3)
    assert [stage.devices for stage in priced.plan.stages] == [4, 1]
    assert priced.faults == ()
    assert priced.time_per_batch_s == pytest.approx(3 * 16 + 4 * (5 / 6 * 4 + 2 / 3 * 2) / 5)
    sharded = price(replace(WIDE, zero_stage=1, update_s_per_byte=0.5), SPLIT, STAGES, 3)
    assert sharded.time_per_batch_s - priced.time_per_batch_s == pytest.approx(0.5 * (4 / 6 + 2 / 3))
    assert sharded.memory_bytes == pytest.approx((2 * 6 + 4 / 6 + 2 / 3 + 3 + 3, 2 * 6 + 6 / 3 + 3))
    behind = price(WIDE, SPLIT, STAGES[::-1], 3)  # the first stage is not split: three replicas, no experts
    assert behind.time_per_batch_s == pytest.approx(3 * 16 + 4 * (2 / 3 * 6) / 5)
    (fault,) = price(replace(WIDE, num_devices=14), SPLIT, STAGES, 3).faults
    assert fault == "5 devices x 3 copies exceed 14"
    (fault,) = price(WIDE, replace(SPLIT, expert_parallel=4), STAGES, 3).faults
    assert fault == "3 copies x 2 contexts are not a multiple of expert_parallel=4"


def test_the_stage_of_zero_is_named_where_there_are_replicas_to_share_it() -> None:
    sharded = replace(PROBLEM, zero_stage=1)
    assert [price(sharded, WIDTH, STAGES, copies).plan.zero_stage for copies in (1, 2)] == [0, 1]
    assert price(replace(WIDE, zero_stage=1, num_devices=5), SPLIT, STAGES, 1).plan.zero_stage == 1


def test_memory_within_rounding_of_the_limit_fits() -> None:
    assert price(replace(PROBLEM, memory_bytes=24 / (1 + 0.9 * SLACK)), WIDTH, STAGES, 2).faults == ()
    assert price(replace(PROBLEM, memory_bytes=24 / (1 + 1.1 * SLACK)), WIDTH, STAGES, 2).faults != ()
    exact = next(limit for n in range(3, 99) if (limit := n * 8 / (1 + SLACK)) * (1 + SLACK) == n * 8)
    scaled = replace(WIDTH, layers=(layer(0, exact * (1 + SLACK) / 3, 0, 1),), edges=())
    plan, problem = (
        replace(PLAN, data_parallel=1, stages=PLAN.stages[:1]),
        replace(PLAIN, memory_bytes=exact, widths=(scaled,)),
    )
    assert _Check(problem, TERMS, plan).memory(0) == exact * (1 + SLACK)
    assert price(problem, scaled, ((0,),), 1).faults == price_with_terms(problem, TERMS, plan).faults == ()


NODES = replace(
    TERMS, resync_every_stage=True,
    tiers=(Tier(size=4, bytes_per_s=10, latency_s=0.25), Tier(size=16, bytes_per_s=5, latency_s=0.5)),
)  # fmt: skip
SPLIT_PLAN = replace(
    PLAN, tensor_parallel=2, context_parallel=2, expert_parallel=2, data_parallel=3,
    stages=(Stage(layers=(0,), devices=4, load_s=0), Stage(layers=(1, 2), devices=1, load_s=0)),
)  # fmt: skip


def test_gradients_of_a_split_stage_are_reduced_tier_by_tier_at_their_spacing() -> None:
    """Stage 0: 4 bytes of dense parameters have 6 replicas, 2 devices apart: 2 in a node of 4, then 3 nodes, with half
    the bytes each. Its 2 bytes of experts have 3 replicas, 4 apart, in 3 nodes. Stage 1: 6 bytes, 3 replicas side by
    side, which do not fill a node alike, so they reduce over the outer links."""
    check, factor = _Check(WIDE, NODES, SPLIT_PLAN), NODES.resync_factor
    assert [check.ranks(index) for index in (0, 1)] == [(6, 3, 2), (3, 1, 1)]
    inside = factor * 1 / 2 * 4 / 10 + 2 * 1 * 0.25
    across = factor * 2 / 3 * (4 / 2) / 5 + 2 * 2 * 0.5
    experts = factor * 2 / 3 * 2 / 5 + 2 * 2 * 0.5
    assert check.agreement(0) == pytest.approx(inside + across + experts)
    assert check.agreement(1) == pytest.approx(factor * 2 / 3 * 6 / 5 + 2 * 2 * 0.5)
    priced = price_with_terms(WIDE, NODES, SPLIT_PLAN)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 1.5 + 2, 1.5 + 15]  # 5 bytes at 5 bytes/s, and 0.5 s
    assert priced.time_per_batch_s == pytest.approx(3 * 16.5 + check.agreement(0))
    assert priced.faults == ()
    whole = replace(SPLIT_PLAN, zero_stage=3)  # parameters are gathered twice a round, and gradients reduced in each
    gathered = price_with_terms(WIDE, NODES, whole)
    assert [stage.load_s for stage in gathered.plan.stages] == pytest.approx(
        [1 + 1.5 + 2 + check.agreement(0), 16.5 + check.agreement(1)]
    )
    assert gathered.time_per_batch_s == pytest.approx(3 * (16.5 + check.agreement(1)) + 0.5 * check.agreement(0))


def test_links_between_stages_are_those_that_hold_both_groups() -> None:
    """The 3 copies of a group of up to 4 devices reach 12 devices to both sides of device 3, where stage 1 ends."""
    for size, inner in ((15, True), (14, False)):
        tiers = (Tier(size=size, bytes_per_s=10), Tier(size=2 * size, bytes_per_s=5))
        check = _Check(WIDE, replace(TERMS, tiers=tiers), SPLIT_PLAN)
        assert [check.group(0), check.group(1), check.start(0), check.start(1)] == [1, 0, 3, 0]
        assert (check.tier_between(0) is tiers[0]) is inner


CHUNKED = replace(
    PLAN, virtual_stages=2,
    stages=tuple(Stage(layers=ids, devices=1, load_s=0) for ids in ((0,), (1,), (2,), (3,))),
)  # fmt: skip
FOUR = replace(
    WIDTH, layers=(*WIDTH.layers, layer(3, 2, 1, 1)), edges=(*WIDTH.edges, Edge(source=2, dest=3, size_bytes=5))
)
CHUNKS = replace(PLAIN, widths=(FOUR,), memory_bytes=99)


def test_an_interleaved_pipeline_goes_back_from_its_last_group_to_its_first() -> None:
    """Two groups of two copies: devices 0 and 1 have chunks 1 and 3, devices 2 and 3 have chunks 0 and 2."""
    tiers = tuple(Tier(size=size, bytes_per_s=10 / size, latency_s=0) for size in (2, 4, 8))
    check = _Check(CHUNKS, replace(TERMS, tiers=tiers), CHUNKED)
    assert [check.group(index) for index in range(4)] == [1, 0, 1, 0]
    assert [check.start(index) for index in range(4)] == [2, 0, 2, 0]
    assert [check.tier_between(index).size for index in range(3)] == [4, 4, 4]
    priced = price_with_terms(CHUNKS, TERMS, CHUNKED)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 1 + 2, 1 + 2 + 2 + 4, 2 + 3 + 1 + 6, 1 + 1 + 2]
    resync = 2 * TERMS.resync_factor / 2 * 6 / 5  # each chunk's gradients
    assert priced.time_per_batch_s == pytest.approx((2 * 2 + 1) * 12 + resync)


def test_a_device_of_an_interleaved_pipeline_holds_all_its_chunks_and_their_microbatches() -> None:
    check = _Check(CHUNKS, TERMS, CHUNKED)
    states = 3 * 6  # parameters, gradients, moments; and 2 + 2 x 1 more microbatches than the one in progress
    assert check.memory(0) == 2 * states + 3 + (2 + 2) * 3
    assert check.memory(3) == 2 * 3 * 2 + 1 + 2 * 1
    recomputed = _Check(replace(CHUNKS, recompute=True), TERMS, CHUNKED)
    assert recomputed.memory(1) == 2 * 3 * 4 + 2 + 2 * 5  # the input of 5 bytes of each microbatch in flight


def test_every_stage_of_zero_shares_one_more_of_the_states() -> None:
    """6 bytes of parameters, 2 of them of experts, with 6 and 3 replicas: a share has 4 / 6 + 2 / 3 bytes."""
    share, activations = 4 / 6 + 2 / 3, 3 + 3
    for zero, states in enumerate((18, 12 + share, 6 + 2 * share, 3 * share + 6)):
        check = _Check(WIDE, TERMS, replace(SPLIT_PLAN, zero_stage=zero))
        assert check.memory(0) == pytest.approx(states + activations)


def test_bytes_that_two_layers_count_are_held_and_reduced_once_where_both_are_in_one_stage() -> None:
    tied = replace(PLAIN, widths=(replace(WIDTH, tied_bytes=1),))
    whole = replace(PLAN, stages=(Stage(layers=(0, 1, 2), devices=1, load_s=0),))
    check = _Check(tied, TERMS, whole)
    assert check.memory(0) == 3 * (12 - 1) + 6
    assert check.agreement(0) == pytest.approx(TERMS.resync_factor / 2 * (12 - 1) / 5)
    assert [_Check(tied, TERMS, PLAN).tied(index) for index in (0, 1)] == [0, 0]


def test_two_edges_between_two_layers_send_one_message_and_the_last_to_arrive_counts() -> None:
    joined = replace(
        WIDTH, edges=(Edge(source=0, dest=1, size_bytes=5), Edge(source=0, dest=1, size_bytes=5), *WIDTH.edges[1:])
    )
    priced = price_with_terms(replace(PLAIN, widths=(joined,)), TERMS, PLAN)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 2 + 2, 2 + 15]


def test_recomputation_of_an_extended_stage_fills_the_wait_for_its_gradient() -> None:
    priced = price_with_terms(replace(PLAIN, recompute=True, memory_bytes=99), TERMS, PLAN)
    assert [stage.load_s for stage in priced.plan.stages] == [1 + 1 + 2, 16]
    slow = replace(PLAIN, recompute=True, memory_bytes=99, link_bytes_per_s=50)  # the gradient waits for it
    assert price_with_terms(slow, TERMS, PLAN).plan.stages[0].load_s == pytest.approx(1 + 1 + 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": SPLIT_PLAN.stages[::-1]}, "edge 0 -> 1 goes back to an earlier stage"),
        ({"data_parallel": 1, "context_parallel": 1}, "experts do not split over 1 copies"),
        ({"stages": (replace(SPLIT_PLAN.stages[0], devices=3), SPLIT_PLAN.stages[1])}, "stage 0 takes 3 devices"),
    ],
)
def test_a_plan_that_does_not_run_is_refused(change: dict[str, Any], said: str) -> None:
    plan = replace(SPLIT_PLAN, **change)
    width = replace(SPLIT, context_parallel=plan.context_parallel)
    assert said in price_with_terms(replace(WIDE, widths=(width,)), TERMS, plan).faults


def test_interleaving_takes_whole_rounds_of_microbatches_and_whole_chunks() -> None:
    words = "interleaving needs microbatches per copy in whole rounds of the pipeline"
    assert price_with_terms(CHUNKS, TERMS, CHUNKED).faults == ()
    assert price_with_terms(replace(CHUNKS, num_microbatches=6), TERMS, CHUNKED).faults == (words,)
    three = replace(CHUNKED, stages=tuple(replace(CHUNKED.stages[0], layers=ids) for ids in ((0,), (1,), (2, 3))))
    assert price_with_terms(CHUNKS, TERMS, three).faults == (words,)
    plain = replace(CHUNKED, virtual_stages=1)  # rounds bind interleaved pipelines alone
    assert price_with_terms(replace(CHUNKS, num_microbatches=6, num_devices=8), TERMS, plain).faults == ()


def test_an_interleaved_group_has_the_devices_of_its_widest_chunk() -> None:
    four = replace(SPLIT, layers=(*SPLIT.layers, layer(3, 2, 1, 1)), edges=FOUR.edges)
    stages = tuple(Stage(layers=(index,), devices=4, load_s=0) for index in range(4))
    plan = replace(SPLIT_PLAN, virtual_stages=2, data_parallel=2, stages=stages)
    problem = replace(WIDE, widths=(four,), num_devices=16, num_microbatches=4, memory_bytes=99)
    assert price_with_terms(problem, TERMS, plan).faults == ()
    narrow = replace(plan, stages=(*stages[:3], replace(stages[3], devices=1)))
    assert price_with_terms(problem, TERMS, narrow).faults == ("stage 3 takes 1 devices",)


def test_each_device_type_has_its_own_number_of_devices_and_memory() -> None:
    def faults(devices: int, memory: float) -> tuple[str, ...]:
        kinds = (
            DeviceType(name="a", num_devices=devices, memory_bytes=99),
            DeviceType(name="b", num_devices=2, memory_bytes=memory),
        )
        stages = tuple(replace(stage, device_type=kind) for stage, kind in zip(PLAN.stages, "ab", strict=True))
        return price_with_terms(PLAIN, replace(TERMS, device_types=kinds), replace(PLAN, stages=stages)).faults

    assert faults(2, 21) == ()
    assert faults(1, 21) == ("1 x 2 devices exceed 1 of type 'a'",)
    assert faults(2, 20) == ("stage 1 needs 21 bytes of 20",)


def test_every_group_of_three_starts_behind_those_after_it() -> None:
    """From the end: 4 devices of the split stage 2 in each of two copies, then 1 of stage 1 in each, then stage 0."""
    last = replace(SPLIT, layers=(*WIDTH.layers[:2], replace(WIDTH.layers[2], is_split=True)))
    stages = tuple(Stage(layers=(index,), devices=4 if index == 2 else 1, load_s=0) for index in range(3))
    plan = replace(SPLIT_PLAN, data_parallel=2, stages=stages)
    check = _Check(replace(WIDE, widths=(last,)), TERMS, plan)
    assert [(check.group(index), check.start(index)) for index in range(3)] == [(2, 8 + 2), (1, 8), (0, 0)]


def test_links_between_device_types_are_the_outermost() -> None:
    kinds = tuple(DeviceType(name=name, num_devices=4, memory_bytes=99) for name in "ab")
    terms = replace(TERMS, device_types=kinds, tiers=(Tier(size=8, bytes_per_s=10), Tier(size=16, bytes_per_s=5)))
    stages = tuple(Stage(layers=(i,), devices=1, load_s=0, device_type=kind) for i, kind in enumerate("aab"))
    check = _Check(PLAIN, terms, replace(PLAN, data_parallel=1, stages=stages))
    assert [check.tier_between(index).size for index in (0, 1)] == [8, 16]
