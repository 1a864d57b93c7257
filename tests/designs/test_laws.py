"""Laws of the joint search: more room is never worse, budgets hold exactly, experts may be shared, prices count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from design_samples import QUESTIONS, every_option, question, small_space
from sartor.cost.chip.ownership import network_beyond, package_usd
from sartor.designs.bounds import joules_per_token
from sartor.designs.candidates import DesignStatus, Ranked, candidates_of, priced
from sartor.designs.point import Point, ScheduleStore, evaluate_option, evaluate_point
from sartor.designs.question import Budgets, DesignCosts, DesignModel, DesignQuestion, Objective, expert_widths_of
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.model.editing import edit_fields
from sartor.model.zoo import load_model


def all_points(asked: DesignQuestion, space: AcceleratorSpace) -> list[Ranked]:
    """Every point of a small space with every option of every model tried."""
    candidates, _ = candidates_of(asked, space)
    store = ScheduleStore()
    options = tuple(option for m in range(len(asked.models)) for option in every_option(asked, m))
    points = [
        Point(index=i, accelerator=candidates.accelerator(i), hbm_bytes=hbm, options=options, schedule_limit_s=3.2)
        for i in range(len(candidates))
        for hbm in candidates.hbm_bytes[:, i].tolist()
        if hbm > 0
    ]
    return [priced(asked, evaluate_point(asked, point, store)) for point in points]


def best_of(asked: DesignQuestion, space: AcceleratorSpace) -> float:
    result = search_design(asked, space)
    assert result.status is DesignStatus.OPTIMAL
    return result.best.objective if result.best else 0.0


FEW = small_space(num_vector_cores=[2], hbm_gb=[0.2])


@pytest.mark.slow
def test_a_larger_space_is_never_worse() -> None:
    more = small_space(hbm_gb=[0.02, 0.2], num_vector_cores=[2], array_cols=[32, 48])
    assert best_of(question(), FEW) <= best_of(question(), more) * (1 + 1e-9)


@pytest.mark.slow
def test_more_devices_microbatches_or_widths_are_never_worse() -> None:
    least = question(microbatch_sizes=(1,), num_devices=4)
    first = best_of(least, FEW)
    assert first <= best_of(replace(least, microbatch_sizes=(1, 4)), FEW) * (1 + 1e-9)
    assert first <= best_of(replace(least, num_devices=8), FEW) * (1 + 1e-9)
    wide = (replace(least.models[0], widths=(1, 2, 4)),)
    assert first <= best_of(replace(least, models=wide), FEW) * (1 + 1e-9)


@pytest.mark.parametrize("metric", ["area_mm2", "power_w"])
def test_a_tighter_budget_is_never_better_and_the_best_within_it_is_found(metric: str) -> None:
    asked, space = question(microbatch_sizes=(1,)), FEW
    everything = all_points(asked, space)
    sizes = sorted({getattr(each, metric) for each in everything})
    values = []
    for limit in sizes[:: max(len(sizes) // 2, 1)]:
        budgets: Any = {metric: limit}
        values.append(best_of(replace(asked, budgets=Budgets(**budgets)), space))
        within = [each.objective for each in everything if getattr(each, metric) <= limit * (1 + 1e-9)]
        assert values[-1] == pytest.approx(max(within), rel=1e-9)
    assert values == sorted(values)


@pytest.mark.slow
def test_a_budget_of_energy_is_kept_exactly() -> None:
    asked, space = question(microbatch_sizes=(1,)), FEW
    candidates, _ = candidates_of(asked, space)
    store, rows = ScheduleStore(), []
    for i in range(len(candidates)):
        point = Point(index=i, accelerator=candidates.accelerator(i), hbm_bytes=2e8, options=())
        for option in every_option(asked, 0):
            outcome, _ = evaluate_option(asked, point, option, store)
            if outcome:
                run = replace(option, recompute=outcome.recompute)
                rows.append((joules_per_token(asked, point.accelerator, run, outcome.step_s), outcome.sequences_per_s))
    energies = np.sort([energy for energy, _ in rows])
    for limit in energies[[0, len(energies) // 2]] * (1 + 1e-9):
        asked_within = replace(asked, budgets=Budgets(energy_j_per_token=float(limit)))
        within = max(rate for energy, rate in rows if energy <= limit)
        assert best_of(asked_within, space) == pytest.approx(within, rel=1e-9)
    none = replace(asked, budgets=Budgets(energy_j_per_token=float(energies[0]) * 0.99))
    assert search_design(none, space).status is DesignStatus.INFEASIBLE


@pytest.mark.parametrize(
    ("objective", "weights"),
    [
        (Objective.PER_MM2, (1.0, 1.0)),
        (Objective.PER_WATT, (5.0, 1.0)),
        (Objective.PER_DOLLAR, (1.0, 3.0)),
        (Objective.PER_OWNERSHIP_DOLLAR, (1.0, 2.0)),
    ],
)
def test_every_objective_over_several_models_by_weights_is_that_of_all_points(
    objective: Objective, weights: tuple[float, float]
) -> None:
    models = tuple(replace(m, weight=w) for m, w in zip(QUESTIONS[2].models, weights, strict=True))
    asked = replace(QUESTIONS[2], models=models, objective=objective, microbatch_sizes=(1,))
    space = small_space(num_vector_cores=[2], hbm_gb=[0.2], num_tensor_cores=[1, 4], array_rows=[32])
    everything = [each.objective for each in all_points(asked, space)]
    assert best_of(asked, space) == pytest.approx(max(everything), rel=1e-9)


def test_dear_memory_makes_for_less_of_it_per_dollar() -> None:
    asked = replace(QUESTIONS[1], objective=Objective.PER_DOLLAR, microbatch_sizes=(4,))
    space = small_space(hbm_gb=[0.02, 0.05, 20.0], num_vector_cores=[2])
    cheap, dear = (
        search_design(replace(asked, costs=DesignCosts(hbm_usd_per_gb=usd)), space).best for usd in (0.0, 1000.0)
    )
    assert cheap is not None
    assert dear is not None
    assert dear.evaluation.point.hbm_bytes <= cheap.evaluation.point.hbm_bytes
    assert dear.usd == pytest.approx(dear.die_usd + 1000.0 * dear.evaluation.point.hbm_bytes / 1e9)
    assert cheap.usd == cheap.die_usd


@pytest.mark.slow
def test_ownership_is_the_price_of_parts_package_and_electricity_of_all_years() -> None:
    asked = replace(QUESTIONS[1], objective=Objective.PER_OWNERSHIP_DOLLAR, microbatch_sizes=(4,))
    space = small_space(num_vector_cores=[2])
    free, short, long = (
        search_design(replace(asked, costs=DesignCosts(years=years, usd_per_kwh=usd)), space).best
        for years, usd in ((4, 0.0), (4, 0.1), (8, 0.1))
    )
    assert free is not None
    assert short is not None
    assert long is not None
    chip = free.evaluation.point.accelerator
    assert free.ownership_usd == pytest.approx(free.usd + package_usd(free.area_mm2, chip.num_stacks))
    for best, kwh in ((short, 4 * 8.766 * 1.56), (long, 8 * 8.766 * 1.56)):
        stacks = best.evaluation.point.accelerator.num_stacks
        parts = best.usd + package_usd(best.area_mm2, stacks)
        assert best.ownership_usd == pytest.approx(parts + best.power_w * kwh * 0.1)
        assert best.objective == pytest.approx(best.evaluation.rates[0] / best.ownership_usd / asked.num_devices)
    assert long.power_w <= free.power_w


def test_ownership_counts_switches_and_cables_beyond_the_links() -> None:
    """Four devices in nodes of two need one tier: 1/64 of a switch of 36,000 USD and 1,720 W and a cable of 1,280 USD
    for each of the two ports that 100 GB/s take."""
    asked = replace(QUESTIONS[1], objective=Objective.PER_OWNERSHIP_DOLLAR, microbatch_sizes=(4,), num_devices=4)
    owned = []
    for beyond in ({}, {"scale_up_devices": [2], "scale_out_gb_per_s": [100]}):
        best = search_design(asked, small_space(num_vector_cores=[2], num_tensor_cores=[4], **beyond)).best
        assert best is not None
        chip, costs = best.evaluation.point.accelerator, asked.costs
        parts = best.usd + package_usd(best.area_mm2, chip.num_stacks)
        network_usd, network_w = (2 * (36_000 / 64 + 1_280), 2 * 1_720 / 64) if beyond else (0.0, 0.0)
        kwh = (best.power_w + network_w) * costs.years * 8.766 * 1.56
        assert best.ownership_usd == pytest.approx(parts + network_usd + kwh * costs.usd_per_kwh)
        owned.append(best.ownership_usd)
    assert owned[1] > owned[0] + 2 * (36_000 / 64 + 1_280)


@pytest.mark.parametrize(
    ("devices", "switches", "cables"),
    [(8, 0, 0), (64, 1 / 64, 1), (1024, 3 / 64, 2), (2048, 3 / 64, 2), (4096, 5 / 64, 3)],
)
def test_a_network_has_as_many_tiers_as_its_devices_need(devices: int, switches: float, cables: int) -> None:
    nodes = replace(load_accelerator("h100_like"), scale_up_devices=8, scale_out_bytes_per_s=50e9)
    usd, watts = network_beyond(nodes, devices)
    assert usd == pytest.approx(switches * 36_000 + cables * 1_280)
    assert watts == pytest.approx(switches * 1_720)


def experts(num_experts: int = 4) -> DesignModel:
    edits = {"num_layers": 2, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 4, "vocab_size": 1024}
    edits |= {"num_experts": num_experts, "expert_ffn_hidden_size": 512}
    shape = edit_fields(load_model("mixtral-8x7b"), edits)[0]
    return DesignModel(name="experts", shape=shape, seq_len=128, widths=(1, 2))


@pytest.mark.slow
def test_copies_that_share_experts_are_searched_exactly_and_hold_what_one_copy_cannot() -> None:
    asked = question(models=(experts(),), microbatch_sizes=(1,))
    assert asked.models[0].expert_widths == (1, 2, 4)
    space = small_space(num_vector_cores=[2], hbm_gb=[0.2], array_rows=[32], num_tensor_cores=[4])
    everything = all_points(asked, space)
    assert best_of(asked, space) == pytest.approx(max(each.objective for each in everything), rel=1e-9)
    whole = replace(asked, models=(replace(asked.models[0], expert_widths=(1,)),))
    small = small_space(num_vector_cores=[2], hbm_gb=[0.018], array_rows=[32])
    alone_, shared = search_design(whole, small), search_design(asked, small)
    assert alone_.best is None or (shared.best and shared.best.objective >= alone_.best.objective)
    assert shared.best is not None
    for each in everything:
        outcome = each.evaluation.outcomes[0]
        if outcome:
            assert outcome.plan.data_parallel % outcome.option.expert_parallel == 0
            assert each.objective <= each.bound * (1 + 1e-9)


def test_experts_are_shared_by_powers_of_two_that_divide_them() -> None:
    assert expert_widths_of(load_model("gpt2-small")) == (1,)
    assert expert_widths_of(load_model("mixtral-8x7b")) == (1, 2, 4, 8)
    assert expert_widths_of(load_model("deepseek-v3"))[-1] == 256
