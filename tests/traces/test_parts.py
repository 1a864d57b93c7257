"""Parts of a step that no single kernel shows: pipeline bubbles, unfused chains; and ranks whose clocks differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.hardware.catalog import load_gpu
from sartor.step.measured_run import PartKind, TracePart
from sartor.traces.attribute import attribute, clock_skew_s, losses
from sartor.traces.kernel_trace import HostOperator, KernelTrace, Recorded, kernel_trace

Row = tuple[str, HostOperator, float]
"""Kernel, operator, seconds."""
MATMUL: Row = ("nvjet_hsh_128x256", HostOperator(name="aten::mm"), 2e-3)
MUL: Row = ("void at::native::vectorized_elementwise_kernel<4, Mul>", HostOperator(name="aten::mul"), 1e-4)
FUSED: Row = ("triton_poi_fused_mul_0", HostOperator(name="aten::mul"), 1e-4)


def received(seconds: float, collective: str = "recv") -> Row:
    return "ncclDevKernel_SendRecv(args)", HostOperator(name="record_param_comms", collective=collective), seconds


def ran(*rows: Row, offset_s: float = 0.0) -> KernelTrace:
    """Kernels one after another."""
    kept, at = Recorded(rank=0, world_size=2), offset_s
    for number, (name, operator, seconds) in enumerate(rows):
        kept.operators[number] = operator
        kept.threads.append(1)
        kept.kernels.append((at, seconds, name, 7, number, number))
        at += seconds
    return kernel_trace("made", kept)


def part(trace: KernelTrace, kind: PartKind) -> TracePart:
    found = attribute(trace)
    assert sum(each.seconds for each in found.parts) == pytest.approx(found.step_s)
    return next(each for each in found.parts if each.kind is kind)


def test_a_receive_that_nothing_hides_is_a_pipeline_bubble() -> None:
    trace = ran(MATMUL, received(1e-3), MATMUL, received(5e-4))
    assert part(trace, PartKind.BUBBLE).seconds == pytest.approx(1.5e-3)
    assert "microbatches" in part(trace, PartKind.BUBBLE).fix
    assert losses(attribute(trace))[0].kind is PartKind.BUBBLE


def test_an_all_to_all_is_no_bubble_though_its_kernel_is_called_the_same() -> None:
    trace = ran(MATMUL, received(1e-3, "all_to_allv"))
    assert part(trace, PartKind.BUBBLE).seconds == 0
    assert part(trace, PartKind.COMMUNICATION).seconds == pytest.approx(1e-3)
    assert part(trace, PartKind.COMMUNICATION).evidence[0].startswith("all_to_allv of")


def test_a_chain_of_eager_kernels_loses_what_one_fused_kernel_would_not_take() -> None:
    chain = ran(MATMUL, MUL, MUL, MUL, MUL, MUL, MATMUL)
    assert part(chain, PartKind.UNFUSED).seconds == pytest.approx(3e-4)
    assert part(chain, PartKind.MEMORY_BOUND).seconds == pytest.approx(2e-4)
    assert part(chain, PartKind.UNFUSED).evidence[0].startswith("mul, mul, mul, mul, mul (once)")


@pytest.mark.parametrize("rows", [(MUL, MATMUL, MUL, MATMUL, MUL), (FUSED, FUSED, FUSED, FUSED)])
def test_kernels_apart_or_fused_already_lose_nothing(rows: tuple[Row, ...]) -> None:
    assert part(ran(*rows), PartKind.UNFUSED).seconds == 0


def test_clocks_that_differ_are_seen_by_the_ends_of_collectives() -> None:
    rows = (MATMUL, received(1e-3, "allreduce"), MATMUL, received(1e-3, "allreduce"))
    one, late = ran(*rows), ran(*rows, offset_s=0.02)
    assert clock_skew_s(one, [one]) == 0
    assert clock_skew_s(one, [one, late]) == pytest.approx(0.02)
    assert np.array_equal(attribute(one, ranks=[one]).parts, attribute(one, ranks=[late]).parts)


def test_of_two_ranks_the_one_that_computes_longer_is_the_straggler() -> None:
    waits = ran(MATMUL, MATMUL, received(3e-3, "allreduce"))
    late = replace(ran(MATMUL, MATMUL, MUL, MATMUL, received(1e-3, "allreduce")), rank=1)
    found = next(each for each in attribute(waits, ranks=[late]).parts if each.kind is PartKind.STRAGGLER)
    assert found.seconds == pytest.approx(2.1e-3)
    assert "rank 1 computes 6.1 ms per step, the other 4 ms" in found.evidence[0]


def test_gradients_reduced_all_at_once_behind_the_backward_are_a_loss_and_layer_by_layer_none() -> None:
    def reduced(megabytes: int, seconds: float) -> Row:
        op = HostOperator(
            name="record_param_comms",
            collective="allreduce",
            elements=2**19 * megabytes,
            dtype="BFloat16",
            group_size=8,
        )
        return "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", op, seconds

    at_once = part(ran(MATMUL, MATMUL, reduced(1000, 2e-3)), PartKind.COMMUNICATION)
    assert at_once.gain_s == pytest.approx(2e-3 * (1 - 25 / 1000))
    layers = [row for _ in range(10) for row in (MATMUL, reduced(100, 2e-4))]
    assert part(ran(*layers), PartKind.COMMUNICATION).gain_s == pytest.approx(9 * 2e-4)


@pytest.mark.parametrize(("memory", "words"), [("Pageable", "pinned memory"), ("Pinned", "a stream of its own")])
def test_copies_from_the_host_under_which_nothing_runs_are_a_loss(memory: str, words: str) -> None:
    copy: Row = (f"Memcpy HtoD ({memory} -> Device)", HostOperator(name="aten::copy_"), 1e-3)
    copies = part(ran(MATMUL, copy, MATMUL), PartKind.COPIES)
    assert copies.gain_s == pytest.approx(1e-3)
    assert words in copies.fix
    more: Row = (f"Memcpy HtoD ({memory} -> Device)", HostOperator(name="aten::copy_"), 9e-3)
    assert "keep on the device" in part(ran(MATMUL, more, MATMUL), PartKind.COPIES).fix
    within: Row = ("Memcpy DtoD (Device -> Device)", HostOperator(name="aten::copy_"), 1e-3)
    assert part(ran(MATMUL, within), PartKind.COPIES).gain_s == 0


@pytest.mark.parametrize(
    ("kernel", "dtype", "seconds", "words"),
    [
        ("ampere_sgemm_128x64_tn", "float", 2.8e-3, "fp32 without tensor cores"),
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_cublas", "c10::BFloat16", 4e-4, "TF32"),
    ],
)
def test_products_in_slow_types_are_told_of_bf16(kernel: str, dtype: str, seconds: float, words: str) -> None:
    sides = ((4096, 4096), (4096, 4096))
    rows = [(kernel, HostOperator(name="aten::mm", dims=sides, dtype=dtype), seconds)] * 4
    first = losses(attribute(ran(*rows), load_gpu("h100_sxm")))[0]
    assert first.kind is PartKind.MATMUL
    assert first.evidence[0].startswith(words)
    assert "bf16" in first.fix


@pytest.mark.parametrize("name", ["CopyHostToDevice", "CopyDeviceToHost"])
def test_copies_that_an_amd_runtime_names_are_copies_too(name: str) -> None:
    copy: Row = (name, HostOperator(name="aten::copy_"), 1e-3)
    assert part(ran(MATMUL, copy, MATMUL), PartKind.COPIES).gain_s == pytest.approx(1e-3)


@pytest.mark.parametrize(("times", "is_loss"), [((0.9, 1.1, 1.1, 1.12), False), ((1.1, 1.1, 1.1, 1.9), True)])
def test_a_kernel_slower_than_predicted_is_a_loss_if_it_is_slower_than_the_others(
    times: tuple[float, ...], is_loss: bool
) -> None:
    """Most take a tenth more than predicted, by which machines differ."""
    gpu, rows = load_gpu("h100"), list[Row]()
    for ratio, side in zip(times, (4096, 5120, 6144, 8192), strict=True):
        sizes = HostOperator(name="aten::mm", dims=((side, side), (side, side)), dtype="BFloat16")
        (kernel,) = attribute(ran(("nvjet_tst_128x256", sizes, 1.0)), gpu).priced
        rows.append(("nvjet_tst_128x256", sizes, ratio * kernel.predicted_s))
    slow = next(each for each in attribute(ran(*rows), gpu).parts if each.kind is PartKind.SLOW_COMPUTE)
    assert slow.seconds > 0
    assert (slow.gain_s > 0) is is_loss


@pytest.mark.parametrize(("sizes", "least"), [(((16384, 2048), (16384,)), "192 MiB"), ((), "embedding")])
def test_an_embeddings_backward_far_below_the_bandwidth_of_memory_is_a_loss(sizes: object, least: str) -> None:
    forward: Row = ("void at::native::vectorized_gather_kernel<16, long>", HostOperator(name="aten::embedding"), 5e-5)

    def first(seconds: float) -> TracePart | None:
        op = HostOperator(name="aten::embedding_dense_backward", dims=sizes, dtype="BFloat16")  # type: ignore[arg-type]
        row: Row = ("void at::native::embedding_backward_feature_kernel<c10::BFloat16>", op, seconds)
        return next(iter(losses(attribute(ran(MATMUL, forward, row), load_gpu("a100_sxm")))), None)

    slow = first(9e-3)
    assert slow is not None
    assert slow.kind is PartKind.EMBEDDING
    assert least in slow.evidence[0]
    assert "padding_idx" in slow.fix
    assert first(1.5e-4) is None


def test_sorted_scatters_of_an_indexed_weight_are_the_embeddings() -> None:
    sizes = HostOperator(name="aten::_index_put_impl_", dims=((32000, 2048), (8192, 2048)), dtype="BFloat16")
    scatter: Row = ("void at::native::(anonymous namespace)::indexing_backward_kernel<float, 4>", sizes, 9e-3)
    write: Row = ("void at::native::index_elementwise_kernel<128, 4>", sizes, 9e-3)
    assert "index_put" in losses(attribute(ran(MATMUL, scatter), load_gpu("a100_sxm")))[0].fix
    assert not losses(attribute(ran(MATMUL, write), load_gpu("a100_sxm")))


def test_gradients_clipped_parameter_by_parameter_are_named_and_a_few_norms_are_not() -> None:
    norm: Row = ("void at::native::reduce_kernel<512, NormTwoOps>", HostOperator(name="aten::linalg_vector_norm"), 2e-6)
    scale: Row = ("void at::native::vectorized_elementwise_kernel<4, Mul>", HostOperator(name="aten::mul_"), 2e-6)
    first = losses(attribute(ran(MATMUL, *[norm] * 150, *[scale] * 150)))[0]
    assert first.kind is PartKind.OPTIMIZER
    assert first.gain_s == pytest.approx(300 * 2e-6)
    assert "foreach=True" in first.fix
    few = attribute(ran(MATMUL, *[norm, MATMUL] * 150))
    assert not any("foreach" in each.fix for each in few.parts)


def reduction(elements: int, seconds: float = 2e-4) -> Row:
    op = HostOperator(name="record_param_comms", collective="allreduce", elements=elements, dtype="Float", group_size=8)
    return "ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", op, seconds


@pytest.mark.parametrize("looked_up", [True, False])
def test_gradients_reduced_in_each_microbatch_are_named_and_once_per_step_or_activations_are_not(
    looked_up: bool,
) -> None:
    lookup: Row = ("void at::native::vectorized_gather_kernel<16, long>", HostOperator(name="aten::embedding"), 5e-5)
    flash: Row = ("flash_fwd_kernel", HostOperator(name="aten::_flash_attention_forward"), 1e-4)
    back: Row = ("flash_bwd_kernel", HostOperator(name="aten::_flash_attention_backward"), 1e-4)
    ahead = (lookup, MATMUL, flash) if looked_up else (MATMUL, flash)
    each = (*ahead, MATMUL, back, reduction(9_000), MATMUL, reduction(5_000))
    repeated = part(ran(*each * 4), PartKind.COMMUNICATION)
    assert "not in each of its 4 microbatches: no_sync()" in repeated.fix
    assert "the same reductions in each of 4 microbatches: 1.6 ms" in repeated.evidence
    unsynced = (*ahead, MATMUL, back, MATMUL)
    activations = (*ahead, reduction(9_000), MATMUL, back, reduction(9_000))
    for rows in (unsynced * 3 + each, activations * 4, each):
        assert "no_sync" not in part(ran(*rows), PartKind.COMMUNICATION).fix
