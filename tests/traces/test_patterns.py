"""Patterns of kernels that one fused kernel could replace: each made by hand, with what it must cost."""

from __future__ import annotations

import pytest

from sartor.hardware.catalog import load_gpu
from sartor.step.measured_run import PartKind, TracePart
from sartor.traces.attribute import Attributed, attribute, losses
from sartor.traces.kernel_trace import HostOperator, Recorded, kernel_trace

MS = 1e-3
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"
SOFTMAX = "void at::native::(anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 12, false>"
BACK = "void at::native::(anonymous namespace)::softmax_warp_backward<c10::BFloat16, c10::BFloat16, float, 12, false>"
LOG = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilogue>"
NLL = "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
CAST = "void at::native::unrolled_elementwise_kernel<direct_copy_kernel_cuda, LoadWithCast<1>, StoreWithCast<1>>"
HEADS, TOKENS, WIDTH = 40, 3137, 64
BF16 = "c10::BFloat16"
Row = tuple[str, str, float, tuple[tuple[int, ...], ...]]
SCORES: Row = ("aten::bmm", GEMM, 2.0, ((HEADS, TOKENS, WIDTH), (HEADS, WIDTH, TOKENS)))
VALUES: Row = ("aten::bmm", GEMM, 2.0, ((HEADS, TOKENS, TOKENS), (HEADS, TOKENS, WIDTH)))
SCALE: Row = ("aten::mul", POINTWISE, 1.0, ((HEADS, TOKENS, TOKENS),))
WEIGHTS: Row = ("aten::_softmax", SOFTMAX, 1.5, ((HEADS, TOKENS, TOKENS),))
LINEAR: Row = ("aten::mm", GEMM, 3.0, ((8192, 4096), (4096, 4096)))
FORWARD = (LINEAR, SCORES, SCALE, WEIGHTS, VALUES, LINEAR)


def found_in(
    *rows: Row,
    gpu: str = "",
    sizes: bool = True,
    recorded: Recorded | None = None,
    stream: int = 7,
    launch_ms: float = 0.0,
    keeps: bool = False,
) -> Attributed:
    """Kernels one after another, in ms, divided into parts that add up; before each the host takes ``launch_ms``.
    ``keeps``: the operators that are recorded already."""
    kept, now = recorded or Recorded(), 0.0
    for number, (operator, kernel, dur, dims) in enumerate(rows):
        is_collective = kernel.startswith("nccl")
        now += launch_ms
        if operator and not (keeps and number in kept.operators):
            shapes = dims if sizes else ()
            kept.operators[number] = HostOperator(name=operator, dims=shapes, dtype="" if is_collective else BF16)
            kept.threads.append(1)
        kept.launches[number] = now * MS, number, 1
        kept.kernels.append((now * MS, dur * MS, kernel, stream if is_collective else 7, number, number))
        now += dur
    found = attribute(kernel_trace("made", kept), load_gpu(gpu) if gpu else None)
    assert sum(part.seconds for part in found.parts) == pytest.approx(found.step_s)
    return found


def part(found: Attributed, kind: PartKind) -> TracePart:
    return next(each for each in found.parts if each.kind is kind)


# ---------------------------------------------------------------------------------------------------------- attention


def test_product_softmax_product_is_unfused_attention_and_its_sizes_are_not_padded() -> None:
    found = found_in(*FORWARD, gpu="a100_sxm")
    unfused = part(found, PartKind.UNFUSED_ATTENTION)
    assert losses(found)[0] == unfused
    assert (
        unfused.evidence[0] == "product, softmax, product once per step: 6.5 ms, of which 2.5 ms outside the products"
    )
    assert "scaled_dot_product_attention" in unfused.fix
    assert part(found, PartKind.SHAPE).seconds == 0
    fused = part(found, PartKind.ATTENTION).seconds
    flops = 4 * HEADS * TOKENS**2 * WIDTH
    assert flops / 312e12 < fused < 3 * flops / 312e12
    assert unfused.seconds + fused == pytest.approx(6.5 * MS)


def test_the_same_sizes_outside_attention_are_ragged() -> None:
    found = found_in(LINEAR, SCORES, LINEAR, gpu="a100_sxm")
    assert part(found, PartKind.UNFUSED_ATTENTION).seconds == 0
    assert part(found, PartKind.SHAPE).seconds > 0


@pytest.mark.parametrize("operators", [True, False])
def test_without_sizes_attention_loses_what_is_outside_its_products(operators: bool) -> None:
    rows = FORWARD if operators else tuple(("", *row[1:]) for row in FORWARD)
    found = found_in(*rows, sizes=False)
    assert part(found, PartKind.UNFUSED_ATTENTION).seconds == pytest.approx(2.5 * MS)
    assert part(found, PartKind.ATTENTION).seconds == pytest.approx(4 * MS)


def test_the_backward_pass_of_attention_has_four_products() -> None:
    back: Row = ("aten::_softmax_backward_data", BACK, 1.5, ((HEADS, TOKENS, TOKENS),))
    found = found_in(LINEAR, VALUES, SCORES, back, SCALE, VALUES, VALUES, LINEAR)
    assert part(found, PartKind.UNFUSED_ATTENTION).seconds == pytest.approx(2.5 * MS)
    assert part(found, PartKind.ATTENTION).seconds == pytest.approx(8 * MS)
    assert part(found, PartKind.MATMUL).seconds == pytest.approx(6 * MS)


def test_a_routers_softmax_and_a_losses_are_no_attention() -> None:
    top: Row = ("aten::topk", "void at::native::sbtopk::gatherTopK<float>", 0.1, ((8192, 64),))
    loss: Row = ("aten::_log_softmax", LOG, 1.5, ((8192, 50304),))
    for rows in ((LINEAR, WEIGHTS, top, LINEAR), (SCORES, WEIGHTS, top, SCORES), (SCORES, loss, SCORES)):
        assert part(found_in(*rows), PartKind.UNFUSED_ATTENTION).seconds == 0


# ------------------------------------------------------------------------------------------------------- other chains


def test_a_loss_of_single_operators_costs_more_than_one_pass_over_the_logits() -> None:
    logits = ((8192, 50304),)
    rows: tuple[Row, ...] = (
        LINEAR,
        ("aten::_to_copy", CAST, 2.0, logits),
        ("aten::_log_softmax", LOG, 3.0, logits),
        ("aten::nll_loss_forward", NLL, 0.5, logits),
        LINEAR,
    )
    lost = part(found_in(*rows), PartKind.UNFUSED_LOSS)
    assert lost.seconds == pytest.approx(2.5 * MS)
    assert "cross-entropy" in lost.fix


def test_casts_that_stand_alone_are_lost_and_casts_in_a_chain_are_part_of_it() -> None:
    cast: Row = ("aten::copy_", CAST, 1.0, ((8192, 4096),))
    assert part(found_in(LINEAR, cast, LINEAR, cast), PartKind.CASTS).seconds == pytest.approx(2 * MS)
    add: Row = ("aten::add", POINTWISE, 1.0, ((8192, 4096),))
    chain = found_in(LINEAR, cast, add, add, LINEAR)
    assert part(chain, PartKind.CASTS).seconds == 0
    assert part(chain, PartKind.UNFUSED).seconds == pytest.approx(1 * MS)


def test_a_chain_that_mostly_casts_loses_its_casts() -> None:
    size = ((8192, 4096),)
    rows: list[Row] = [("aten::add", POINTWISE, 1.0, size), *[("aten::copy_", CAST, 1.0, size)] * 4]
    found = found_in(LINEAR, *rows, LINEAR)
    assert part(found, PartKind.CASTS).seconds == pytest.approx(4 * MS)
    assert "one data type" in losses(found)[0].fix


def test_copies_to_another_layout_between_products_are_lost() -> None:
    moved: Row = (
        "aten::copy_",
        "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>",
        1.0,
        ((8192, 4096),),
    )
    lost = part(found_in(LINEAR, moved, LINEAR, moved), PartKind.LAYOUT)
    assert lost.seconds == pytest.approx(2 * MS)
    assert "transposed views" in lost.fix


def experts(sizes: tuple[int, ...]) -> Attributed:
    kept, rows = Recorded(), list[Row]()
    flash: Row = ("aten::_flash_attention_forward", "flash_fwd_kernel", 0.1, ((2, 4096, 32, 128),) * 3)
    for size in sizes:
        rows += [("aten::mm", GEMM, 0.01, ((size, 4096), (4096, 1536)))]
    found = found_in(flash, *rows, flash, *rows, recorded=kept, launch_ms=0.05)
    return found


@pytest.mark.parametrize(("sizes", "loops"), [((7, 300, 41, 5, 88, 9, 120, 64, 3, 17), True), ((512,) * 10, False)])
def test_products_of_experts_one_after_another_want_one_grouped_product(sizes: tuple[int, ...], loops: bool) -> None:
    gaps = part(experts(sizes), PartKind.HOST_GAP)
    assert gaps.seconds > 0
    assert ("grouped product" in gaps.fix) == loops


def test_neighbours_of_unrelated_sizes_are_no_chain_and_a_norm_with_its_sums_is_one() -> None:
    apart: tuple[Row, ...] = tuple(("aten::add_", POINTWISE, 1.0, ((prime,),)) for prime in (8191, 4093, 2039, 1021))
    assert part(found_in(LINEAR, *apart), PartKind.UNFUSED).seconds == 0
    sizes = ((8192, 4096), (8192, 4096), (8192, 1), (8192, 1), (8192, 4096))
    norm: tuple[Row, ...] = tuple(("aten::norm_part", POINTWISE, 1.0, (size,)) for size in sizes)
    assert part(found_in(LINEAR, *norm), PartKind.UNFUSED).seconds == pytest.approx(3 * MS)


def test_an_optimizer_of_one_kernel_per_operator_and_parameter_is_a_loop() -> None:
    operators = ("lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_")
    rows: list[Row] = [LINEAR]
    for size in range(20):
        rows += [(f"aten::{name}", POINTWISE, 0.1, ((4096 + size, 4096),)) for name in operators]
    kept = Recorded()
    kept.add_frame("Optimizer.step#AdamW.step", 2.99 * MS, 20 * MS)
    found = found_in(*rows, recorded=kept)
    optimizer = part(found, PartKind.OPTIMIZER)
    assert optimizer.seconds == pytest.approx(14 * MS)
    assert optimizer.gain_s == pytest.approx((14 - 20 * 0.1 * 7 / 4) * MS)
    assert optimizer.evidence[0].startswith("140 kernels per step")
    assert losses(found)[0].fix.startswith("update all parameters in one kernel")


def test_a_fused_optimizer_loses_nothing() -> None:
    fused: Row = ("aten::_fused_adamw_", "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", 9.0, ())
    found = found_in(LINEAR, fused)
    assert part(found, PartKind.OPTIMIZER).seconds == pytest.approx(9 * MS)
    assert not losses(found)


# ------------------------------------------------------------------------------------------- communication, recomputing


@pytest.mark.parametrize(
    ("operator", "advice"), [("broadcast", "broadcast_buffers=False"), ("allreduce", "bucket_cap_mb")]
)
def test_many_small_messages_are_to_be_sent_together(operator: str, advice: str) -> None:
    kept = Recorded(world_size=8)
    send: Row = ("record_param_comms", f"ncclDevKernel_{operator}_RING_LL(args)", 0.05, ())
    for number in range(1, 101):
        kept.operators[number] = HostOperator(
            name="record_param_comms", dims=(), dtype=BF16, collective=operator, elements=1024, group_size=8
        )
        kept.threads.append(1)
    found = found_in(LINEAR, *[send] * 100, recorded=kept, stream=20, keeps=True)
    lost = part(found, PartKind.COMMUNICATION)
    assert f"100 {operator} of 8 ranks per step send less than 1 MiB each" in lost.fix
    assert advice in lost.fix
    assert lost.gain_s == pytest.approx(0.99 * lost.seconds)


def test_communication_on_the_stream_of_compute_can_not_be_hidden_there() -> None:
    reduce: Row = ("record_param_comms", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)", 2.0, ())
    same, apart = (found_in(LINEAR, reduce, LINEAR, reduce, stream=stream) for stream in (7, 20))
    exposed = part(same, PartKind.COMMUNICATION)
    assert exposed.fix.startswith("give communication a stream of its own")
    assert "stream 7, that of compute" in exposed.evidence[-1]
    advice = part(apart, PartKind.COMMUNICATION).fix
    assert advice == "overlap ncclDevKernel_AllReduce_Sum_bf16_RING_LL with compute, which nothing does now"


def recomputing(reserved_bytes: float) -> TracePart:
    kept = Recorded(reserved_bytes=reserved_bytes, memory_bytes=80 * 2**30)
    flash: Row = ("aten::_flash_attention_forward", "flash_fwd_kernel", 1.0, ((2, 4096, 32, 128),) * 3)
    back: Row = ("aten::_flash_attention_backward", "flash_bwd_dq_dk_dv_loop_kernel", 2.0, ((2, 4096, 32, 128),) * 4)
    rows = (LINEAR, flash, LINEAR, flash, LINEAR, flash, back, flash, back, LINEAR)
    return part(found_in(*rows, recorded=kept), PartKind.RECOMPUTE)


def test_recomputation_is_a_loss_where_memory_is_free_and_none_where_it_is_full() -> None:
    free, full = recomputing(30 * 2**30), recomputing(78 * 2**30)
    assert free.seconds == full.seconds > 0
    assert "50 GiB of memory are free" in free.fix
    assert free.gain_s == free.seconds
    assert (full.fix, full.gain_s) == ("", 0.0)
    assert full.evidence[-1] == "peak memory: 78 GiB of 80 GiB reserved"
