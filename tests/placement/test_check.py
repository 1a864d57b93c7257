"""The checker's price of one placement by hand, and each of its limits: reached, and passed by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sartor.placement.check import price, price_with_terms
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
