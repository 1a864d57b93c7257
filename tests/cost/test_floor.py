"""No time and no end of an interval is less than the datasheet allows: dense peaks, and memory's rate for what no cache
holds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor import api
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.cost.price import least_s, operator_costs, price
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, DType, Gemm, GroupedGemm, MemoryBound, MemoryBoundKind, OperatorGraph, Role

DEVICES = ("a40", "l4", "a100_sxm", "h200_sxm", "rtx_pro_6000_server", "rtx_5090", "arc_pro_b60", "mi300x", "mi355x")
ROWS = np.array([1, 16, 256, 8064])[:, None]
WEIGHTS = np.array([(7168, 3072), (16384, 2048), (4096, 14336), (1024, 1024), (128256, 4096)]).T
GEMM = Gemm(name="up", m=ROWS, n=WEIGHTS[0], k=WEIGHTS[1], role=Role.FFN_UP)
TYPES = (DType.BF16, DType.FP8, DType.FP8_BLOCK, DType.INT8_WO, DType.INT4_WO)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", DEVICES)
def test_weights_of_a_model_come_from_memory_and_flops_run_at_the_dense_peak_at_most(name: str, dtype: DType) -> None:
    """arc_pro_b60, 16 x 7168 x 3072 in bf16: 0.85 of what its weights take; a40 in int4_wo: 163 of 150 TFLOP/s."""
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    for clock in Clock:
        inside = operator_costs([replace(GEMM, dtype=dtype)], gpu, known, clock=clock)[0]
        alone = operator_costs([replace(GEMM, dtype=dtype, role=None)], gpu, known, clock=clock)[0]
        assert np.all(inside.low_s >= dtype.bytes * GEMM.n * GEMM.k / gpu.hbm_bytes_per_s * (1 - 1e-12))
        for cost in (inside, alone):
            assert np.all(cost.low_s >= GEMM.flops / peak_flops_per_s(gpu, dtype) * (1 - 1e-12))


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("l4", "fp8_block"), ("l4", "bf16"), ("a100", "int4_wo"), ("mi300x", "fp8")]
)
def test_a_decoding_step_reads_all_weights_and_caches_even_at_the_interval_s_end(gpu: str, dtype: str) -> None:
    """l4, fp8_block: 14.8 ms was the lower end for 8 GB at 300 GB/s."""
    found = api.estimate(
        "llama-3.1-8b", gpu, dtype=dtype, phase="decode", microbatch_size=1, context_len=1024, kernels="vllm"
    ).microbatch
    read = sum(
        float(op.count * (op.cached_bytes if isinstance(op, Attention) else op.dtype.bytes * op.n * op.k))
        for op in found.graph.operators
        if isinstance(op, (Attention, Gemm))
    )
    assert float(found.low_s) >= read / found.device.hbm_bytes_per_s


def test_one_token_reads_the_weights_of_its_own_experts_at_least() -> None:
    gpu = load_gpu("h200_sxm")
    op = GroupedGemm(name="up", role=Role.EXPERT_UP, groups=8, rows=8, tokens=1, experts=128, n=1536, k=2048)
    assert float(least_s(op, gpu, in_model=True)) == 8 * 1536 * 2048 * 2 / gpu.hbm_bytes_per_s
    crowd = replace(op, groups=128, rows=800, tokens=100)
    assert float(least_s(crowd, gpu, in_model=True)) == float(least_s(op, gpu, in_model=True))


@pytest.mark.parametrize("name", DEVICES)
def test_an_entry_of_a_grid_has_the_floor_of_the_scalar_call(name: str) -> None:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    many = price(OperatorGraph(operators=(GEMM,)), gpu, known).costs[0]
    for i, j in ((0, 0), (1, 1), (3, 2)):
        sizes = {"m": int(ROWS[i, 0]), "n": int(WEIGHTS[0, j]), "k": int(WEIGHTS[1, j])}
        one = price(OperatorGraph(operators=(replace(GEMM, **sizes),)), gpu, known).costs[0]
        assert (many.time_s[i, j], many.floor_s[i, j]) == (one.time_s, one.floor_s)


def test_what_a_streaming_kernel_moves_may_lie_in_caches_as_far_as_they_hold_it() -> None:
    gpu = load_gpu("mi300x")
    held = gpu.l2_bytes + gpu.memory_side_cache_bytes
    op = MemoryBound(name="norm", kind=MemoryBoundKind.NORM, rows=1, cols=1, bytes_moved=held + 1e9)
    assert float(least_s(op, gpu, in_model=True)) == pytest.approx(1e9 / gpu.hbm_bytes_per_s)
    assert float(least_s(replace(op, bytes_moved=held), gpu)) == 0.0
