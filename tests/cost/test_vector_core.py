"""Streaming operators, fused attention and collectives on the template: laws and hand-derived values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accelerators import TPU, accelerators
from sartor.cost.chip.operator_latency import (
    Fused,
    _fused_product,
    _one_core,
    _operator_time_s,
    operator_floor,
    operator_latencies,
)
from sartor.cost.chip.systolic import product_time_s
from sartor.cost.chip.vector_core import attention_cost, attention_products, vector_cost, vector_work
from sartor.cost.collective.links import link_time_s
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    Gemm,
    GroupedGemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    Pass,
)

FAST_MEMORY = replace(TPU, stack_bytes_per_s=1e18, bank_bytes_per_cycle=1e9)
ADDS = {"buffer_add_share": 0.5}


def streaming() -> st.SearchStrategy[MemoryBound]:
    return st.builds(
        lambda kind, rows, cols, per_element, pass_: MemoryBound(
            name="x",
            kind=kind,
            rows=rows,
            cols=cols,
            bytes_moved=per_element * rows * cols,
            flops=5.0 * rows * cols,
            pass_=pass_,
        ),
        st.sampled_from(MemoryBoundKind),
        st.integers(1, 5000),
        st.integers(1, 20_000),
        st.floats(1, 30),
        st.sampled_from((Pass.FORWARD, Pass.BACKWARD)),
    )


def attentions() -> st.SearchStrategy[Attention]:
    def build(kv_heads: int, group: int, seq_q: int, past: int, dim: int, causal: bool, pass_: Pass) -> Attention:
        return Attention(
            name="a",
            batch=2,
            num_heads=kv_heads * group,
            num_kv_heads=kv_heads,
            seq_q=seq_q,
            seq_kv=seq_q + past,
            head_dim=dim,
            v_head_dim=dim,
            causal=causal,
            pass_=pass_,
        )

    sizes, passes = st.integers(1, 5000), st.sampled_from((Pass.FORWARD, Pass.BACKWARD))
    dims = st.sampled_from((64, 80, 128))
    return st.builds(
        build, st.integers(1, 8), st.integers(1, 4), sizes, st.integers(0, 3000), dims, st.booleans(), passes
    )


# ------------------------------------------------------------------------------------------------------------- laws


@given(streaming(), accelerators(), st.integers(1, 100), st.integers(1, 2**20))
def test_more_vector_cores_bandwidth_and_buffer_are_never_slower(
    op: MemoryBound, a: Accelerator, cores: int, size: int
) -> None:
    time = vector_cost(op, a).time_s
    assert time >= op.bytes_moved / a.hbm_bytes_per_s
    assert vector_cost(op, replace(a, num_vector_cores=a.num_vector_cores + cores)).time_s <= time
    assert vector_cost(op, replace(a, vector_core_sram_bytes=a.vector_core_sram_bytes + size)).time_s <= time
    assert vector_cost(op, replace(a, global_buffer_bytes=a.global_buffer_bytes + size)).time_s <= time
    assert vector_cost(op, replace(a, num_stacks=a.num_stacks + 1)).time_s <= time


@given(streaming(), accelerators(), st.integers(1, 500), st.integers(1, 500))
def test_more_rows_and_columns_are_never_faster(op: MemoryBound, a: Accelerator, rows: int, cols: int) -> None:
    per_element = op.bytes_moved / (op.rows * op.cols)
    larger = replace(op, rows=op.rows + rows, cols=op.cols + cols)
    elements = larger.rows * larger.cols
    larger = replace(larger, bytes_moved=per_element * elements, flops=5.0 * elements)
    assert vector_cost(larger, a).time_s >= vector_cost(op, a).time_s * (1 - 1e-12)


@given(attentions(), accelerators(), st.integers(1, 100))
def test_attention_obeys_the_roofline_and_uses_more_cores(op: Attention, a: Accelerator, more: int) -> None:
    time = attention_cost(op, a).time_s
    assert time >= op.flops / a.peak_flops_per_s * (1 - 1e-12)
    assert time >= op.bytes_moved / a.hbm_bytes_per_s * (1 - 1e-12)
    assert attention_cost(op, replace(a, num_tensor_cores=a.num_tensor_cores + more)).time_s <= time
    assert attention_cost(op, replace(a, num_vector_cores=a.num_vector_cores + more)).time_s <= time
    assert attention_cost(op, replace(a, global_buffer_bytes=2 * a.global_buffer_bytes)).time_s <= time


DIES = replace(TPU, num_dies=4, die_to_die_bytes_per_s=1e9)
HEADS = Attention(
    name="a", batch=8, num_heads=8, num_kv_heads=8, seq_q=512, seq_kv=512, head_dim=64, v_head_dim=64, causal=True
)


@example(HEADS, DIES, replace(DIES, num_io_dies=4))
@given(st.one_of(attentions(), streaming()), accelerators(), accelerators())
def test_each_of_many_chips_is_priced_as_it_is_alone(op: Operator, a: Accelerator, b: Accelerator) -> None:
    """A search bounds chips together, of one die and of several on I/O dies, and evaluates each alone."""
    rows = {name: (getattr(a, name), getattr(b, name)) for name in ARRAY_FIELDS}
    both = replace(a, **{name: np.array(values) for name, values in rows.items() if values[0] != values[1]})
    alone = [_operator_time_s(op, replace(a, **{name: row[i] for name, row in rows.items()})) for i in (0, 1)]
    assert np.broadcast_to(_operator_time_s(op, both), 2).tolist() == alone


@given(attentions())
def test_the_products_of_attention_are_its_flops(op: Attention) -> None:
    """Keys per query are rounded up, so products are at least the kernel's FLOPs and at most one key more. Two passes
    of backward multiply two of five products again."""
    flops, in_two_passes = (
        sum(2 * p.macs for p in attention_products(op, replace(TPU, backward_passes=passes))) for passes in (1, 2)
    )
    keys = op.pairs / op.seq_q
    assert op.flops * (1 - 1e-12) <= flops <= op.flops * (keys + 1) / keys * (1 + 1e-12)
    assert in_two_passes == pytest.approx(flops * (1.4 if op.pass_ is Pass.BACKWARD else 1))


@given(st.sampled_from(CollectiveKind), st.integers(1, 3000), st.floats(1, 1e10), st.floats(1, 8), accelerators())
def test_collectives_move_their_bytes_and_profit_from_links(
    kind: CollectiveKind, n: int, size: float, factor: float, a: Accelerator
) -> None:
    op = Collective(name="c", kind=kind, group_size=n, message_bytes=size)
    time = link_time_s(op, a)
    assert (time == 0) == (n == 1)
    share = {CollectiveKind.ALL_REDUCE: 2 * (n - 1) / n, CollectiveKind.SEND_RECV: 1.0}.get(kind, (n - 1) / n)
    if n > 1:
        assert time >= min(share, 2.0) * size / a.network_bytes_per_s * (1 - 1e-9)
    assert link_time_s(op, replace(a, link_bytes_per_s=a.link_bytes_per_s * factor)) <= time
    assert link_time_s(replace(op, message_bytes=size * factor), a) >= time
    fewer = replace(a, num_tensor_cores=1, num_vector_cores=1)
    assert link_time_s(op, fewer) == time  # it occupies no core


# ------------------------------------------------------------------------------------------------------ hand-derived


def stream(kind: MemoryBoundKind, rows: int, cols: int, pass_: Pass = Pass.FORWARD, **more: Any) -> MemoryBound:
    return MemoryBound(name="x", kind=kind, rows=rows, cols=cols, bytes_moved=4.0 * rows * cols, pass_=pass_, **more)


def test_a_norm_by_hand() -> None:
    """2048 rows of 12288 on two cores of 128 lanes: 1024 rows a core, each 96 steps of 4 cycles (sum, squares, scale,
    affine), and root 15, division 10, two reductions over 128 lanes of 7 steps: 39 cycles. 1024 x (384 + 39)."""
    cost = vector_cost(stream(MemoryBoundKind.NORM, 2048, 12288), FAST_MEMORY)
    assert cost.compute_s * 1.05e9 == pytest.approx(1024 * (96 * 4 + 39))
    backward = vector_cost(stream(MemoryBoundKind.NORM, 2048, 12288, Pass.BACKWARD), FAST_MEMORY)
    assert backward.compute_s * 1.05e9 == pytest.approx(1024 * (96 * 9 + 39))


def test_short_rows_share_the_lanes_by_hand() -> None:
    """4,096 rows of 256 on one core of 1,024 lanes, all in its buffer: 1,024 at once leave each a lane, 256 steps of 4
    cycles, and root and division; a buffer for four rows leaves each 256 lanes: one step, and two reductions of 8."""
    op = stream(MemoryBoundKind.NORM, 4096, 256)
    for held, cycles in (1024 * 256 * 2, 4 * (256 * 4 + 25)), (4 * 256 * 2, 1024 * (4 + 25 + 2 * 8)):
        wide = replace(FAST_MEMORY, num_vector_cores=1, vector_lanes=1024, vector_core_sram_bytes=held)
        assert vector_cost(op, wide).compute_s * 1.05e9 == pytest.approx(cycles)


def test_backward_of_a_norm_reads_again_for_its_weights_where_operators_start_one_by_one() -> None:
    op = replace(stream(MemoryBoundKind.NORM, 2048, 12288, Pass.BACKWARD), bytes_moved=6.0 * 2048 * 12288)
    at_once, apart = (vector_cost(op, replace(TPU, operator_start_s=start)).memory_s for start in (0.0, 1e-6))
    assert apart == pytest.approx(at_once * 10 / 6)


def test_a_softmax_by_hand() -> None:
    """1000 rows of 2048, one core of 128 lanes: 16 steps of 16 cycles, division 10, two reductions of 7."""
    one = replace(FAST_MEMORY, num_vector_cores=1)
    cost = vector_cost(stream(MemoryBoundKind.SOFTMAX, 1000, 2048), one)
    assert cost.compute_s * 1.05e9 == pytest.approx(1000 * (16 * 16 + 24))


def test_long_rows_are_read_again() -> None:
    """A row of 2048 16-bit elements does not fit 2 KiB: softmax reads it three times, from the global buffer; memory is
    read once. In 4 KiB it fits."""
    op = stream(MemoryBoundKind.SOFTMAX, 1000, 2048)
    elements = 1000 * 2048
    assert vector_cost(op, TPU).buffer_bytes == (4 + 2 * 2) * elements
    assert vector_cost(op, replace(TPU, vector_core_sram_bytes=4096)).buffer_bytes == 4 * elements
    assert vector_cost(op, TPU).memory_s == pytest.approx(4 * elements / 1228.8e9)


def test_an_addition_is_bound_by_memory_not_lanes() -> None:
    """2048 x 12288 additions: 98304 cycles on two cores of 128 lanes are 93.6 us (what the published model counts); six
    bytes an element through memory are 122.9 us."""
    op = replace(stream(MemoryBoundKind.RESIDUAL, 2048, 12288), bytes_moved=6.0 * 2048 * 12288)
    cost = vector_cost(op, TPU)
    assert cost.compute_s == pytest.approx(98304 / 1.05e9)
    assert cost.time_s == cost.memory_s == pytest.approx(6 * 2048 * 12288 / 1228.8e9)


def test_a_convolution_by_hand() -> None:
    """Four FLOPs an element are two multiply-adds, a cycle each; 1,024 elements on 256 lanes are four rounds."""
    op = stream(MemoryBoundKind.CONV, 8, 128, flops=4.0 * 8 * 128)
    assert vector_cost(op, FAST_MEMORY).compute_s * 1.05e9 == pytest.approx(4 * 2)


def test_every_kind_has_work_both_ways() -> None:
    for kind in MemoryBoundKind:
        for pass_ in (Pass.FORWARD, Pass.BACKWARD):
            work = vector_work(stream(kind, 1, 1, pass_), TPU)
            assert work.per_element + work.per_flop > 0


def test_an_operator_without_elements_takes_no_time() -> None:
    assert vector_cost(stream(MemoryBoundKind.OPTIMIZER, 1, 0), TPU).time_s == 0


def test_a_ring_by_hand() -> None:
    """All-reduce of 48 MiB over 4 at 6 x 50 GB/s and 1 us: 6 steps of 1 us and 12 MiB / 300e9."""
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=4, message_bytes=48 * 2**20)
    assert link_time_s(op, TPU) == pytest.approx(6 * (1e-6 + 12 * 2**20 / 300e9))
    gather = replace(op, kind=CollectiveKind.ALL_GATHER)
    assert link_time_s(gather, TPU) == pytest.approx(link_time_s(op, TPU) / 2)


def test_small_messages_take_a_tree() -> None:
    """8 bytes over 64: a tree has 2 x 6 steps, a ring 126."""
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=64, message_bytes=8)
    assert link_time_s(op, TPU) == pytest.approx(12 * (1e-6 + 8 / 300e9))


def test_no_links_no_collective() -> None:
    alone = replace(TPU, num_links=0)
    op = Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=4, message_bytes=8)
    assert link_time_s(op, alone) == np.inf
    assert link_time_s(replace(op, group_size=1), alone) == 0


# --------------------------------------------------------------------------------------------- one core and all cores

OPERATORS: list[Operator | Fused] = [
    Gemm(name="g", m=2048, n=4096, k=1024),
    GroupedGemm(name="e", groups=8, rows=4096, n=1024, k=512),
    Attention(name="a", batch=1, num_heads=8, num_kv_heads=2, seq_q=512, seq_kv=512, head_dim=128, v_head_dim=128),
    stream(MemoryBoundKind.NORM, 2048, 4096),
    Collective(name="c", kind=CollectiveKind.ALL_REDUCE, group_size=4, message_bytes=1e8),
    Fused(product=Gemm(name="g", m=2048, n=4096, k=1024), epilogue=stream(MemoryBoundKind.ACTIVATION, 2048, 4096)),
]


def test_all_cores_are_never_slower_than_one() -> None:
    single, together = operator_latencies(OPERATORS, TPU)
    assert single.shape == together.shape == (len(OPERATORS),)
    assert (together <= single).all()
    assert single[4] == together[4]
    assert single[0] == _operator_time_s(OPERATORS[0], _one_core(TPU))


def test_a_grid_of_candidates_equals_one_at_a_time() -> None:
    """Candidates of two axes; those that agree in what an operator uses are priced once and must not be mixed up."""
    counts, lanes = np.asarray([1, 3, 8])[:, None], np.asarray([64, 128, 64, 256])
    grid = replace(TPU, num_tensor_cores=counts, vector_lanes=lanes, num_vector_cores=np.asarray([1, 2, 1, 4]))
    single, together = operator_latencies(OPERATORS, grid)
    assert single.shape == (len(OPERATORS), 3, 4)
    for i in range(3):
        for j in range(4):
            cores = int(np.asarray(grid.num_vector_cores)[j])
            point = replace(TPU, num_tensor_cores=int(counts[i, 0]), vector_lanes=int(lanes[j]), num_vector_cores=cores)
            one, all_ = operator_latencies(OPERATORS, point)
            assert (single[:, i, j] == one).all()
            assert (together[:, i, j] == all_).all()


def test_an_epilogue_reads_nothing_back() -> None:
    """The activation moves 4 bytes an element alone, reading 2 of them; fused it moves 2 more than the product."""
    fused = OPERATORS[-1]
    assert isinstance(fused, Fused)
    product = _fused_product(fused, TPU)
    assert product.epilogue_bytes == 2.0
    assert product.epilogue_cycles == vector_work(fused.epilogue, TPU).per_element
    roomy = replace(TPU, vector_lanes=4096)
    apart = _operator_time_s(fused.product, roomy) + _operator_time_s(fused.epilogue, roomy)
    assert _operator_time_s(fused, roomy) < apart


def test_query_heads_that_share_keys_load_them_once() -> None:
    """Decoding streams a row of each query head past keys that an array loads first: time follows the key heads."""
    times = []
    for kv_heads in (32, 8, 1):
        op = Attention(
            name="a", batch=64, num_heads=32, num_kv_heads=kv_heads, seq_q=1, seq_kv=4096, head_dim=128, v_head_dim=128
        )
        found = attention_cost(op, TPU)
        assert float(operator_floor(op, TPU).least_s) <= float(found.time_s)
        times.append(float(found.tensor_s))
    assert times[0] == pytest.approx(4 * times[1], rel=0.01)
    assert 8 * times[2] < 1.5 * times[1]


def test_attention_by_hand_reads_keys_and_values_once_for_each_block_of_queries() -> None:
    """A key and its value: (128 + 128) x 2 = 512 bytes, of which half the buffer, 64 KiB, holds 128. 256 queries are
    two blocks: the second reads the 3 x 2 x 256 x 512 = 786,432 bytes of keys and values again, or twice that backward.
    With 128 keys half the buffer holds a head's."""
    chip = replace(TPU, global_buffer_bytes=131_072, num_vector_cores=2, vector_lanes=128)
    heads = {"batch": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 128, "causal": False}
    for keys, pass_, again in (256, Pass.FORWARD, 786_432), (256, Pass.BACKWARD, 2 * 786_432), (128, Pass.FORWARD, 0):
        op = Attention(name="x", **heads, seq_q=256, seq_kv=keys, pass_=pass_)
        cost = attention_cost(op, chip)
        assert cost.memory_bytes == op.bytes_moved + again
        assert cost.memory_s == pytest.approx((op.bytes_moved + again) / 1228.8e9, rel=1e-12)
    # 3 x 4 x 256 x 128 pairs on 2 x 128 lanes are 1,536 rounds of 6 cycles and an exponential of 10.
    assert cost.vector_s == pytest.approx(1536 * (6 + 10) / chip.clock_hz, rel=1e-12)
    # Units for special functions work beside the lanes: the slower of both.
    for unit, cycles in (2.0, 6), (8.0, 8):
        beside = attention_cost(op, replace(chip, special_cycles=unit)).vector_s
        assert beside == pytest.approx(1536 * cycles / chip.clock_hz, rel=1e-12)


def test_backward_in_one_pass_adds_in_the_global_buffer_by_hand() -> None:
    """1,024 x 1,024 pairs: five 2-byte elements each through the ports of 8 cores of (128 + 128) x 2 bytes a cycle, and
    8 blocks of keys that add 1,024 x 128 x 4 bytes at half of 128 MiB x 128 bytes a cycle; one softmax, not two."""
    op = Attention(
        name="x",
        batch=1,
        num_heads=1,
        num_kv_heads=1,
        seq_q=1024,
        seq_kv=1024,
        head_dim=128,
        v_head_dim=128,
        causal=False,
        pass_=Pass.BACKWARD,
    )
    ways = {"backward_passes": 2}, ADDS
    two, one = (attention_cost(op, replace(FAST_MEMORY, bank_bytes_per_cycle=128, **way)) for way in ways)
    cycles = 1024 * 1024 * 5 * 2 / (8 * 256 * 2) + 8 * 1024 * 128 * 4 / (128 * 128 / 2)
    products = sum(
        float(product_time_s(p, replace(FAST_MEMORY, bank_bytes_per_cycle=128)))
        for p in attention_products(op, replace(TPU, **ADDS))
    )
    assert one.tensor_s == pytest.approx(products + cycles / 1.05e9)
    assert two.vector_s == pytest.approx(2 * one.vector_s)


def test_operands_in_pieces_by_hand() -> None:
    """Rows of 2,049 elements are aligned to 2 bytes: 280 multiply-accumulates a cycle on each of 8 cores that load 16
    bytes; rows of 2,050 to 4, 525; rows of 2,056 to 16; a chip that loads any row does not mind."""
    loads = replace(TPU, load_bytes=16)
    for k, macs in (2049, 280), (2050, 525):
        op = Gemm(name="g", m=4096, n=4096, k=k)
        least = 4096 * 4096 * k / (8 * macs * 1.05e9)
        assert least < _operator_time_s(op, loads) < 1.01 * least
        assert least > 5 * _operator_time_s(op, TPU)
    whole = Gemm(name="g", m=4096, n=4096, k=2056)
    assert _operator_time_s(whole, loads) == _operator_time_s(whole, TPU)


def test_softmax_runs_beside_the_products_of_attention_as_far_as_the_chip_says() -> None:
    op = Attention(
        name="a", batch=1, num_heads=16, num_kv_heads=16, seq_q=2048, seq_kv=2048, head_dim=128, v_head_dim=128
    )
    times = [float(_operator_time_s(op, replace(FAST_MEMORY, softmax_overlap=share))) for share in (1.0, 0.5, 0.0)]
    cost = attention_cost(op, FAST_MEMORY)
    assert times[0] == pytest.approx(max(cost.tensor_s, cost.vector_s))
    assert times[2] == pytest.approx(cost.tensor_s + cost.vector_s)
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)
