"""One number worked out by hand for terms of a price, with round coefficients; tools/mutants.py changes
them one operator at a time."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from accelerators import TPU
from sartor.cost.collective.collective import DIRECT_MOST_BYTES, collective_cost, network_time_s
from sartor.cost.collective.links import NetworkCoefficients, link_time_s, torus_terms
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.coefficients import (
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    StreamLaw,
    TorchStreams,
)
from sartor.cost.gpu.gemm import FRESH_BYTES, _packed_bytes
from sartor.cost.gpu.grouped import grouped_terms
from sartor.cost.gpu.memory_bound import (
    _left_l2,
    launched_cost,
    memory_bound_cost,
    name_of,
    takes_law,
    torch_stream_cost,
)
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import LinkTier
from sartor.hardware.cluster_catalog import load_cluster
from sartor.operators import (
    Collective,
    CollectiveKind,
    CollectiveLibrary,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
)

MIB = 2**20
GPU = replace(load_gpu("h100"), link_bytes_per_s=400e9, link_latency_s=1e-6, hbm_bytes_per_s=4e12)
INSIDE = CollectiveCoefficients(
    link_share=0.7,
    all_reduce_share=0.8,
    small_group_loss=0.8,
    hop_s=1e-6,
    launch_s=5e-6,
    pipeline=0.6,
    direct=(("custom", 4.2e-6, 7e-8, 0.55, 3e-6, 0.6, 0.3),),
    eager_s=0.0,
)
BETWEEN = NetworkCoefficients(shares={"infiniband": 0.9}, exposed_share=0.1, pipeline=0.5, peer_s=3e-7)
CALIBRATION = replace(load_calibration(GPU), collective=INSIDE, network=BETWEEN)
NODE = LinkTier(name="node", span=8, bytes_per_s=400e9, latency_s=1e-6, kind="nvlink")
NET = LinkTier(name="network", span=0, bytes_per_s=50e9, latency_s=4e-6, kind="infiniband", rails=True)
CLUSTER = replace(load_cluster("dgx-h100"), gpu=GPU, num_devices=16, tiers=(NODE, NET))
ONE_SHOT_S = 4.2e-6 + 7 * 7e-8
"""Launch and seven peers."""


def engine_s(size: float, *, n: int = 8, eager: bool = False, eager_s: float = 0.0) -> float:
    op = Collective(
        name="all_reduce",
        kind=CollectiveKind.ALL_REDUCE,
        group_size=n,
        message_bytes=size,
        library=CollectiveLibrary.CUSTOM,
        eager=eager,
    )
    calibration = replace(CALIBRATION, collective=replace(INSIDE, eager_s=eager_s))
    return float(collective_cost(op, GPU, calibration).time_s)


def test_an_engines_small_all_reduce_reads_seven_buffers_in_one_shot() -> None:
    read_s = 7 * 65536 / (0.55 * 400e9)
    assert engine_s(65536) == pytest.approx(ONE_SHOT_S + read_s, rel=1e-9)


def test_an_engines_large_all_reduce_reads_two_times_seven_eighths_and_waits_once_more() -> None:
    read_s = 2 * 7 / 8 * MIB / (0.6 * 400e9)
    assert engine_s(MIB) == pytest.approx(ONE_SHOT_S + 3e-6 + read_s, rel=1e-9)


def test_an_engines_all_reduce_started_by_the_host_copies_its_buffer_and_has_a_least_time() -> None:
    copied_s = 2 * MIB / (0.87 * 4e12)
    assert engine_s(MIB, eager=True) == pytest.approx(engine_s(MIB) + copied_s, rel=1e-9)
    assert engine_s(MIB, eager=True, eager_s=9e-5) == pytest.approx(9e-5, rel=1e-9)
    assert engine_s(MIB, n=1, eager=True, eager_s=9e-5) == 0.0


def test_above_eight_mib_an_engine_uses_the_ring() -> None:
    launches_s = ONE_SHOT_S + 3e-6
    read_s = 2 * 7 / 8 * DIRECT_MOST_BYTES / (0.6 * 400e9)
    assert engine_s(DIRECT_MOST_BYTES) == pytest.approx(launches_s + read_s, rel=1e-9)
    assert engine_s(DIRECT_MOST_BYTES + 1) == pytest.approx(ring_s(DIRECT_MOST_BYTES + 1), rel=1e-9)


def ring_s(size: float, n: int = 8) -> float:
    """2 (n - 1)/n of the buffer at 0.8 (1 - 0.8/n^2) of the links, a launch, 2 (n - 1) hops, and the filling of the
    pipeline: 2 sqrt(0.6^2 x hops x time)."""
    sent_s = 2 * (n - 1) / n * size / (0.8 * (1 - 0.8 / n**2) * 400e9)
    hops_s = 2 * (n - 1) * 1e-6
    return sent_s + 5e-6 + hops_s + 2 * sqrt(0.36 * hops_s * sent_s)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_an_all_reduce_inside_a_node_is_its_ring(n: int) -> None:
    cost = network_time_s(CollectiveKind.ALL_REDUCE, 64 * MIB, n, 1, CLUSTER, CALIBRATION)
    assert cost.time_s == pytest.approx(ring_s(64 * MIB, n), rel=1e-9)


def test_an_all_gather_over_two_nodes_is_a_ring_through_both() -> None:
    """Inside: 15/16 of the buffer, and the 7 hops of a node 15 - 1 times over its 7 steps. Between: a sixteenth of 15
    eighths, one hop more for each node."""
    size = 64 * MIB
    inside_s = 15 / 16 * size / (0.7 * (1 - 0.8 / 64) * 400e9)
    between_s = 15 / 16 / 8 * size / (0.9 * 50e9)
    hops_s = 7 / 7 * (16 - 16 / 8) * 1e-6 + (16 / 8 - 16 / 16) * 4e-6
    filling_s = 2 * sqrt(0.36 * 7e-6 * inside_s) + 2 * sqrt(0.25 * 4e-6 * between_s)
    slowest_s, rest_s = max(inside_s, between_s), min(inside_s, between_s)
    cost = network_time_s(CollectiveKind.ALL_GATHER, size, 16, 1, CLUSTER, CALIBRATION)
    assert cost.time_s == pytest.approx(slowest_s + 0.1 * rest_s + 5e-6 + hops_s + filling_s, rel=1e-9)


def test_an_all_to_all_over_two_nodes_forwards_to_the_right_rail_first() -> None:
    """Inside: 7/16 for the neighbours and 8/16 x 7/8 handed on. Between: 8/16 at 0.75 of the ring's rate, and 0.3 us
    for each of 8 peers. One hop inside belongs to the launch."""
    size = 64 * MIB
    inside_s = (7 / 16 + 8 / 16 * 7 / 8) * size / (0.7 * (1 - 0.8 / 64) * 400e9)
    between_s = 8 / 16 * size / (0.9 * 0.75 * 50e9)
    hop_s = 4e-6 + 3e-7 * 8
    filling_s = 2 * sqrt(0.36 * 1e-6 * inside_s) + 2 * sqrt(0.25 * hop_s * between_s)
    slowest_s, rest_s = max(inside_s, between_s), min(inside_s, between_s)
    cost = network_time_s(CollectiveKind.ALL_TO_ALL, size, 16, 1, CLUSTER, CALIBRATION)
    assert cost.time_s == pytest.approx(slowest_s + 0.1 * rest_s + 5e-6 + 1e-6 + hop_s + filling_s, rel=1e-9)


def test_a_transfer_to_the_next_node_takes_its_link_alone() -> None:
    cost = network_time_s(CollectiveKind.SEND_RECV, MIB, 2, 8, CLUSTER, CALIBRATION)
    assert cost.time_s == pytest.approx(MIB / (0.9 * 50e9) + 4e-6 + 5e-6, rel=1e-9)


@pytest.mark.parametrize("size", [64 * 1024, 256 * MIB])
def test_an_all_reduce_over_two_nodes_takes_the_ring_or_the_tree(size: int) -> None:
    ring_inside_s = 30 / 16 * size / (0.8 * (1 - 0.8 / 64) * 400e9)
    filling_s = 2 * sqrt(0.36 * 14e-6 * ring_inside_s)
    ring_between_s, ring_hops_s = 30 / 16 / 8 * size / (0.9 * 50e9), 2 * 4e-6
    tree_between_s, tree_hops_s = 2 / 8 * size / (0.9 * 0.9 * 50e9), 2 * 2 * 4e-6

    def whole(between_s: float, hops_s: float, inside_hops_s: float) -> float:
        slowest_s, rest_s = max(ring_inside_s, between_s), min(ring_inside_s, between_s)
        filling = filling_s + 2 * sqrt(0.25 * hops_s * between_s)
        return slowest_s + 0.1 * rest_s + 5e-6 + inside_hops_s + hops_s + filling

    ring = whole(ring_between_s, ring_hops_s, 14 / 7 * (16 - 2) * 1e-6)
    tree = whole(tree_between_s, tree_hops_s, 14e-6)
    cost = network_time_s(CollectiveKind.ALL_REDUCE, size, 16, 1, CLUSTER, CALIBRATION)
    assert cost.time_s == pytest.approx(min(ring, tree), rel=1e-9)


def test_one_ring_over_all_devices_runs_at_the_rate_of_the_links_that_join_them() -> None:
    """16 devices cross the network, a group of eight alone stays in its node."""
    outer, size = replace(NET, rails=False), 64 * MIB
    ring = replace(CLUSTER, one_ring=True, tiers=(NODE, outer))
    for alone, tier in ((False, outer), (True, NODE)):
        only = replace(CLUSTER, tiers=(replace(tier, span=0),))
        cost = network_time_s(CollectiveKind.ALL_GATHER, size, 8, 1, ring, CALIBRATION, alone=alone)
        assert cost.time_s == network_time_s(CollectiveKind.ALL_GATHER, size, 8, 1, only, CALIBRATION).time_s


# ------------------------------------------------------------------------------------------- links of a chip's own


def test_a_small_all_reduce_between_chips_goes_whole_along_a_tree() -> None:
    """8 chips: a ring of 14 hops with 7/4 of the buffer, or a tree of 6 hops with all of it in each."""
    rate, hop_s = (float(value) for value in TPU.reach(8))
    for size, steps, sent in ((1024, 6, 6), (64 * MIB, 14, 7 / 4)):
        op = Collective(name="all_reduce", kind=CollectiveKind.ALL_REDUCE, group_size=8, message_bytes=size)
        expected = steps * hop_s + sent * size / rate
        assert link_time_s(op, TPU) == pytest.approx(expected, rel=1e-9)
        both = link_time_s(replace(op, message_bytes=np.array([size, size])), TPU)
        assert both == pytest.approx([expected, expected], rel=1e-9)
    alone = Collective(name="send", kind=CollectiveKind.SEND_RECV, group_size=1, message_bytes=1024)
    assert link_time_s(alone, TPU) == 0


def test_an_all_reduce_over_two_whole_axes_of_a_torus_uses_all_links_and_goes_half_round_each_twice() -> None:
    tier = LinkTier(name="torus", span=16, bytes_per_s=100e9, latency_s=1e-6, kind="ici", torus_axes=2)
    part, rate, hops = torus_terms(CollectiveKind.ALL_REDUCE, np.array(16.0), np.array(1.0), tier, 16)
    assert (float(part), float(rate), float(hops)) == pytest.approx((2 * 15 / 16, 100e9, 2 * (2 * 4 / 2)))
    part, rate, hops = torus_terms(CollectiveKind.ALL_TO_ALL, np.array(16.0), np.array(1.0), tier, 16)
    assert (float(part), float(rate), float(hops)) == pytest.approx((15 / 16 * 2, 100e9, 4))


def test_a_torus_without_a_size_is_as_large_as_the_group_with_its_gaps() -> None:
    """4 members 4 apart are one of two axes of 16 chips, 4 long and closed: half the links, and 2 hops for each way."""
    tier = LinkTier(name="torus", span=16, bytes_per_s=100e9, latency_s=1e-6, kind="ici", torus_axes=2)
    part, rate, hops = torus_terms(CollectiveKind.ALL_REDUCE, np.array(4.0), np.array(4.0), tier, 0)
    assert (float(part), float(rate), float(hops)) == pytest.approx((2 * 3 / 4, 50e9, 2 * 2))


def test_an_axis_of_a_torus_that_a_group_covers_in_part_adds_half_its_links() -> None:
    """8 of 4 x 4: a whole axis and half of another, 3/4 of the links; two axes of the root of 8 are 3 hops each way."""
    tier = LinkTier(name="torus", span=16, bytes_per_s=100e9, latency_s=1e-6, kind="ici", torus_axes=2)
    part, rate, hops = torus_terms(CollectiveKind.ALL_REDUCE, np.array(8.0), np.array(1.0), tier, 16)
    assert (float(part), float(rate), float(hops)) == pytest.approx((2 * 7 / 8, 75e9, 2 * 3))


# ------------------------------------------------------------------------------------------- streams and experts


def test_several_kernels_that_the_host_waits_for_read_their_bytes_each() -> None:
    measured = MemoryBoundCoefficients(eager_kinds=(("gelu", 2.0, 1e-6, 3e-6, 0.5, 0.1),))
    calibration = replace(CALIBRATION, memory_bound=measured, torch_streams=None)
    op = MemoryBound(
        name="gelu", kind=MemoryBoundKind.ACTIVATION, rows=4096, cols=8192, bytes_moved=1e8, kernels=3, kernel="gelu"
    )
    cost = memory_bound_cost(op, GPU, calibration, eager=True)
    read_s = 1e8 / (0.5 * 4e12)
    assert (cost.time_s, cost.memory_s) == pytest.approx((3 * (3e-6 + read_s), 3 * read_s), rel=1e-9)
    assert cost.overhead_s == pytest.approx(9e-6, rel=1e-9)


def test_a_models_kernels_take_their_own_time_or_that_of_the_hosts_calls() -> None:
    """Three kernels, 2 us each to start, 25 us of the host. 10 MB at 2 TB/s: 5 + 6 us, so 75 us, of which 70 are not
    memory's; 400 MB: 200 + 6 us."""
    measured = MemoryBoundCoefficients(hbm_share=0.5, l2_part=0.0, launch_s=2e-6, eager_launch_s=25e-6)
    calibration = replace(CALIBRATION, memory_bound=measured, torch_streams=None)
    for size, time_s, overhead_s in ((1e7, 75e-6, 70e-6), (4e8, 206e-6, 6e-6)):
        op = MemoryBound(name="add", kind=MemoryBoundKind.RESIDUAL, rows=8, cols=8, bytes_moved=size, kernels=3)
        cost = launched_cost(op, GPU, calibration)
        assert (cost.time_s, cost.overhead_s) == pytest.approx((time_s, overhead_s), rel=1e-9)


def test_the_hosts_call_of_a_measured_kernel_or_kind_is_its_own() -> None:
    """A residual's call takes 3 us beyond the simplest one's 25; a gelu's is timed for each type; a cast's takes 25."""
    measured = MemoryBoundCoefficients(
        eager_launch_s=25e-6,
        host_kinds=(("residual", 0.5, 3e-6, 0.1),),
        eager_kinds=(("gelu", 2.0, 40e-6, 3e-6, 0.5, 0.1), ("gelu", 4.0, 60e-6, 3e-6, 0.5, 0.1)),
    )
    calibration = replace(CALIBRATION, memory_bound=measured, torch_streams=None)
    add = MemoryBound(name="add", kind=MemoryBoundKind.RESIDUAL, rows=8, cols=8, bytes_moved=1.0)
    gelu = replace(add, kind=MemoryBoundKind.ACTIVATION, kernel="gelu")
    plain = replace(add, kind=MemoryBoundKind.CAST)
    for op, time_s in (add, 28e-6), (gelu, 40e-6), (replace(gelu, dtype=DType.FP32), 60e-6), (plain, 25e-6):
        assert launched_cost(op, GPU, calibration).time_s == pytest.approx(time_s, rel=1e-9)
    assert memory_bound_cost(add, GPU, calibration, eager=True).overhead_s == pytest.approx(28e-6, rel=1e-9)


def torch_law(*names: str, cycles: float = 0.0) -> TorchStreams:
    """Launches that take no time, and a second read that comes from memory."""
    kinds = tuple((name, cycles * (1 + place), 0.0, 0.0, 0.1) for place, name in enumerate(names))
    return TorchStreams(hbm_share=0.8, launch_s=0.0, again_from=1e-6, again_span=1e-6, kinds=kinds)


def test_a_torch_cross_entropy_moves_a_row_four_times_where_l2_has_lost_it() -> None:
    """Twice the least, and twice more what L2 no longer holds: four times 3.2 MB at 0.8 x 4 TB/s."""
    op = MemoryBound(name="loss", kind=MemoryBoundKind.CROSS_ENTROPY, rows=10**6, cols=50_000, bytes_moved=3.2e6)
    cost = torch_stream_cost(replace(op, kernel="cross_entropy"), GPU, torch_law("plain", "cross_entropy"), fused=False)
    assert cost.memory_s == pytest.approx(4e-6, rel=1e-9)


def test_a_chain_of_torch_kernels_works_as_plain_ones_do_and_an_unknown_one_as_itself() -> None:
    law = torch_law("plain", "gelu", "other", cycles=4.0)
    op = MemoryBound(name="x", kind=MemoryBoundKind.ACTIVATION, rows=1000, cols=2000, bytes_moved=0.0, kernels=2)
    for kind, kernels, cycles in (
        (MemoryBoundKind.ACTIVATION, 2, 4.0), (MemoryBoundKind.ACTIVATION, 1, 8.0), (MemoryBoundKind.ROUTING, 2, 12.0)
    ):  # fmt: skip
        cost = torch_stream_cost(replace(op, kind=kind, kernels=kernels), GPU, law, fused=False)
        assert cost.memory_s == pytest.approx(cycles * 2e6 / (GPU.num_sms * GPU.highest_clock_hz), rel=1e-9)


def test_the_host_calls_the_two_kernels_of_torchs_gated_activation_or_the_one_of_others() -> None:
    measured = MemoryBoundCoefficients(eager_launch_s=25e-6)
    op = MemoryBound(name="gate", kind=MemoryBoundKind.ACTIVATION, rows=8, cols=8, bytes_moved=1.0)
    for kernels, time_s in ("torch", 50e-6), ("vllm", 25e-6):
        law = torch_law("plain", "silu_and_mul")
        calibration = replace(CALIBRATION, memory_bound=measured, torch_streams=law, kernels=kernels)
        cost = launched_cost(replace(op, kernel="silu_and_mul"), GPU, calibration)
        assert cost.time_s == pytest.approx(time_s, rel=1e-9)


def test_a_torch_kernel_takes_the_root_of_the_squares_of_its_bytes_and_its_cycles() -> None:
    law = TorchStreams(
        hbm_share=0.8, launch_s=2e-6, again_from=0.5, again_span=1.0, kinds=(("plain", 4.0, 100.0, 1e-6, 0.1),)
    )
    op = MemoryBound(name="add", kind=MemoryBoundKind.RESIDUAL, rows=1000, cols=2000, bytes_moved=1.2e7)
    memory_s = 1.2e7 / (0.8 * 4e12)
    cycles_s = (4 * 1000 * 2000 + 100 * 1000) / (GPU.num_sms * GPU.highest_clock_hz)
    cost = torch_stream_cost(
        op, GPU, replace(law, kinds=(*law.kinds, (name_of(op), 4.0, 100.0, 1e-6, 0.1))), fused=False
    )
    assert cost.memory_s == pytest.approx(sqrt(memory_s**2 + cycles_s**2), rel=1e-9)
    assert cost.overhead_s == pytest.approx(2e-6 + 1e-6, rel=1e-9)


@pytest.mark.parametrize(("size", "time_s"), [(1e6, 50e-6), (4e8, 139e-6)])
def test_a_kernel_that_the_host_waits_for_starts_before_its_call_is_over(size: float, time_s: float) -> None:
    """Two calls of 25 us, the first with 11 to go when its kernel starts. 400 MB at 0.8 x 4 TB/s take 125 us: 25 - 11
    + 125 in all; 1 MB ends before the calls do."""
    called = StreamLaw(hbm_share=1.0, gddr_share=1.0, l2_part=0.0, l2_bytes_per_cycle=1.0, hidden_s=11e-6)
    measured = MemoryBoundCoefficients(eager_launch_s=25e-6, called=called)
    calibration = replace(CALIBRATION, memory_bound=measured, torch_streams=torch_law("plain"), kernels="torch")
    op = MemoryBound(name="add", kind=MemoryBoundKind.RESIDUAL, rows=8, cols=8, bytes_moved=size, kernels=2)
    cost = memory_bound_cost(op, GPU, calibration, eager=True)
    assert (cost.time_s, cost.overhead_s) == pytest.approx((time_s, 50e-6), rel=1e-9)


def test_a_gated_activation_of_torch_is_two_kernels_that_move_five_thirds() -> None:
    """silu reads and writes, the product reads two and writes: five for three."""
    law = TorchStreams(
        hbm_share=0.8, launch_s=2e-6, again_from=0.5, again_span=1.0,
        kinds=tuple((name, 4.0, 100.0, 1e-6, 0.1) for name in ("plain", "silu_and_mul")),
    )  # fmt: skip
    op = MemoryBound(
        name="gate", kind=MemoryBoundKind.ACTIVATION, rows=1000, cols=2000, bytes_moved=1.2e7, kernel="silu_and_mul"
    )
    memory_s = 2e7 / (0.8 * 4e12)
    cycles_s = (4 * 1000 * 2000 * 5 / 3 + 100 * 1000) / (GPU.num_sms * GPU.highest_clock_hz)
    cost = torch_stream_cost(op, GPU, law, fused=False)
    assert cost.memory_s == pytest.approx(sqrt(memory_s**2 + cycles_s**2), rel=1e-9)
    assert cost.overhead_s == pytest.approx(2 * 2e-6 + 1e-6, rel=1e-9)
    calibration = replace(CALIBRATION, torch_streams=law)
    in_torch, fused = (memory_bound_cost(op, GPU, replace(calibration, kernels=name)) for name in ("torch", "vllm"))
    assert (in_torch.memory_s, in_torch.log_sigma) == (cost.memory_s, 0.1)
    cycles_s = (4 * 1000 * 2000 + 100 * 1000) / (GPU.num_sms * GPU.highest_clock_hz)
    assert fused.memory_s == pytest.approx(sqrt((1.2e7 / (0.8 * 4e12)) ** 2 + cycles_s**2), rel=1e-9)
    assert fused.log_sigma == 0.25


@pytest.mark.parametrize(("cols", "cycles"), [(2048, 4.0), (2049, 8.0)])
def test_a_row_of_softmax_has_a_warp_up_to_2048_columns_and_then_a_block(cols: int, cycles: float) -> None:
    kinds = (("softmax", 4.0, 0.0, 0.0, 0.1), ("softmax_wide", 8.0, 0.0, 0.0, 0.1), ("plain", 1.0, 0.0, 0.0, 0.1))
    law = TorchStreams(hbm_share=0.8, launch_s=0.0, again_from=0.5, again_span=1.0, kinds=kinds)
    op = MemoryBound(name="softmax", kind=MemoryBoundKind.SOFTMAX, rows=1000, cols=cols, bytes_moved=0.0)
    busy_s = cycles * 1000 * cols / (GPU.num_sms * GPU.highest_clock_hz)
    assert torch_stream_cost(op, GPU, law, fused=False).time_s == pytest.approx(busy_s, rel=1e-9)


def test_experts_read_their_weights_and_rows_write_results_and_a_share_of_masked_rows() -> None:
    c = GroupedCoefficients(hbm_share=0.5, masked=0.25)
    op = GroupedGemm(name="experts", groups=4, rows=512, n=1024, k=2048, masked_rows=256)
    moved = 2 * (4 * 1024 * 2048 + 512 * 2048) + 2 * 512 * 1024 + 0.25 * 2 * 256 * (1024 + 2048)
    assert float(grouped_terms(op, GPU, c)["memory_s"]) == pytest.approx(moved / (0.5 * 4e12), rel=1e-9)


def test_a_second_read_of_a_row_comes_from_memory_as_far_as_rows_in_flight_fill_l2() -> None:
    """Two blocks of 1,024 threads on an SM: of a million rows, twice the SMs are in flight."""
    law = TorchStreams(hbm_share=0.8, launch_s=2e-6, again_from=0.1, again_span=4.0, kinds=())
    op = MemoryBound(name="softmax", kind=MemoryBoundKind.SOFTMAX, rows=10**6, cols=20_000, bytes_moved=1.0)
    filled = 2 * GPU.num_sms * 20_000 * 2 / GPU.l2_bytes
    assert float(_left_l2(op, GPU, law, "softmax")) == pytest.approx(np.log(filled / 0.1) / 4, rel=1e-9)


def test_a_framework_whose_own_kernels_were_timed_on_the_device_leaves_the_law() -> None:
    """Others keep it, also where none is named and the table is nobody's."""
    law = TorchStreams(hbm_share=0.8, launch_s=2e-6, again_from=0.1, again_span=4.0, kinds=())
    op = MemoryBound(name="norm", kind=MemoryBoundKind.NORM, rows=8, cols=8, bytes_moved=1.0)
    for framework, kernels, expected in ("vllm", "vllm", False), ("vllm", "sglang", True), ("", "", True):
        table = replace(CALIBRATION.memory_bound, framework=framework)
        calibration = replace(CALIBRATION, torch_streams=law, memory_bound=table, kernels=kernels)
        assert takes_law(op, calibration) is expected


def test_a_host_copies_both_operands_of_a_transposed_product_and_touches_fresh_pages() -> None:
    c = GemmCoefficients(
        tiles=((128, 128, 1.0),), pack_nn=0.5, pack_tn=0.25, pack_nt=0.125, pack_columns=512.0, fresh_cost=3.0
    )
    gemm = Gemm(name="wgrad", m=1000, n=4096, k=2048, layout=Layout.NT)
    shared = {"batch": 1.0, "m": 1000.0, "n": 4096.0, "k": 2048.0}
    written = 1000 * 4096 * 2
    fresh = 3 * written if written > FRESH_BYTES else 0
    second = 4096 * 2048 * (0.25 if Layout.NT.second_along_k else 0.5)
    assert float(_packed_bytes(gemm, c, **shared)) == pytest.approx(second + 1000 * 2048 * 0.125 * 8 + fresh, rel=1e-9)
