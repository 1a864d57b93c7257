"""Defects found in the published code (PHAZE; reference/phaze.md sec. 10), each with what is right here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from accelerators import TPU
from sartor.cost.chip.area import published_grid
from sartor.cost.chip.operator_latency import _operator_time_s
from sartor.cost.chip.systolic import Product, product_cost, product_time_s
from sartor.cost.chip.vector_core import vector_cost
from sartor.cost.collective.links import link_time_s
from sartor.hardware.accelerator import PUBLISHED_CLOCK_HZ
from sartor.model.lower import lower
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.operators import Collective, CollectiveKind, Gemm, MemoryBound, MemoryBoundKind, Operator, Part, Pass


def gpt3() -> TransformerShape:
    return replace(load_model("gpt3-175b"), vocab_size=51200)


def named(operators: Iterable[Operator], name: str) -> Operator:
    return next(op for op in operators if op.name == name)


def test_1_the_clock_is_in_hertz() -> None:
    """Published: 1.05e6 for 1.05 GHz, so compute came out in ms beside transfers in s. Here a 4096^3 product takes half
    a millisecond on 275 TFLOP/s, and an all-reduce of its 32 MiB two fifths of that, not a 2500th."""
    assert PUBLISHED_CLOCK_HZ == 1.05e9
    compute = product_time_s(Product(m=4096, n=4096, k=4096), TPU)
    assert compute == pytest.approx(2 * 4096**3 / 275.25e12, rel=0.01)
    reduce = link_time_s(Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=8, message_bytes=2**25), TPU)
    assert reduce / compute == pytest.approx(0.42, abs=0.01)


def test_2_a_larger_microbatch_takes_longer() -> None:
    """Published: a 3-D linear keeps its last two dimensions, so Llama-2-7B at 1, 2 and 4 sequences is one product."""
    shape = load_model("llama-2-7b")
    times = []
    for batch in (1, 2, 4):
        qkv = named(lower(Workload(shape=shape, microbatch_size=batch, seq_len=4096)).operators, "qkv")
        assert isinstance(qkv, Gemm)
        assert qkv.m == batch * 4096
        times.append(_operator_time_s(qkv, TPU))
    assert times[1] / times[0] == pytest.approx(2, rel=0.01)
    assert times[2] / times[0] == pytest.approx(4, rel=0.01)


def test_3_weight_gradients_are_a_third_of_training() -> None:
    """Published: derived and thrown away. Here linear layers have three equal shares of FLOPs, and backward takes twice
    forward's time."""
    operators = lower(Workload(shape=gpt3(), seq_len=2048), optimizer=True).operators
    linear = [op for op in operators if isinstance(op, Gemm) and op.part is Part.LAYER]
    flops = {pass_: sum(op.flops * op.count for op in linear if op.pass_ is pass_) for pass_ in Pass}
    assert flops[Pass.WGRAD] == flops[Pass.DGRAD] == flops[Pass.FORWARD] > 0
    times = {
        pass_: sum(float(_operator_time_s(op, TPU)) for op in linear if op.pass_ is pass_)
        for pass_ in (Pass.FORWARD, Pass.DGRAD, Pass.WGRAD)
    }
    assert times[Pass.DGRAD] + times[Pass.WGRAD] == pytest.approx(2 * times[Pass.FORWARD], rel=0.02)


def test_4_scores_contract_over_the_head_dimension() -> None:
    """Published: GPT-3's scores with K=2048 (16 times the work), its context product with 128 for 2048."""
    graph = lower(Workload(shape=gpt3(), seq_len=2048, attention_kernel=AttentionKernel.UNFUSED))
    score, context = (named(graph.operators, name) for name in ("attn_score", "attn_over_value"))
    assert isinstance(score, Gemm)
    assert isinstance(context, Gemm)
    assert (score.m, score.n, score.k) == (2048, 2048, 128)
    assert (context.m, context.n, context.k) == (2048, 128, 2048)
    assert score.flops == context.flops


@pytest.mark.parametrize("tp", [1, 8])
def test_5_the_head_is_paid_once_and_by_no_layer(tp: int) -> None:
    """Published: in the last traced layer, hence in all of them or in none."""
    graph = lower(Workload(shape=gpt3(), seq_len=2048), ParallelDims(tp=tp))
    logits = named(graph.operators, "logits")
    assert isinstance(logits, Gemm)
    assert (logits.count, logits.part, logits.n) == (1, Part.HEAD, 51200 // tp)
    layers = [op for op in graph.operators if op.part is Part.LAYER and isinstance(op, Gemm)]
    assert all(51200 // tp not in (op.m, op.n, op.k) for op in layers)


def test_7_bandwidth_follows_the_architecture() -> None:
    """Published: 64, 256 and 128 words a cycle for any chip, so eight cores are never faster than one. Here ports come
    with cores, banks with the buffer, memory with stacks."""
    cube = Product(m=4096, n=4096, k=4096)
    assert product_time_s(cube, replace(TPU, num_tensor_cores=1)) / product_time_s(cube, TPU) > 6
    long = Product(m=256, n=256, k=10**6)
    assert product_time_s(long, TPU) / product_time_s(long, replace(TPU, num_stacks=8)) > 1.7
    narrow = replace(TPU, num_tensor_cores=512, array_rows=16, array_cols=16, tensor_core_sram_bytes=4096)
    small, large = (replace(narrow, global_buffer_bytes=mib * 2**20) for mib in (8, 128))
    assert product_cost(cube, small).buffer_s > 2 * product_cost(cube, large).buffer_s


def test_7_epilogues_vector_traffic_and_the_optimizer_cost_time() -> None:
    """Published: an epilogue adds a constant, vector operators have no traffic, the optimizer's step is free."""
    plain = Product(m=2048, n=49152, k=12288)
    fused = replace(plain, epilogue_cycles=22.0)
    slow_lanes = replace(TPU, num_vector_cores=1)
    assert product_time_s(fused, slow_lanes) > 1.5 * product_time_s(plain, slow_lanes)
    add = MemoryBound(name="a", kind=MemoryBoundKind.RESIDUAL, rows=2048, cols=12288, bytes_moved=6.0 * 2048 * 12288)
    assert vector_cost(add, replace(TPU, vector_lanes=10**6)).time_s == add.bytes_moved / TPU.hbm_bytes_per_s
    steps = [
        op for op in lower(Workload(shape=gpt3(), seq_len=2048), optimizer=True).operators if op.pass_ is Pass.OPTIMIZER
    ]
    assert sum(float(_operator_time_s(op, TPU)) * op.count for op in steps) > 1.0  # 175e9 parameters on one device


def test_a_norm_has_its_statistics() -> None:
    """Published: one cycle an element, scale and shift only."""
    norm = MemoryBound(name="n", kind=MemoryBoundKind.NORM, rows=256, cols=4096, bytes_moved=1.0)
    cycles = vector_cost(norm, TPU).compute_s * TPU.clock_hz
    assert cycles > 4 * 256 * 4096 / (2 * 128)


def test_an_all_reduce_occupies_no_core_and_pays_its_latency() -> None:
    """Published: 2 (t-1)/t bytes / 4 GiB/s, on a vector core, without latency."""
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=8, message_bytes=8)
    assert link_time_s(op, TPU) > TPU.link_latency_s
    assert link_time_s(op, replace(TPU, num_vector_cores=1)) == link_time_s(op, TPU)


@pytest.mark.slow
def test_every_published_configuration_gains_from_cores() -> None:
    """On all 4,186 configurations: never slower than one core of the same chip, never under the roofline, and where the
    global buffer feeds all square cores' ports, eight do at least six times one's work on a large product."""
    grid = published_grid()
    names = ("num_tensor_cores", "array_rows", "array_cols", "global_buffer_bytes")
    columns = [np.asarray(getattr(grid.accelerators, name))[grid.kept] for name in names]
    cores, rows, cols, buffer = np.unique(np.stack(columns, axis=1), axis=0).T
    chips = replace(
        grid.accelerators,
        num_tensor_cores=cores,
        array_rows=rows,
        array_cols=cols,
        tensor_core_sram_bytes=np.maximum(1024, 16 * rows * cols),
        global_buffer_bytes=buffer,
        num_vector_cores=1,
        vector_lanes=128,
        vector_core_sram_bytes=2048,
    )
    cube = Product(m=4096, n=4096, k=4096)
    all_ = np.asarray(product_time_s(cube, chips))
    one = np.asarray(product_time_s(cube, replace(chips, num_tensor_cores=1)))
    assert (all_ <= one).all()
    assert (all_ >= 2 * cube.macs / np.asarray(chips.peak_flops_per_s)).all()
    fed = np.asarray(chips.global_buffer_bytes_per_s) >= cores * np.asarray(chips.tensor_port_bytes_per_s)
    assert (one / all_)[(cores == 8) & (rows == cols) & fed].min() > 6
