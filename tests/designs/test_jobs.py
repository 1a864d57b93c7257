"""Chips for serving, for jobs of several phases, and of several operand types: what the search finds is what trying
everything finds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from design_samples import every_option, small_shape, small_space
from effort import times
from sartor.cost.chip.area import die_area
from sartor.cost.chip.operator_latency import _operator_time_s, operator_floor
from sartor.cost.chip.ownership import operator_energy, power
from sartor.designs.ask import Jobs, design_models, design_question, objective_of
from sartor.designs.candidates import DesignStatus, candidates_of
from sartor.designs.point import Point, ScheduleStore, evaluate_point
from sartor.designs.question import DesignQuestion, Mean, Objective
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator, Dataflow
from sartor.hardware.catalog import load_gpu
from sartor.model.workload import Phase
from sartor.operators import Collective, CollectiveKind, DType, Gemm
from sartor.report.design_words import chip_text

WORDS = ("prefill", "decode", "train:0.6,decode:0.4", "prefill:0.5,decode:0.5", "throughput")
PER = ("", "-per-mm2", "-per-watt", "-per-dollar", "-per-ownership-dollar")


def jobs_question(space: AcceleratorSpace, words: str, **limits: Any) -> DesignQuestion:
    shares, per = objective_of(words)
    models, _ = design_models([small_shape(2, 128)], 4, 64, jobs=Jobs(shares=shares, **limits), tensor_parallel=(1, 2))
    models = tuple(replace(model, batch_sizes=(1, 8, 64)) for model in models)
    trained = not all(model.served for model in models)
    sizes: dict[str, Any] = {"num_devices": 4, "global_batch_size": 8 if trained else None, "objective": per}
    if trained:
        sizes["microbatch_size"] = (1, 4)
    return design_question(models, space, **sizes)


def best_of_all(asked: DesignQuestion, space: AcceleratorSpace) -> float:
    """The best objective by every option of every point."""
    candidates, _ = candidates_of(asked, space)
    options = tuple(x for m in range(len(asked.models)) for x in every_option(asked, m))
    store, most = ScheduleStore(), 0.0
    for i in range(len(candidates)):
        for h, hbm in enumerate(candidates.hbm_bytes[:, i]):
            chip = candidates.accelerator(i)
            point = Point(index=i, accelerator=chip, hbm_bytes=float(hbm), options=options, schedule_limit_s=3.2)
            rates = np.array(evaluate_point(asked, point, store).rates)
            most = max(most, float(asked.together(rates)) / float(candidates.divisor[h, i]))
    return most


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(3, 1000)))
def test_any_job_on_any_type_of_array_is_searched_exactly(seed: int) -> None:
    draw = np.random.default_rng(seed)
    types = draw.permutation(["bf16", "fp8", "mxfp8", "nvfp4"])[: draw.integers(1, 4)].tolist()
    space = small_space(
        num_tensor_cores=draw.choice([1, 2, 4, 8], 2, replace=False).tolist(),
        num_vector_cores=[int(draw.choice([1, 2, 4]))],
        array_rows=[int(draw.choice([8, 16, 32]))],
        global_buffer_mib=[int(draw.choice([1, 2, 8]))],
        hbm_gb=draw.choice([0.004, 0.01, 0.2], 2, replace=False).tolist(),
        packed_dtype=types,
        node_nm=int(draw.choice([22, 7, 5])),
    )
    words = str(draw.choice(WORDS)) + str(draw.choice(PER))
    limits = {}
    if "prefill" in words and draw.random() < 0.5:
        limits["ttft_s"] = float(10 ** draw.uniform(-4.5, -2.5))
    if "decode" in words and draw.random() < 0.5:
        limits["tpot_s"] = float(10 ** draw.uniform(-5, -3.5))
    asked = jobs_question(space, words, **limits)
    result, most = search_design(asked, space), best_of_all(asked, space)
    if result.best is None:
        assert (result.status, most) == (DesignStatus.INFEASIBLE, 0.0)
        return
    assert result.status is DesignStatus.OPTIMAL
    assert result.best.objective == pytest.approx(most, rel=1e-9)
    point = result.best.evaluation.point
    for model, outcome in zip(asked.models, result.best.evaluation.outcomes, strict=True):
        assert outcome is not None
        assert point.accelerator.multiplies(outcome.option.split.dtype)
        assert outcome.step_s <= (model.latency_s or np.inf)


def test_more_time_for_a_pass_is_never_worse_and_none_at_all_is_an_answer() -> None:
    space, reached = small_space(hbm_gb=[0.2]), []
    for tpot_s in (1e-9, 5e-5, 1e-4, 1e-3, None):
        found = search_design(jobs_question(space, "decode", tpot_s=tpot_s), space)
        reached.append(found.best.objective if found.best else 0.0)
        assert found.best is not None or "tpot_ms=1e-06" in found.tightest
    assert reached[0] == 0
    assert reached[1] > 0
    assert all(a <= b for a, b in pairwise(reached))


@pytest.mark.slow
@pytest.mark.parametrize("words", ["prefill", "decode", "train:0.5,decode:0.5"])
def test_a_limit_that_no_chip_meets_names_the_nearest_that_one_does(words: str) -> None:
    space = small_space(hbm_gb=[0.2])
    field = "ttft" if words == "prefill" else "tpot"
    told = search_design(jobs_question(space, words, **{f"{field}_s": 1e-9}), space).tightest
    nearest_s = 1e-3 * float(told.removesuffix(" is reached").rpartition(f"{field}_ms=")[2])
    assert search_design(jobs_question(space, words, **{f"{field}_s": nearest_s}), space).best is not None
    assert search_design(jobs_question(space, words, **{f"{field}_s": 0.98 * nearest_s}), space).best is None


def test_a_copy_that_holds_the_weights_and_no_cache_serves_nothing() -> None:
    found = search_design(jobs_question(small_space(), "decode"), small_space(hbm_gb=[0.0005]))
    assert found.status is DesignStatus.INFEASIBLE
    assert found.tightest.startswith("hbm_bytes=500000")


@pytest.mark.slow
def test_a_choice_of_types_is_never_worse_than_one_of_them() -> None:
    def reached(*types: str) -> float:
        space = small_space(packed_dtype=list(types), hbm_gb=[0.2], node_nm=7)
        best = search_design(jobs_question(space, "train:0.5,prefill:0.5-per-watt"), space).best
        return best.objective if best else 0.0

    both = reached("bf16", "fp8")
    assert both == pytest.approx(max(reached("bf16"), reached("fp8")))


@pytest.mark.parametrize("gpu", ["h100_sxm", "b200_sxm", "mi355x"])
def test_operands_are_packed_as_gpus_pack_them(gpu: str) -> None:
    peaks = load_gpu(gpu).peak_flops_per_s
    for dtype in (DType.FP8, DType.NVFP4, DType.MXFP4):
        if dtype in peaks:
            chip = chip_with(dtype)
            assert round(peaks[dtype] / peaks[DType.BF16]) == chip.packing(dtype)


def chip_with(dtype: DType | None, **changes: Any) -> Accelerator:
    sizes = {"num_tensor_cores": 4, "num_vector_cores": 2, "width": 32, "depth": 32, "global_buffer_mib": 4}
    return Accelerator.from_template(**sizes, packed_dtype=dtype, node_nm=7, **changes)


@pytest.mark.parametrize("dataflow", list(Dataflow))
@pytest.mark.parametrize("dtype", [DType.FP8, DType.MXFP8, DType.NVFP4])
def test_packed_products_are_never_slower_nor_below_their_floor(dtype: DType, dataflow: Dataflow) -> None:
    plain, packed = chip_with(None, dataflow=dataflow), chip_with(dtype, dataflow=dataflow)
    for m, n, k in ((64, 64, 64), (1, 512, 300), (777, 96, 4096)):
        op = Gemm(name="g", m=m, n=n, k=k, dtype=dtype)
        assert _operator_time_s(op, packed) <= _operator_time_s(op, plain) * (1 + 1e-12)
        assert operator_floor(op, packed).least_s <= _operator_time_s(op, packed) * (1 + 1e-12)


def test_arrays_that_pack_take_more_area_and_power_and_less_energy_for_a_product() -> None:
    chips = [chip_with(dtype) for dtype in (None, DType.FP8, DType.NVFP4)]
    areas, watts = ([f(chip) for chip in chips] for f in (lambda a: die_area(a).arrays_mm2, lambda a: power(a).tdp_w))
    assert areas[0] < areas[1] < areas[2] < 1.5 * areas[0]
    assert watts[0] < watts[1] <= watts[2]
    op = Gemm(name="g", m=512, n=512, k=4096, dtype=DType.FP8)
    assert operator_energy(op, chips[1]).arithmetic_j < operator_energy(op, chips[0]).arithmetic_j


@pytest.mark.parametrize(
    ("words", "shares", "per"),
    [
        ("throughput", {Phase.TRAIN: 1.0}, Objective.THROUGHPUT),
        ("decode-per-watt", {Phase.DECODE: 1.0}, Objective.PER_WATT),
        ("Prefill", {Phase.PREFILL: 1.0}, Objective.THROUGHPUT),
        ("train:0.7,decode:0.3", {Phase.TRAIN: 0.7, Phase.DECODE: 0.3}, Objective.THROUGHPUT),
        ("train:0.7,decode:0.3-per-mm2", {Phase.TRAIN: 0.7, Phase.DECODE: 0.3}, Objective.PER_MM2),
    ],
)
def test_words_name_the_jobs_and_what_they_are_divided_by(
    words: str, shares: dict[Phase, float], per: Objective
) -> None:
    assert objective_of(words) == (shares, per)


@pytest.mark.parametrize("words", ["speed", "decode-per-kilo", "train:0.7,decode:0.4", "train:0.7,write:0.3"])
def test_words_that_name_no_objective_are_refused(words: str) -> None:
    with pytest.raises(InputError, match="objective"):
        objective_of(words)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("thruput", "throughput"),
        ("prefil", "prefill"),
        ("throughput-per-wat", "throughput-per-watt"),
        ("x", "throughput"),
    ],
)
def test_a_misspelt_objective_is_answered_by_the_nearest(words: str, nearest: str) -> None:
    with pytest.raises(InputError) as found:
        objective_of(words)
    assert found.value.nearest == nearest


def test_shares_are_repeated_as_they_were_typed() -> None:
    with pytest.raises(InputError, match="decode:-1"):
        objective_of("train:2,decode:-1")


def test_limits_of_a_phase_that_is_not_asked_for_and_sums_over_phases_are_refused() -> None:
    with pytest.raises(InputError, match="tpot_ms=20"):
        Jobs(tpot_s=0.02)
    with pytest.raises(InputError, match="context_len"):
        Jobs(shares={Phase.PREFILL: 1.0}, context_len=1)
    space = small_space()
    with pytest.raises(InputError, match="geometric"):
        replace(jobs_question(space, "train:0.5,decode:0.5"), mean=Mean.ARITHMETIC)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(3, 1000)))
def test_tiers_of_links_are_searched_exactly(seed: int) -> None:
    draw = np.random.default_rng(10_000 + seed)
    space = small_space(
        num_tensor_cores=[4],
        num_vector_cores=[2],
        array_rows=[16],
        hbm_gb=[float(draw.choice([0.004, 0.2]))],
        num_links=draw.choice([1, 2, 4], 2, replace=False).tolist(),
        scale_up_devices=draw.choice([1, 2, 4, 8], 2, replace=False).tolist(),
        scale_out_gb_per_s=draw.choice([0.5, 5, 50], 2, replace=False).tolist(),
        node_nm=7,
    )
    asked = jobs_question(space, str(draw.choice(WORDS)) + str(draw.choice(PER)))
    result, most = search_design(asked, space), best_of_all(asked, space)
    reached = result.best.objective if result.best else 0.0
    assert reached == pytest.approx(most, rel=1e-9)
    assert (result.status is DesignStatus.OPTIMAL) == (most > 0)


def test_links_that_reach_all_devices_price_as_links_without_a_tier_and_others_as_the_network_beyond() -> None:
    flat = chip_with(None)
    tiers = {"scale_out_bytes_per_s": 1e9, "scale_out_latency_s": 1e-5}
    for kind in CollectiveKind:
        for group, stride, inside in ((4, 1, True), (4, 2, True), (8, 2, False), (16, 1, False)):
            op = Collective(name="c", kind=kind, group_size=group, stride=stride, message_bytes=1e6)
            there = chip_with(None, scale_up_devices=8, **tiers)
            beyond = chip_with(None, num_links=1, link_bytes_per_s=1e9, link_latency_s=1e-5)
            assert _operator_time_s(op, there) == _operator_time_s(op, flat if inside else beyond)
    with pytest.raises(InputError, match="scale_out_gb_per_s"):
        chip_with(None, scale_up_devices=8)


def test_a_chip_that_packs_narrow_operands_says_so() -> None:
    assert "of 32 x 32 packing fp8, 2 vector cores" in chip_text(chip_with(DType.FP8))
    assert "packing" not in chip_text(chip_with(None))
