"""Uneven stages: the split equals the best of all splits, fits, and is never slower than the even one."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sartor
from sartor.api.plans import launch
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape, blocks
from sartor.model.training import PipelineSchedule, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans import stages
from sartor.plans.evaluate import Pricer
from sartor.plans.search import make_pricer, search_plans
from sartor.plans.stages import Chain, least_bottleneck, splits
from sartor.step import tables
from sartor.step.stage_table import BlockLoads, StageLoads, block_loads, held_bytes, stage_table
from sartor.step.stages import stage_counts
from sartor.step.step import step_each
from sartor.step.trainers.torchtitan import TORCHTITAN


def shape(layers: int = 8, model: str = "llama-3-8b", **other: Any) -> TransformerShape:
    return edit(load_model(model), num_layers=layers, **other)


def pricer(layers: int = 8, batch: int = 32, model: str = "llama-3-8b", hbm: float = 1.0, **other: Any) -> Pricer:
    where = load_cluster("dgx-h100")
    where = replace(where, gpu=replace(where.gpu, hbm_bytes=where.gpu.hbm_bytes * hbm))
    job = TrainingJob(shape=shape(layers, model, **other), seq_len=4096, global_batch_size=batch)
    return make_pricer(job, where)


def every_split(chain: Chain, pp: int) -> list[tuple[int, ...]]:
    """All ways to cut the chain into ``pp`` pieces, none empty."""
    inner = combinations(range(1, chain.size), pp - 1)
    return [(0, *cuts, chain.size) for cuts in inner]


def weights(busy: list[float], again: list[float], recomputed: int, model: TransformerShape) -> StageLoads:
    is_layer = np.array([block.layer is not None and block.kind.value == "layer" for block in blocks(model)])
    alone = BlockLoads(
        busy_s=np.array(busy), again_s=np.array(again) * is_layer, is_layer=is_layer, recompute_layers=recomputed
    )
    return StageLoads(pools=(alone,), pool_of=np.zeros(8, dtype=np.int64))


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    layers=st.integers(2, 7),
    pp=st.integers(2, 4),
    model=st.sampled_from(["llama-3-8b", "deepseek-v3"]),
)
def test_the_least_bottleneck_is_that_of_the_best_of_all_splits(
    data: st.DataObject, layers: int, pp: int, model: str
) -> None:
    model_shape = shape(max(layers, 4) if model == "deepseek-v3" else layers, model)
    job = TrainingJob(shape=model_shape, seq_len=4096, global_batch_size=8)
    chain, kinds = Chain.of(job), len(blocks(model_shape))
    seconds = st.lists(st.floats(0.01, 5.0), min_size=kinds, max_size=kinds)
    loads = weights(data.draw(seconds), data.draw(seconds), data.draw(st.sampled_from([-1, 1, 2])), model_shape)

    def bottleneck(cuts: tuple[int, ...]) -> float:
        return float(loads.of(np.diff(chain.passed[list(cuts)], axis=0)).max())

    found = least_bottleneck(chain, loads, pp)
    assert found is not None
    assert sum(found) == int(model_shape.num_layers)
    counts = stage_counts(model_shape, pp, 1, found).sum(axis=1)
    assert float(loads.of(counts).max()) == pytest.approx(min(bottleneck(cuts) for cuts in every_split(chain, pp)))


@settings(max_examples=25, deadline=None)
@given(data=st.data(), layers=st.integers(3, 7), pp=st.integers(2, 4))
def test_on_two_pools_the_least_bottleneck_is_that_of_the_best_of_all_splits(
    data: st.DataObject, layers: int, pp: int
) -> None:
    model = shape(layers)
    chain = Chain.of(TrainingJob(shape=model, seq_len=4096, global_batch_size=8))
    seconds = st.lists(st.floats(0.01, 5.0), min_size=len(blocks(model)), max_size=len(blocks(model)))
    of_pools = [weights(data.draw(seconds), data.draw(seconds), -1, model).pools[0] for _ in range(2)]
    first = data.draw(st.integers(1, pp - 1))
    loads = StageLoads(pools=tuple(of_pools), pool_of=np.repeat([0, 1], [first, pp - first]))

    def bottleneck(pieces: Any) -> float:
        return max(float(loads.of(piece, stage)) for stage, piece in enumerate(pieces))

    found = least_bottleneck(chain, loads, pp)
    assert found is not None
    best = min(bottleneck(np.diff(chain.passed[list(cuts)], axis=0)) for cuts in every_split(chain, pp))
    assert bottleneck(stage_counts(model, pp, 1, found).sum(axis=1)) == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), layers=st.integers(4, 30), pp=st.integers(2, 4), recomputed=st.sampled_from([-1, 1, 3]))
def test_bisected_stages_are_those_of_all_pairs(data: st.DataObject, layers: int, pp: int, recomputed: int) -> None:
    """Ties included: the split is the same, so a plan's name does not depend on how it was found."""
    model = shape(layers, "deepseek-v3")
    chain, kinds = Chain.of(TrainingJob(shape=model, seq_len=4096, global_batch_size=8)), len(blocks(model))
    seconds = st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0]), min_size=kinds, max_size=kinds)
    loads = weights(data.draw(seconds), data.draw(seconds), recomputed, model)
    bisected = least_bottleneck(chain, loads, pp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockLoads, "grows", False)
        assert least_bottleneck(chain, loads, pp) == bisected


def test_the_stages_of_one_pool_are_weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = shape(8)
    chain = Chain.of(TrainingJob(shape=model, seq_len=4096, global_batch_size=8))
    loads = weights([1.0] * len(blocks(model)), [0.5] * len(blocks(model)), -1, model)
    calls, real = [], StageLoads.of
    monkeypatch.setattr(StageLoads, "of", lambda self, *a: calls.append(a) or real(self, *a))
    assert least_bottleneck(chain, loads, 6) is not None
    assert len(calls) == 1


def test_memory_forbids_stages_that_do_not_fit() -> None:
    asked = pricer(layers=8)
    plan = TrainingPlan(dims=ParallelDims(pp=4, dp=2), num_microbatches=16, zero_stage=1)
    (loads,) = block_loads(asked.job, plan, asked.cluster)
    chain = Chain.of(asked.job)
    free = least_bottleneck(chain, loads, 4)
    assert free is not None
    even = float(asked.footprint(replace(plan, stage_layers=free)).device_bytes)
    tight = replace(
        asked.cluster,
        gpu=replace(asked.cluster.gpu, hbm_bytes=asked.cluster.gpu.hbm_bytes * 0.98 * even / asked.limit_bytes),
    )
    squeezed = replace(asked, cluster=tight)
    fitting = least_bottleneck(chain, loads, 4, memory=(squeezed, plan))
    options = [chain.layers_between(cuts) for cuts in every_split(chain, 4)]
    fits = [
        o
        for o in options
        if float(squeezed.footprint(replace(plan, stage_layers=o)).device_bytes) <= squeezed.limit_bytes
    ]
    assert fitting is not None
    assert fitting in fits
    loads_of = [float(loads.of(stage_counts(asked.job.shape, 4, 1, o).sum(axis=1)).max()) for o in fits]
    mine = float(loads.of(stage_counts(asked.job.shape, 4, 1, fitting).sum(axis=1)).max())
    assert mine == pytest.approx(min(loads_of))


def test_stages_within_memory_hold_the_times_of_one_stage_at_once() -> None:
    pp, size = 64, 400
    chain = stages.Chain(passed=np.arange(size + 1)[:, None], is_layer=np.array([True]))
    counts, _ = stages._pieces(chain)
    costs = np.random.default_rng(0).random((pp, len(counts)))
    one_stage = 8 * (size + 1) ** 2
    tracemalloc.start()
    try:
        assert stages._least_cuts(chain, pp, costs) is not None
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < costs.nbytes * 2.5 + 20 * one_stage < 3 * pp * one_stage


def test_bytes_of_a_stage_are_those_of_the_plan_cut_there() -> None:
    asked = pricer(layers=8)
    layers = (1, 3, 3, 1)
    plan = TrainingPlan(dims=ParallelDims(pp=4, dp=2), num_microbatches=16, zero_stage=1, stage_layers=layers)
    counts = stage_counts(asked.job.shape, 4, 1, layers)[:, 0]
    apart = [float(held_bytes(asked.job, plan, asked.cluster, counts[s : s + 1], s)[0]) for s in range(4)]
    together = [row.device_bytes for row in stage_table(asked.job, plan, asked.cluster)]
    assert apart == pytest.approx(together)
    assert max(apart) == pytest.approx(float(asked.footprint(plan).device_bytes))


@pytest.mark.parametrize(("pp", "chunks"), [(2, 2), (4, 2), (3, 3), (2, 5)])
def test_chunks_of_a_device_share_its_layers_evenly(pp: int, chunks: int) -> None:
    asked = pricer(layers=61 if chunks == 5 else 30)
    plan = TrainingPlan(dims=ParallelDims(pp=pp), virtual_stages=chunks, num_microbatches=pp * 4)
    (loads,) = block_loads(asked.job, plan, asked.cluster)
    found = splits(asked, plan, loads)
    assert found
    for layers in found:
        assert len(layers) == pp * chunks
        assert sum(layers) == asked.job.shape.num_layers
        for d in range(pp):
            assert max(layers[d::pp]) - min(layers[d::pp]) <= 1
        assert all(n > 0 for n in layers[1:-1])


def test_a_heavy_head_takes_layers_from_the_last_stage() -> None:
    """Gemma's way: a vocabulary of 256k over narrow layers makes the head as long as many layers."""
    where = load_cluster("dgx-h100")
    job = TrainingJob(
        shape=shape(26, vocab_size=256000, hidden_size=2048, num_heads=16), seq_len=4096, global_batch_size=64
    )
    held = {"pp": 4, "tp": 1, "virtual_stages": 1, "cp": 1}
    even = search_plans(job, where, 8, held, uneven=False)
    placed = search_plans(job, where, 8, held)
    assert even.best is not None
    assert placed.best is not None
    layers = placed.best.plan.stage_layers
    assert layers is not None
    assert layers[-1] < layers[1]
    assert placed.best.step_s < 0.98 * even.best.step_s
    assert placed.best.peak_bytes <= make_pricer(job, where).limit_bytes
    assert placed.unplaced == 0


@pytest.mark.parametrize("batch", [8, 24, 64])
def test_placing_layers_never_loses_to_an_even_split(batch: int) -> None:
    where = load_cluster("dgx-h100")
    job = TrainingJob(shape=shape(13), seq_len=4096, global_batch_size=batch)
    even = search_plans(job, where, 8, {"pp": 4}, uneven=False)
    placed = search_plans(job, where, 8, {"pp": 4})
    assert even.best is not None
    assert placed.best is not None
    assert placed.best.step_s <= even.best.step_s


def test_uneven_stages_can_fit_where_even_ones_do_not() -> None:
    """The last stage holds a head; with a layer less it fits."""
    asked = pricer(layers=16, vocab_size=256000)
    plan = {"pp": 4, "tp": 1, "dp": 2, "virtual_stages": 1, "microbatch_size": 1, "zero_stage": 1, "recompute": "none"}
    roomy = search_plans(asked.job, asked.cluster, 8, plan, uneven=False)
    assert roomy.best is not None
    share = 0.97 * roomy.best.peak_bytes / asked.limit_bytes
    small = replace(asked.cluster, gpu=replace(asked.cluster.gpu, hbm_bytes=asked.cluster.gpu.hbm_bytes * share))
    assert search_plans(asked.job, small, 8, plan, uneven=False).best is None
    placed = search_plans(asked.job, small, 8, plan)
    assert placed.best is not None
    assert placed.best.plan.stage_layers is not None


def test_loads_of_stages_know_what_is_recomputed() -> None:
    asked = pricer(layers=8)
    base = TrainingPlan(dims=ParallelDims(pp=2, dp=2), num_microbatches=16)
    loads = {
        again: [
            row.load_s
            for row in stage_table(asked.job, replace(base, recompute=kind, recompute_layers=again), asked.cluster)
        ]
        for again, kind in ((0, Recompute.NONE), (1, Recompute.FULL), (2, Recompute.FULL), (-1, Recompute.FULL))
    }
    assert loads[0][0] < loads[1][0] < loads[2][0] < loads[-1][0]
    assert loads[2][0] - loads[1][0] == pytest.approx(loads[1][0] - loads[0][0])


def test_in_a_v_the_first_device_holds_the_head_and_fewer_layers() -> None:
    """DeepSeek-V3 in little: the device of embedding, head and MTP module is not slower than the others, and no other
    split of layers over devices has a shorter step."""
    job = TrainingJob(shape=shape(13, "deepseek-v3"), seq_len=4096, global_batch_size=64, trainer=TORCHTITAN)
    where = load_cluster("dgx-h100")
    where = replace(where, gpu=replace(where.gpu, hbm_bytes=where.gpu.hbm_bytes * 64))
    held = {"tp": 1, "cp": 1, "pp": 4, "ep": 8, "schedule": PipelineSchedule.DUAL_PIPE_V, "zero_stage": 2}
    best = search_plans(job, where, 32, {**held, "microbatch_size": 1}).best
    assert best is not None
    layers = best.plan.stage_layers
    assert layers is not None
    assert layers[0] + layers[-1] < min(layers[d] + layers[7 - d] for d in (1, 2, 3))
    every = [
        (-(-a // 2), -(-b // 2), -(-c // 2), -(-d // 2), d // 2, c // 2, b // 2, a // 2)
        for a, b, c in product(range(8), range(2, 8), range(2, 8))
        if (d := 13 - a - b - c) >= 2
    ]
    steps = step_each(job, [replace(best.plan, stage_layers=each) for each in every], where)
    assert best.step_s == pytest.approx(min(float(each.step_s) for each in steps), rel=5e-3)


def test_a_schedule_in_a_v_needs_no_multiple_of_pp_microbatches_and_interleaving_does() -> None:
    job = TrainingJob(shape=shape(16), seq_len=4096, global_batch_size=72, trainer=TORCHTITAN)
    where, held = load_cluster("dgx-h100"), {"tp": 1, "cp": 1, "pp": 4, "virtual_stages": 2, "microbatch_size": 1}
    bent = search_plans(job, where, 16, {**held, "schedule": PipelineSchedule.DUAL_PIPE_V}).best
    assert bent is not None
    assert bent.plan.num_microbatches == 18
    plain = search_plans(job, where, 16, {**held, "schedule": PipelineSchedule.ONE_F_ONE_B})
    assert plain.best is None
    assert "interleaving needs num_microbatches to be a multiple of pp" in plain.rejected


@pytest.mark.parametrize("trainer", ["megatron", "megatron-bridge", "torchtitan"])
def test_a_stage_without_layers_is_the_embedding_or_the_head_and_its_trainer_s_files_say_so(trainer: str) -> None:
    """15 stages of 32 layers on 120 devices: Megatron-LM's layouts and torchtitan's module lists take such stages."""
    answer = sartor.plan("llama-3-8b", num_devices=120, global_batch_size=512, framework=trainer, write=trainer)
    assert answer.best is not None
    stages = answer.best.plan.stage_layers
    assert stages is not None
    assert (stages[0], stages[-1]) == (0, 0)
    assert min(stages[1:-1]) > 0
    files = launch(answer, trainer)
    written = files.priced
    assert written is answer.best
    text = "".join(file.text for file in files.files)
    assert "'E|t" in text or "['tok_embeddings'], ['layers.0']" in text
    assert "|L'" in text or "['norm', '" in text


def test_a_search_prices_its_blocks_once_and_weighs_placed_plans_together(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter[str]()
    for module, name in ((tables, "row_times"), (stages, "footprint_each"), (stages, "step_each")):
        monkeypatch.setattr(module, name, partial(_counted, counts, name, getattr(module, name)))
    cluster = load_cluster("dgx-h100")
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=512)
    placed = search_plans(job, cluster, 8).placed
    assert placed > stages.BATCH
    assert counts["row_times"] <= 2  # with gradients added by each of the trainer's two ways
    assert counts["footprint_each"] == counts["step_each"] <= placed // stages.BATCH + 2


def _counted(counts: Counter[str], name: str, function: Callable[..., Any], *words: Any, **more: Any) -> Any:
    counts[name] += 1
    return function(*words, **more)
