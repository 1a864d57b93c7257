"""Activations of a layer against the closed forms of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Norm
from sartor.model.training import Recipe, TrainingJob, TrainingPlan
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.model.zoo import load_model
from sartor.step.activations import Activations, layer_activations, rows_of
from sartor.step.trainers import TRAINERS, as_launched


def exactly(value: float) -> object:
    """Equal but for the rounding of a few multiplications."""
    return pytest.approx(value, rel=1e-14)


def _paper_layer(h: int, a: int) -> Layer:
    attention = AttentionMixer(num_heads=a, num_kv_heads=a, head_dim=h // a)
    return Layer(
        mixers=(attention,), ffn=DenseFfn(ffn_hidden_size=4 * h, gated=False), norms=(Norm(name="1"), Norm(name="2"))
    )


def _job(kernel: AttentionKernel = AttentionKernel.UNFUSED, **changes: object) -> TrainingJob:
    job = TrainingJob(
        shape=load_model("gpt3-175b"), seq_len=2048, global_batch_size=64, dropout=True, attention_kernel=kernel
    )
    return replace(job, **changes)  # type: ignore[arg-type]


def _activations(job: TrainingJob, h: int, a: int, tp: int = 1, b: int = 1, sp: bool = False) -> Activations:
    plan = TrainingPlan(dims=ParallelDims(tp=tp, sequence_parallel=sp), microbatch_size=b)
    return layer_activations(rows_of(job, plan), _paper_layer(h, a), h)


@pytest.mark.parametrize(("h", "a", "b"), [(6144, 64, 4), (12288, 96, 1), (20480, 128, 1), (25600, 160, 1)])
def test_one_layer_keeps_what_equation_1_says(h: int, a: int, b: int) -> None:
    s = 2048
    kept = _activations(_job(), h, a, b=b)
    assert kept.whole == exactly(s * b * h * (34 + 5 * a * s / h))
    assert kept.selective == 34 * s * b * h
    assert kept.inputs == 2 * s * b * h


def test_the_models_of_table_3_keep_these_gigabytes_per_layer() -> None:
    """s b h (34 + 5 a s / h) by hand: 22B has s b h = 2048 * 4 * 6144 and 5 a s / h = 106.67, 175B 12288 and 80."""
    assert _activations(_job(), 6144, 64, b=4).whole == pytest.approx(7.0800e9, rel=1e-4)
    assert _activations(_job(), 12288, 96, b=1).whole == pytest.approx(2.8689e9, rel=1e-4)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_parallelism_leaves_10_and_divides_24_and_the_scores(t: int) -> None:
    """Equation 2."""
    s, h, a = 2048, 12288, 96
    assert _activations(_job(), h, a, tp=t).whole == exactly(s * h * (10 + 24 / t + 5 * a * s / (h * t)))


@pytest.mark.parametrize("t", [2, 4, 8])
def test_sequence_parallelism_divides_everything(t: int) -> None:
    """Equations 4 and 6."""
    s, h, a = 2048, 12288, 96
    kept = _activations(_job(), h, a, tp=t, sp=True)
    assert kept.whole == exactly(s * h / t * (34 + 5 * a * s / h))
    assert kept.selective == 34 * s * h / t
    assert kept.inputs == 2 * s * h / t


def test_flash_attention_keeps_one_fp32_number_per_row_in_place_of_the_scores() -> None:
    s, h, a = 2048, 12288, 96
    assert _activations(_job(AttentionKernel.FLASH), h, a).whole == 34 * s * h + 4 * a * s


def test_a_gated_layer_with_grouped_queries_keeps_its_own_widths() -> None:
    """Llama 3 8B, s = 8192, b = 1: four residual-wide tensors, q and out of h, k and v of h/4, three of f = 14336, in
    two bytes: s (4 h + 2 h + h/2 + 3 f) 2 + 4 a s."""
    shape = load_model("llama-3.1-8b")
    job = TrainingJob(shape=shape, seq_len=8192, global_batch_size=8)
    rows = rows_of(job, TrainingPlan())
    kept = layer_activations(rows, shape.main.runs[0].layer, 4096)
    assert kept.whole == 8192 * (2 * (6.5 * 4096 + 3 * 14336) + 4 * 32)


def test_fp8_inputs_are_kept_narrow_by_the_trainers_that_keep_them_so() -> None:
    shape = load_model("llama-3.1-8b")
    job = TrainingJob(shape=shape, seq_len=8192, global_batch_size=8, recipe=Recipe.FP8_DELAYED)
    layer = shape.main.runs[0].layer

    def whole(j: TrainingJob) -> float:
        return float(layer_activations(rows_of(j, TrainingPlan()), layer, 4096).whole)

    sixteen = whole(replace(job, recipe=Recipe.BF16))
    # two normed inputs and the activation's output a byte less; attention's output once more, as the product reads it
    assert whole(job) == sixteen - 8192 * (2 * 4096 + 14336) + 8192 * 4096
    eager = replace(job, trainer=as_launched(TRAINERS["torchtitan"]))
    assert whole(eager) == sixteen


def test_experts_keep_a_row_for_every_token_they_see() -> None:
    """Mixtral 8x7B on one device, every token at two experts: routed inputs, three widths of 14336, and the router."""
    shape = load_model("mixtral-8x7b")
    job = TrainingJob(shape=shape, seq_len=4096, global_batch_size=8)
    kept = layer_activations(rows_of(job, TrainingPlan()), shape.main.runs[0].layer, 4096)
    s, h, f = 4096, 4096, 14336
    attention = s * 2 * (6.5 * h) + 4 * 32 * s
    assert kept.whole == attention + 2 * s * (2 * (h + 3 * f) + 4) + 8 * 8 * s


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.integers(1, 4), st.booleans())
def test_recomputing_more_never_keeps_more(tp: int, cp: int, b: int, sp: bool) -> None:
    job = _job()
    plan = TrainingPlan(dims=ParallelDims(tp=tp, cp=cp, sequence_parallel=sp), microbatch_size=b)
    for name in ("gpt3-175b", "deepseek-v3", "llama-3.1-8b", "gemma-2-9b"):
        shape = load_model(name)
        rows = rows_of(replace(job, shape=shape), plan)
        for run in shape.main.runs:
            kept = layer_activations(rows, run.layer, shape.hidden_size)
            assert kept.inputs < kept.selective < kept.whole


@given(st.lists(st.tuples(*[st.sampled_from([1, 2, 4, 8])] * 3), min_size=1, max_size=6))
def test_arrays_of_plans_give_what_each_gives_alone(plans: list[tuple[int, int, int]]) -> None:
    shape = load_model("deepseek-v3")
    job = TrainingJob(shape=shape, seq_len=4096, global_batch_size=64)
    tp, ep, b = (np.array(x) for x in zip(*plans, strict=True))
    layer = shape.main.runs[-1].layer

    def of(tp: object, ep: object, b: object) -> Activations:
        plan = TrainingPlan(dims=ParallelDims(tp=tp, ep=ep), microbatch_size=b)  # type: ignore[arg-type]
        return layer_activations(rows_of(job, plan), layer, shape.hidden_size)

    many = of(tp, ep, b)
    for i, plan in enumerate(plans):
        alone = of(*plan)
        assert (many.whole[i], many.backward[i]) == (alone.whole, alone.backward)  # type: ignore[index]


def test_a_layer_of_elementwise_kernels_keeps_what_pytorch_does() -> None:
    """A Llama layer of nn.RMSNorm, complex rotary, repeated keys and values, scaled_dot_product_attention and
    silu(w1 x) * w3 x under PyTorch 2.13's saved-tensor hooks (CPU, bf16, 2026-11-21): h = 256, 8 heads, 2 key/value
    heads of 32, f = 896, 512 tokens keep 7426048 bytes, of which rotary angles and norms' row sums are 69632."""
    attention = AttentionMixer(num_heads=8, num_kv_heads=2, head_dim=32)
    layer = Layer(
        mixers=(attention,), ffn=DenseFfn(ffn_hidden_size=896, gated=True), norms=(Norm(name="1"), Norm(name="2"))
    )
    eager = TRAINERS["torchtitan"]
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=512, global_batch_size=1, trainer=eager)
    kept = layer_activations(rows_of(job, TrainingPlan()), layer, 256)
    assert kept.whole == 7426048 - 69632


def test_attention_s_backward_adds_one_gradient_of_the_scores_less_what_the_feed_forward_part_freed() -> None:
    s, b, h, a = 2048, 1, 2048, 16
    scores, ffn = 2 * a * s * s * b, 16 * s * b * h
    vectors = 8 * s * b * h
    assert _activations(_job(), h, a).backward == 2 * s * b * h + vectors + scores - ffn
    eager = replace(_job(dropout=False), trainer=replace(_job().trainer, fused_kernels=False))
    assert _activations(eager, h, a).backward == 2 * s * b * h + vectors + 2 * scores - ffn


def _kept_by(name: str, job: TrainingJob, tp: int = 1, **dims: int) -> Activations:
    """Of the last kind of layer of ``job``'s model, under the trainer ``name``."""
    plan = TrainingPlan(dims=ParallelDims(tp=tp, sequence_parallel=False, **dims))
    rows = rows_of(replace(job, trainer=TRAINERS[name]), plan)
    return layer_activations(rows, job.shape.main.runs[-1].layer, job.shape.hidden_size)


def test_frozen_layers_keep_what_adapters_read_and_no_input_of_their_own_products() -> None:
    """Llama 2 70B with adapters at attention, FP8: two residual inputs, the adapter's 16-bit input, queries, keys and
    values, attention's output, the activation function's input; 17.5 h bytes and row sums with that in 8 bits."""
    job = TrainingJob(
        shape=load_model("llama-2-70b"),
        seq_len=8192,
        global_batch_size=8,
        recipe=Recipe.FP8_DELAYED,
        trains_weights=False,
    )
    h, f, sums = 8192, 28672, 4 * 64
    assert _kept_by("nemo", job).whole == 8192 * (2 * (2 + 1 + 1.25 + 1) * h + 2 * 2 * f + sums)
    nemo = TRAINERS["nemo"]
    narrow = replace(job, trainer=replace(nemo, memory=replace(nemo.memory, narrow_act=True)))
    kept = layer_activations(rows_of(narrow, TrainingPlan()), job.shape.main.runs[0].layer, h)
    assert kept.whole == 8192 * (10.5 * h + 2 * f + sums) == 8192 * (17.5 * h + sums)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_maxtext_shards_the_input_of_a_layer_over_the_tensor_axis_without_sequence_parallelism(tp: int) -> None:
    job = TrainingJob(shape=load_model("llama-3.1-70b"), seq_len=8192, global_batch_size=8)
    assert _kept_by("maxtext", job, tp=tp).inputs == 8192 * 8192 * 2 / tp
    assert _kept_by("megatron", job, tp=tp).inputs == 8192 * 8192 * 2


def test_named_tensors_leave_one_input_of_a_norm() -> None:
    """MaxText computes the sums between GEMMs again from what is named; Megatron-LM keeps both norms' inputs."""
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=8)
    assert _kept_by("megatron", job).whole - _kept_by("maxtext", job).whole == 8192 * 4096 * 2


def test_by_operator_a_mixture_keeps_the_exchanged_rows_and_no_grouped_product() -> None:
    """A layer of DeepSeek-V2-Lite on one of 8 devices by hand, 4096 tokens: its input; every second product of queries
    (16 x 192), latents, keys and values (16 x 256), output, and the shared expert's three (2816, 2816, 2048);
    attention's output and row sums; six rows of 2048 a token that came to the experts, and six that came back."""
    job = TrainingJob(shape=load_model("deepseek-v2-lite"), seq_len=4096, global_batch_size=8)
    kept = _kept_by("torchtitan", job, dp=8, ep=8)
    products = 16 * 192 + 16 * 256 + 2816 + 2048
    assert kept.operators == 4096 * (2 * (2048 + products + 16 * 128 + 2 * 6 * 2048) + 4 * 16)
    assert _kept_by("torchtitan", job, dp=8).operators == kept.operators - 4096 * 2 * 2 * 6 * 2048


def test_eager_kernels_keep_experts_outputs_in_the_type_in_which_they_are_weighed() -> None:
    job = TrainingJob(shape=load_model("deepseek-v2-lite"), seq_len=4096, global_batch_size=8)
    rows = 4096 * 6 * 2048
    assert _kept_by("torchtitan", job).whole - _kept_by("fsdp", job).whole == (4 - 2) * rows


def test_a_compiled_layer_keeps_no_output_that_only_enters_the_residual_stream() -> None:
    """Llama 3.1 8B by operator: the fourth and the last product, of attention and feed-forward, are the two outputs;
    eager torchtitan keeps the last one, as it is the seventh."""
    job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=8)
    layer, trainer = job.shape.main.runs[0].layer, TRAINERS["torchtitan"]
    eager, compiled = (
        layer_activations(rows_of(replace(job, trainer=t), TrainingPlan()), layer, 4096).operators
        for t in (trainer, as_launched(trainer))
    )
    assert eager - compiled == 8192 * 4096 * 2


def test_experts_weighed_in_fp32_need_three_copies_of_their_rows_in_backward() -> None:
    """The gradient of a weighed row, and its products with the score and with the row: 6 rows of 2048 a token. A layer
    of torchtitan 0.3.0 (DeepSeek-V2-Lite, 4 x 4096 tokens, ep 8) on fake tensors peaked 2.22e9 bytes above what it kept
    (2026-11-30)."""
    job = TrainingJob(shape=load_model("deepseek-v2-lite"), seq_len=4096, global_batch_size=32)
    rows = rows_of(
        replace(job, trainer=TRAINERS["torchtitan"]), TrainingPlan(dims=ParallelDims(dp=8, ep=8), microbatch_size=4)
    )
    backward = float(layer_activations(rows, job.shape.main.runs[1].layer, 2048).backward)
    assert backward == 4 * 4096 * 2048 * (3 * 6 * 4 + 2)
    assert backward == pytest.approx(2.22e9, rel=0.13)


LAWFUL = ("llama-3.1-8b", "gemma-2-9b", "deepseek-v2-lite", "nemotron-3-nano", "mixtral-8x7b")
FIELDS = ("whole", "selective", "operators", "inputs", "backward")


@given(
    st.sampled_from(LAWFUL),
    st.sampled_from(["megatron", "torchtitan", "maxtext", "deepspeed"]),
    st.integers(1, 16),
    st.sampled_from([2, 4]),
)
def test_activations_grow_with_tokens_and_context_ranks_divide_them(name: str, trainer: str, b: int, n: int) -> None:
    shape = load_model(name)
    job = TrainingJob(shape=shape, seq_len=16384, global_batch_size=64, trainer=TRAINERS[trainer])

    def of(size: int, cp: int) -> list[Activations]:
        rows = rows_of(job, TrainingPlan(dims=ParallelDims(cp=cp), microbatch_size=size))
        return [layer_activations(rows, run.layer, shape.hidden_size) for run in shape.main.runs]

    for one, many, split in zip(of(b, 1), of(n * b, 1), of(n * b, n), strict=True):
        for field in FIELDS:
            assert getattr(many, field) == pytest.approx(n * getattr(one, field), rel=1e-9)
            assert getattr(split, field) == pytest.approx(getattr(one, field), rel=1e-9)


@given(st.sampled_from(LAWFUL), st.sampled_from([2, 4, 8]))
def test_tensor_ranks_with_their_sequence_split_divide_the_inputs_and_never_add(name: str, tp: int) -> None:
    shape = load_model(name)
    job = TrainingJob(shape=shape, seq_len=8192, global_batch_size=64)

    def of(tp: int) -> list[Activations]:
        rows = rows_of(job, TrainingPlan(dims=ParallelDims(tp=tp, sequence_parallel=True)))
        return [layer_activations(rows, run.layer, shape.hidden_size) for run in shape.main.runs]

    for whole, part in zip(of(1), of(tp), strict=True):
        assert part.inputs == whole.inputs / tp
        for field in ("whole", "selective", "operators"):
            assert getattr(whole, field) / tp <= getattr(part, field) <= getattr(whole, field)
