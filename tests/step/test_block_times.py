"""Seconds of blocks: one plan as many, nothing lost against the graph they are made of, and every kind of model."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.correction.network import without_residuals
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.grouped import grouped_cost
from sartor.cost.price import price
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Linear, Norm, Split, StateSpaceMixer
from sartor.model.lower import lower
from sartor.model.lower.setting import NARROWING
from sartor.model.shape import LayerRun, Stack, TransformerShape, blocks
from sartor.model.training import ContextParallel, Recipe, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import Axis, Collective, DType, Gemm, GroupedGemm
from sartor.step.block_times import row_times
from sartor.step.question import kernels_of, padded_vocab, supports, workload_of
from sartor.step.results import BlockTimes
from sartor.step.stages import block_rows
from sartor.step.trainers import TRAINERS
from sartor.units import round_up
from strategies import dense_shapes, moe_shapes, shapes

CLUSTER = load_cluster("dgx-h100", 256)
A100 = load_cluster("dgx-a100", 256)
FIELDS = [f.name for f in fields(BlockTimes) if f.name != "name"]
SECONDS = [name for name in FIELDS if name.endswith("_s")]


def job_of(shape: TransformerShape | str, seq_len: int = 512, **options: Any) -> TrainingJob:
    shape = load_model(shape) if isinstance(shape, str) else shape
    return TrainingJob(shape=shape, seq_len=seq_len, global_batch_size=256, **options)


def plan_of(tp: Any = 1, cp: Any = 1, ep: Any = 1, mbs: Any = 1, sp: Any = True) -> TrainingPlan:
    return TrainingPlan(dims=ParallelDims(tp=tp, cp=cp, ep=ep, sequence_parallel=sp), microbatch_size=mbs)


def block_times(
    job: TrainingJob, plan: TrainingPlan, cluster: Cluster, calibration: Calibration | None = None
) -> tuple[BlockTimes, ...]:
    """Times of every block for each of the plans: those of the distinct rows, mapped back."""
    every, rows = row_times(job, plan, cluster, calibration)
    single = rows.index.ndim == 0

    def spread(times: BlockTimes) -> BlockTimes:
        values = {name: getattr(times, name)[rows.index] for name in FIELDS}
        return BlockTimes(name=times.name, **{k: float(v) if single else v for k, v in values.items()})

    return tuple(spread(times) for times in every)


def hybrid() -> TransformerShape:
    """Mamba layers with an attention layer among them, as Jamba and Nemotron-H have."""
    state_space = StateSpaceMixer(
        inner_size=1024,
        state_size=16,
        conv_channels=1024,
        conv_size=4,
        projections=(
            Linear(name="in", d_in=512, d_out=2048),
            Linear(name="out", d_in=1024, d_out=512, split=Split.ROW),
        ),
    )
    attention = AttentionMixer(num_heads=8, num_kv_heads=4, head_dim=64)
    runs = (
        LayerRun(layer=Layer(mixers=(state_space,), norms=(Norm(),)), count=3),
        LayerRun(layer=Layer(mixers=(attention,), ffn=DenseFfn(ffn_hidden_size=1024), norms=(Norm(), Norm())), count=1),
    )
    stack = Stack(name="decoder", hidden_size=512, runs=runs, norms=(Norm(),))
    return TransformerShape(name="hybrid", stacks=(stack,), vocab_size=1024)


MODELS = ("deepseek-v3", "mixtral-8x7b", "gemma-3-4b", "t5-large", "gpt2-small", "llama-3.1-8b")


def whole(times: tuple[BlockTimes, ...], shape: TransformerShape, names: list[str]) -> Any:
    """Sum of fields over all layers of a model."""
    return sum(getattr(t, n) * b.count for t, b in zip(times, blocks(shape), strict=True) for n in names)


# -- one and many -----------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    shape=shapes(),
    exchange=st.sampled_from(ContextParallel),
    kernel=st.sampled_from(AttentionKernel),
    recipe=st.sampled_from((Recipe.BF16, Recipe.FP8_CURRENT, Recipe.FP32)),
    rows=st.lists(
        st.tuples(*(st.sampled_from(v) for v in ((1, 2, 4), (1, 2, 3), (1, 2, 4), (1, 3), (False, True)))),
        min_size=1,
        max_size=6,
    ),
)
def test_an_entry_of_an_array_is_the_single_plan_to_the_last_bit(
    shape: TransformerShape, exchange: ContextParallel, kernel: AttentionKernel, recipe: Recipe, rows: list[Any]
) -> None:
    job = job_of(shape, 96, context_parallel=exchange, attention_kernel=kernel, recipe=recipe)
    tp, cp, ep, mbs, sp = (np.array(column) for column in zip(*rows, strict=True))
    many = block_times(job, plan_of(tp, cp, ep, mbs, sp), CLUSTER)
    for i, row in enumerate(rows):
        one = block_times(job, plan_of(*row), CLUSTER)
        for a, b in zip(many, one, strict=True):
            assert {n: getattr(a, n)[i] for n in FIELDS} == {n: getattr(b, n) for n in FIELDS}


def test_fields_keep_the_axes_they_depend_on() -> None:
    plan = plan_of(tp=np.array([1, 2, 4, 8])[:, None], mbs=np.array([1, 2, 4]))
    for times in block_times(
        job_of("gpt2-small"), replace(plan, num_microbatches=np.arange(5)[:, None, None]), CLUSTER
    ):
        assert {getattr(times, name).shape for name in FIELDS} == {(4, 3)}


def test_a_million_plans_are_a_few_hundred_rows() -> None:
    grid = np.indices((8, 8, 5, 2, 1600)).reshape(5, -1)
    rows = block_rows(plan_of(grid[0] + 1, grid[1] + 1, 1, 2 ** grid[2], grid[3] == 1))
    assert rows.index.size == 1_024_000
    assert rows.size == 8 * 5 * (1 + 7 * 2)
    assert np.array_equal(rows.tp[rows.index], grid[0] + 1)
    assert np.array_equal(rows.microbatch_size[rows.index], 2 ** grid[2])


# -- against the graph ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [Recipe.BF16, Recipe.FP8_DELAYED])
@pytest.mark.parametrize("name", MODELS)
def test_blocks_add_up_to_the_estimate_of_the_graph(name: str, recipe: Recipe) -> None:
    job = job_of(name, recipe=recipe)
    dims = ParallelDims(tp=2, ep=4 if job.shape.moe_ffn else 1)
    times = block_times(job, plan_of(tp=2, ep=dims.ep, mbs=2), CLUSTER)
    graph = lower(workload_of(job, 2, 2), dims, kernels_of(job, CLUSTER))
    total = price(graph, CLUSTER.gpu, cluster=CLUSTER, details=False)
    parts = ["forward_s", "dgrad_s", "wgrad_s", "tp_forward_s", "tp_backward_s", "ep_forward_s", "ep_backward_s"]
    assert whole(times, job.shape, parts) == pytest.approx(total.time_s, rel=1e-12)
    assert whole(times, job.shape, ["flops"]) == pytest.approx(graph.matmul_flops, rel=1e-12)


@given(shape=st.one_of(dense_shapes(), moe_shapes()), tp=st.sampled_from((2, 4)), cp=st.sampled_from((1, 2, 4)))
@settings(max_examples=25, deadline=None)
def test_ranks_together_do_the_work_of_one_device(shape: TransformerShape, tp: int, cp: int) -> None:
    """But for what is replicated (key/value heads, a router without sequence parallelism)."""
    shape = replace(shape, vocab_size=round_up(shape.vocab_size, 128 * tp))
    job = job_of(shape, 64 * cp)
    alone, shared = (block_times(job, plan_of(*degrees), CLUSTER) for degrees in ((1, 1), (tp, cp)))
    work, share = whole(alone, shape, ["flops"]), whole(shared, shape, ["flops"])
    assert share * tp * cp >= work * 0.97
    if shape.num_kv_heads >= tp:
        assert share * tp * cp <= work * 1.25


# -- laws -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_one_device_communicates_nothing(name: str) -> None:
    for times in block_times(job_of(name), plan_of(), CLUSTER):
        sent = [n for n in SECONDS if n.startswith(("tp_", "cp_", "ep_"))]
        assert {n: getattr(times, n) for n in sent} == dict.fromkeys(sent, 0.0)
        assert times.forward_s > 0
        assert times.kernels > 0


@pytest.mark.parametrize("name", MODELS)
def test_time_never_falls_with_the_microbatch(name: str) -> None:
    """By the formulas alone: learned residuals may wobble by a percent."""
    plan, known = plan_of(tp=2, mbs=np.arange(1, 17)), without_residuals(load_calibration(CLUSTER.gpu))
    parts = ["forward_s", "dgrad_s", "wgrad_s", "tp_forward_s", "tp_backward_s"]
    total = whole(block_times(job_of(name, 256), plan, CLUSTER, known), load_model(name), parts)
    assert (total[1:] >= total[:-1] * (1 - 1e-9)).all()
    assert total[-1] > 1.1 * total[0]


@pytest.mark.parametrize("exchange", list(ContextParallel))
def test_context_parallelism_sends_what_attention_does_not_hide(exchange: ContextParallel) -> None:
    job = job_of("llama-3.1-8b", 8192, context_parallel=exchange)
    times = block_times(job, plan_of(cp=np.array([1, 2, 4, 8])), CLUSTER)[1]
    assert times.cp_forward_s[0] == 0
    assert (np.diff(times.forward_s) < 0).all()
    if exchange is ContextParallel.RING:
        assert (times.cp_forward_s < 0.2 * times.forward_s).all()
    else:
        assert (times.cp_forward_s[1:] > 0).all()


def test_a_ring_over_slow_links_is_exposed() -> None:
    job = job_of("llama-3.1-8b", 4096)
    near, far = (block_times(job, plan_of(tp=tp, cp=8), CLUSTER)[1] for tp in (1, 8))
    assert near.cp_backward_s < far.cp_backward_s


def test_full_recomputation_is_another_forward_and_selective_the_attention_core() -> None:
    plan = plan_of(tp=4, mbs=2)
    layer = block_times(job_of("llama-3.1-8b", 4096), plan, CLUSTER)[1]
    assert layer.full_s == pytest.approx(layer.forward_s + layer.tp_forward_s)
    unfused = block_times(job_of("llama-3.1-8b", 4096, attention_kernel=AttentionKernel.UNFUSED), plan, CLUSTER)[1]
    assert 0 < layer.selective_s < unfused.selective_s < unfused.forward_s


def test_embedding_and_head_recompute_nothing() -> None:
    first, *_, last = block_times(job_of("deepseek-v3"), plan_of(tp=2, ep=4), CLUSTER)
    assert (first.full_s, last.full_s, last.selective_s) == (0, 0, 0)


def test_what_runs_beside_products_is_part_of_what_is_sent() -> None:
    for sp in (False, True):
        for times in block_times(job_of("gpt3-13b", 2048), plan_of(tp=8, sp=sp), A100):
            assert 0 <= times.tp_beside_s <= times.tp_backward_s


def test_uneven_routing_costs_time() -> None:
    even, skewed = (
        block_times(job_of("qwen3-30b-a3b", 4096, routing_skew=skew), plan_of(ep=16), CLUSTER)[1] for skew in (1.0, 2.0)
    )
    assert skewed.forward_s > even.forward_s
    assert skewed.ep_forward_s > even.ep_forward_s
    assert skewed.forward_s < 2 * even.forward_s


def test_whole_experts_are_fewer_rows_of_wider_products() -> None:
    """Same FLOPs per device; no gather and scatter of the experts' tokens over tensor ranks."""
    split, kept = (
        block_times(job_of("mixtral-8x7b", trainer=Trainer(splits_experts=s)), plan_of(tp=2, ep=4), CLUSTER)[1]
        for s in (True, False)
    )
    assert split.flops == kept.flops
    assert split.tp_forward_s > kept.tp_forward_s


def test_every_kind_of_model_has_times() -> None:
    for shape in (*(load_model(name) for name in MODELS), hybrid()):
        for exchange in ContextParallel:
            job = job_of(shape, 256, context_parallel=exchange)
            for times in block_times(job, plan_of(tp=np.array([1, 2]), cp=np.array([1, 2])), CLUSTER):
                for name in FIELDS:
                    values = getattr(times, name)
                    assert np.isfinite(values).all(), (shape.name, times.name, name)
                    assert (values >= 0).all(), (shape.name, times.name, name)


def test_a_mamba_layer_swaps_sequence_for_channels() -> None:
    job = job_of(hybrid(), 256)
    assert block_times(job, plan_of(cp=2), CLUSTER)[1].cp_forward_s > 0


# -- bad input --------------------------------------------------------------------------------------------------


def test_sizes_that_do_not_divide_are_an_error_for_one_plan_and_finite_for_many() -> None:
    job = job_of("gpt2-small")
    with pytest.raises(InputError, match="tp=5: does not split num_heads=12"):
        block_times(job, plan_of(tp=5), CLUSTER)
    times = block_times(job, plan_of(tp=np.arange(1, 12), cp=np.arange(1, 12)), CLUSTER)
    assert all(np.isfinite(getattr(t, n)).all() for t in times for n in FIELDS)


@pytest.mark.parametrize(
    ("recipe", "cluster", "nearest"),
    [
        (Recipe.FP8_CURRENT, "dgx-a100", "bf16"),
        (Recipe.MXFP8, "dgx-h100", "fp8_block"),
        (Recipe.NVFP4, "dgx-h100", "fp8_block"),
        (Recipe.BF16, "summit", "fp16"),
        (Recipe.FP32, "tpu-v4", "bf16"),
    ],
)
def test_a_recipe_the_device_has_no_units_for_names_the_nearest(recipe: Recipe, cluster: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"recipe={recipe.value}: .* has no matrix units for it; nearest: {nearest}"):
        block_times(job_of("gpt2-small", recipe=recipe), plan_of(), load_cluster(cluster, 64))


# -- recipes ----------------------------------------------------------------------------------------------------


def test_narrow_recipes_cast_where_bf16_does_not_and_pay_for_it_in_small_layers() -> None:
    def passes(recipe: Recipe, name: str) -> float:
        return whole(
            block_times(job_of(name, 4096, recipe=recipe), plan_of(), CLUSTER), load_model(name), ["forward_s"]
        )

    for recipe in (Recipe.FP8_DELAYED, Recipe.FP8_CURRENT, Recipe.FP8_BLOCK):
        assert passes(recipe, "llama-3.1-70b") < 0.8 * passes(Recipe.BF16, "llama-3.1-70b")
        assert passes(recipe, "gpt2-small") > passes(Recipe.BF16, "gpt2-small") * 0.95
    assert passes(Recipe.FP8_DELAYED, "llama-3.1-8b") < passes(Recipe.FP8_CURRENT, "llama-3.1-8b")


def test_every_narrow_recipe_runs_somewhere() -> None:
    blackwell = load_cluster("dgx-b200", 8)
    for recipe in NARROWING:
        assert supports(recipe, blackwell.gpu)
        assert block_times(job_of("llama-3.1-8b", recipe=recipe), plan_of(), blackwell)[1].forward_s > 0


@pytest.mark.parametrize("recipe", [Recipe.FP8_DELAYED, Recipe.FP8_BLOCK])
def test_a_plan_and_a_bare_workload_narrow_operands_alike(recipe: Recipe) -> None:
    job = job_of("llama-3.1-70b", 4096, recipe=recipe)
    dims = ParallelDims(tp=8)
    planned, asked = (lower(workload_of(job, 8), dims, each) for each in (kernels_of(job, CLUSTER), None))
    times = [price(graph, CLUSTER.gpu, details=False).time_s for graph in (planned, asked)]
    assert times[0] == pytest.approx(times[1], rel=1e-12)
    assert all(op.quantized == (op.dtype.bytes < 2) for op in asked.operators if isinstance(op, Gemm))


def test_narrow_operands_are_gathered_narrow() -> None:
    job = job_of("llama-3.1-70b", 4096, recipe=Recipe.FP8_CURRENT)
    graph = lower(workload_of(job, 4), ParallelDims(tp=4), kernels_of(job, CLUSTER))
    sent = {op.name: op.message_bytes for op in graph.operators if isinstance(op, Collective)}
    assert sent["mlp.all_gather"] * 2 == sent["mlp.reduce_scatter"] == sent["logits.all_gather"]


def test_eager_trainers_move_more() -> None:
    fused, eager = (
        block_times(job_of("llama-3.1-8b", 2048, trainer=Trainer(fused_kernels=f)), plan_of(), CLUSTER)[1]
        for f in (True, False)
    )
    assert eager.forward_s > 1.05 * fused.forward_s
    assert eager.kernels > fused.kernels
    assert eager.flops == fused.flops


def test_frozen_weights_have_no_weight_gradient() -> None:
    times = block_times(job_of("llama-3.1-8b", trains_weights=False), plan_of(), CLUSTER)[1]
    assert times.wgrad_s == 0
    assert times.dgrad_s > 0


@given(vocab=st.integers(1, 300_000), tp=st.sampled_from((1, 2, 8)))
def test_a_padded_vocabulary_splits_into_whole_tiles(vocab: int, tp: int) -> None:
    job = job_of(replace(hybrid(), vocab_size=vocab))
    padded = padded_vocab(job.shape, job.trainer, tp)
    assert padded % (128 * tp) == 0
    assert 0 <= padded - vocab < 128 * tp
    assert padded_vocab(job.shape, TRAINERS["torchtitan"], tp) == vocab


# -- what is sent -----------------------------------------------------------------------------------------------


def test_groups_lie_in_the_order_ranks_are_numbered() -> None:
    """tp innermost, cp a tensor group apart; whole experts on neighbours, divided ones a tensor group apart."""
    job = job_of("mixtral-8x7b")
    for splits, apart in ((True, 4), (False, 1)):
        kernels = replace(kernels_of(job, CLUSTER), splits_experts=splits)
        graph = lower(workload_of(job, 4), ParallelDims(tp=4, cp=2, ep=8), kernels)
        strides = {(op.axis, op.stride) for op in graph.operators if isinstance(op, Collective)}
        assert strides == {(Axis.TENSOR, 1), (Axis.CONTEXT, 4), (Axis.EXPERT, apart)}


def test_a_ring_passes_keys_and_values_cp_minus_one_times_and_brings_their_gradients_home() -> None:
    job = job_of("llama-3.1-8b", 4096)
    graph = lower(workload_of(job, 1, 2), ParallelDims(cp=4), kernels_of(job, CLUSTER))
    ops = {op.name: op for op in graph.operators}
    mine = 2 * 1024 * 8 * (128 + 128) * 2  # sequences, tokens, heads, widths, bytes
    layers = 32
    assert (ops["attention.cp_ring"].message_bytes, ops["attention.cp_ring"].count) == (mine, 3 * layers)
    assert (ops["attention.cp_grad_ring"].message_bytes, ops["attention.cp_grad_home"].message_bytes) == (
        2 * mine,
        mine,
    )
    assert ops["attention"].count == 4 * layers


def test_an_all_to_all_swaps_queries_keys_values_and_outputs() -> None:
    job = job_of("llama-3.1-8b", 4096, context_parallel=ContextParallel.ALL_TO_ALL)
    graph = lower(workload_of(job), ParallelDims(cp=4), kernels_of(job, CLUSTER))
    ops = {op.name: op for op in graph.operators}
    assert ops["attention.cp_scatter"].message_bytes == 1024 * (32 + 2 * 8) * 128 * 2
    assert ops["attention.cp_gather"].message_bytes == 1024 * 32 * 128 * 2
    assert (ops["attention"].num_heads, ops["attention"].num_kv_heads, ops["attention"].seq_q) == (8, 2, 4096)


def test_windows_keep_their_pairs_under_context_parallelism() -> None:
    """Gemma's local layers: as many query-key pairs over all ranks as on one device, to a key per query."""
    shape = load_model("gemma-3-4b")
    for exchange in ContextParallel:
        job = job_of(shape, 8192, context_parallel=exchange)
        alone, shared = (whole(block_times(job, plan_of(cp=cp), CLUSTER), shape, ["flops"]) for cp in (1, 4))
        assert shared * 4 == pytest.approx(alone, rel=2e-3)


def test_distinct_rows_share_one_table() -> None:
    job = job_of("gpt2-small")
    times, rows = row_times(job, plan_of(tp=np.array([1, 2, 1, 2]), sp=np.array([True, True, False, False])), CLUSTER)
    assert rows.size == 3
    assert times[0].forward_s.shape == (3,)
    assert rows.index.tolist() == [0, 2, 0, 1]


def test_a_token_goes_to_a_node_once_where_copies_are_made_there() -> None:
    """Top 8 of 128 experts over 4 nodes of 8: drawn evenly they lie on 4 (1 - (3/4)^8) = 3.6 of the nodes, not 8."""
    shape = load_model("qwen3-30b-a3b")
    sent = []
    for once in (False, True):
        job = job_of(shape, 4096, trainer=Trainer(dispatch_once=once))
        graph = lower(workload_of(job), ParallelDims(ep=32), kernels_of(job, CLUSTER))
        sent += [op.message_bytes for op in graph.operators if op.name == "dispatch.all_to_all"]
    each = 4096 * 2048 * 2
    assert sent == pytest.approx([8 * each, 4 * (1 - 0.75**8) * each])


@given(st.sampled_from((1, 2, 4, 8, 16, 32, 64)), st.sampled_from((1, 2, 4)))
@settings(max_examples=15, deadline=None)
def test_sending_once_never_sends_more(ep: int, tp: int) -> None:
    times = [
        block_times(job_of("qwen3-30b-a3b", 1024, trainer=Trainer(dispatch_once=once)), plan_of(tp=tp, ep=ep), CLUSTER)
        for once in (False, True)
    ]
    assert times[1][1].ep_forward_s <= times[0][1].ep_forward_s * (1 + 1e-12)


def test_products_of_narrow_operands_are_priced_without_the_tables_quantizing_kernel() -> None:
    known = load_calibration(CLUSTER.gpu)
    plain, narrow = (
        gemm_cost(Gemm(name="x", m=8192, n=8192, k=8192, dtype=DType.FP8, quantized=q), CLUSTER.gpu, known)
        for q in (False, True)
    )
    assert narrow.time_s < plain.time_s
    assert narrow.time_s > 2 * 8192**3 / CLUSTER.gpu.peak(DType.FP8)


def test_experts_run_the_faster_of_a_grouped_kernel_and_one_product_each() -> None:
    known = load_calibration(CLUSTER.gpu)
    for rows in (64, 4096, 262_144):
        op = GroupedGemm(name="x", groups=8, rows=rows, n=4096, k=2048)
        grouped, apart = (grouped_cost(replace(op, apart=a), CLUSTER.gpu, known).time_s for a in (False, True))
        assert apart <= grouped
