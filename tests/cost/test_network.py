"""Laws of collectives across the tiers of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.api.single_operators import collective
from sartor.cost.collective.collective import _local_coefficients, collective_cost, network_time_s
from sartor.cost.collective.links import NetworkCoefficients, network_coefficients
from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.price import price
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.hardware.cluster_catalog import CLUSTERS, load_cluster
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary, DType, Gemm, OperatorGraph

Kind = CollectiveKind
SWITCHED = tuple(name for name in CLUSTERS.names() if not load_cluster(name).tiers[0].torus_axes)
CALIBRATIONS: dict[str, Calibration] = {}

sizes = st.floats(1.0, 1e11)
powers = st.integers(0, 10).map(lambda e: 2**e)
kinds = st.sampled_from(list(Kind))
clusters = st.sampled_from(CLUSTERS.names()).map(load_cluster)
switched = st.sampled_from(SWITCHED).map(load_cluster)
eights = st.sampled_from(["dgx-a100", "dgx-h100", "dgx-b200", "aws-p4d", "meta-roce-h100", "pcie-8x-l4"]).map(
    load_cluster
)


def known(cluster: Cluster) -> Calibration:
    return CALIBRATIONS.setdefault(cluster.gpu.name, load_calibration(cluster.gpu))


def seconds(
    kind: Kind, size: Any, n: Any, stride: Any, cluster: Cluster, calibration: Calibration | None = None
) -> Any:
    return network_time_s(kind, size, n, stride, cluster, calibration or known(cluster)).time_s


def op(kind: Kind, size: float, n: int, **fields: Any) -> Collective:
    return Collective(name="c", kind=kind, group_size=n, message_bytes=size, **fields)


# --------------------------------------------------------------------------------------------------- laws


@given(kinds, sizes, st.sampled_from([1, 2, 4, 8]), eights)
def test_inside_a_node_it_is_the_single_node_model(kind: Kind, size: float, n: int, cluster: Cluster) -> None:
    inside = collective_cost(op(kind, size, n), cluster.gpu, known(cluster))
    across = network_time_s(kind, size, n, 1, cluster, known(cluster))
    assert across.time_s == pytest.approx(inside.time_s, rel=1e-12)
    assert across.network_s == pytest.approx(inside.network_s, rel=1e-12)
    if n > 1:
        assert across.log_sigma == inside.log_sigma
        assert across.source is inside.source


@given(sizes, st.sampled_from([2, 4, 8]), st.sampled_from(list(CollectiveLibrary)), st.booleans(), eights)
def test_an_engines_own_all_reduce_inside_a_node_stays_what_it_was(
    size: float, n: int, library: CollectiveLibrary, eager: bool, cluster: Cluster
) -> None:
    reduce = op(Kind.ALL_REDUCE, size, n, library=library, eager=eager and library is not CollectiveLibrary.NCCL)
    inside = collective_cost(reduce, cluster.gpu, known(cluster))
    assert collective_cost(reduce, cluster.gpu, known(cluster), cluster).time_s == pytest.approx(
        inside.time_s, rel=1e-12
    )


@given(kinds, sizes, st.floats(1.0, 10.0), powers, powers, clusters)
def test_time_never_falls_when_bytes_grow(
    kind: Kind, size: float, factor: float, n: int, stride: int, cluster: Cluster
) -> None:
    assert seconds(kind, size * factor, n, stride, cluster) >= seconds(kind, size, n, stride, cluster) * (1 - 1e-12)


@given(st.sampled_from([k for k in Kind if k is not Kind.SEND_RECV]), sizes, powers, powers, eights)
def test_time_never_falls_when_the_group_doubles(
    kind: Kind, size: float, n: int, stride: int, cluster: Cluster
) -> None:
    """On nodes of eight and groups of powers of two; a group that straddles nodes is slower than a larger whole one."""
    n = max(n, 2)
    small, large = (seconds(kind, size, each, stride, cluster) for each in (n, 2 * n))
    assert large >= small * (1 - 1e-9)


@given(kinds, sizes, powers, powers, switched)
def test_it_never_falls_when_members_are_further_apart(
    kind: Kind, size: float, n: int, stride: int, cluster: Cluster
) -> None:
    """Where the node's links are faster than the network, but for what the faster tier leaves exposed."""
    if any(a.bytes_per_s * 0.3 < b.bytes_per_s for a, b in zip(cluster.tiers, cluster.tiers[1:], strict=False)):
        return
    span = cluster.tiers[0].span  # 0: the network alone
    if not span or 2 ** int(np.log2(span)) != span:
        return
    near, far = (seconds(kind, size, n, each, cluster) for each in (stride, 2 * stride))
    within = max((tier.span for tier in cluster.tiers if stride < tier.span < n * stride), default=stride)
    exposed = seconds(kind, size, int(within // stride), stride, cluster) if within > stride else 0.0
    assert far >= (near - exposed) * 0.95


@given(kinds, sizes, powers, powers, clusters)
def test_rates_times_four_and_delays_over_four_give_a_quarter(
    kind: Kind, size: float, n: int, stride: int, cluster: Cluster
) -> None:
    slow = seconds(kind, size, n, stride, cluster)
    assert seconds(kind, size, n, stride, *_four_times(cluster)) == pytest.approx(slow / 4, rel=1e-9)


@given(kinds, sizes, powers, powers, clusters)
def test_a_group_alone_is_no_slower_than_one_among_others(
    kind: Kind, size: float, n: int, stride: int, cluster: Cluster
) -> None:
    busy, quiet = (
        network_time_s(kind, size, n, stride, cluster, known(cluster), alone=alone).time_s for alone in (False, True)
    )
    assert quiet <= busy


@given(kinds, sizes, st.integers(1, 8), clusters)
def test_a_group_alone_that_fits_into_a_node_stays_there_however_many_devices_the_cluster_has(
    kind: Kind, size: float, n: int, cluster: Cluster
) -> None:
    if n > cluster.tiers[0].span or cluster.tiers[0].torus_axes:
        return
    joined = replace(cluster, num_devices=0)
    here, there = (network_time_s(kind, size, n, 1, each, known(cluster), alone=True) for each in (cluster, joined))
    assert here.time_s == there.time_s
    straddling = network_time_s(kind, size, n, 1, cluster, known(cluster)).time_s
    assert here.time_s <= straddling


def test_groups_that_straddle_nodes_are_said_to_do_so() -> None:
    """7 of 8 GPUs of a node: the network carries such groups side by side, a group alone has NVLink."""
    straddling, alone = (
        collective("all_reduce", 1e9, 7, cluster="meta-roce-h100", alone=each) for each in (False, True)
    )
    assert (straddling.members[0], alone.members[0]) == (1, 7)
    assert "boundary of two nodes" in straddling.assumptions[0]
    assert not alone.assumptions
    assert alone.cost.time_s < straddling.cost.time_s / 10
    assert not collective("all_reduce", 1e9, 8, cluster="meta-roce-h100").assumptions


@given(sizes, powers, st.sampled_from([1e-3, 1.0, 1e3]))
def test_silent_neighbours_leave_their_adapters_but_no_more_than_a_device_can_use(
    size: float, n: int, most: float
) -> None:
    cluster = load_cluster("aws-p4d")
    inner, outer = cluster.tiers
    wider = replace(cluster, tiers=(inner, replace(outer, alone_bytes_per_s=most * outer.bytes_per_s)))
    times = [
        network_time_s(Kind.ALL_GATHER, size, 2 * n, 8, each, known(cluster), alone=True).network_s
        for each in (cluster, wider)
    ]
    assert times[1] == pytest.approx(times[0] / min(max(most, 1.0), 8.0), rel=1e-9)


def test_a_device_sends_through_a_socket_no_faster_than_one_stream_goes() -> None:
    cluster = load_cluster("azure-nc96ads-a100-v4")
    faster = replace(cluster, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], alone_bytes_per_s=1e11)))
    flow = known(cluster).network.flow_bytes_per_s
    moved = [
        network_time_s(Kind.SEND_RECV, 1e9, 2, 4, each, known(cluster), alone=True).network_s
        for each in (cluster, faster)
    ]
    assert moved == [1e9 / flow, 1e9 / flow]


def _four_times(cluster: Cluster) -> tuple[Cluster, Calibration]:
    quick = [replace(each, bytes_per_s=each.bytes_per_s * 4, latency_s=each.latency_s / 4) for each in cluster.tiers]
    gpu = replace(cluster.gpu, link_latency_s=cluster.gpu.link_latency_s / 4)
    base = known(cluster)
    c = _local_coefficients(cluster.tiers[0], base)
    kinds = tuple((name, share, launch / 4, hop / 4, sigma) for name, share, launch, hop, sigma in c.kinds)
    if cluster.tiers[0].kind == "pcie":
        assert c.over_pcie
    calibration = replace(
        base,
        collective=replace(c, hop_s=c.hop_s / 4, launch_s=c.launch_s / 4, kinds=kinds),
        network=replace(
            base.network, peer_s=base.network.peer_s / 4, flow_bytes_per_s=base.network.flow_bytes_per_s * 4
        ),
    )
    return replace(cluster, gpu=gpu, tiers=tuple(quick)), calibration


@given(st.sampled_from([Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER]), sizes, powers, powers, switched)
def test_no_algorithm_beats_the_bytes_that_must_cross(
    kind: Kind, size: float, n: int, stride: int, cluster: Cluster
) -> None:
    """What has to leave each group of the tier inside, over the nominal rate of all its members' links."""
    if n == 1:
        return
    outermost = cluster.tiers[-1]
    members, seen = n, 1
    for tier in cluster.tiers[:-1]:
        seen = max(min(tier.span // stride, n), seen)  # at most so many are near each other
    if seen >= members:
        return
    groups = -(-members // seen)
    turns = 2 if kind is Kind.ALL_REDUCE else 1
    least = turns * (groups - 1) / groups / seen
    assert seconds(kind, size, n, stride, cluster) >= least * size / outermost.bytes_per_s


@given(st.lists(st.tuples(sizes, powers, powers), min_size=1, max_size=6), kinds, clusters)
def test_an_array_entry_equals_the_scalar_call(
    rows: list[tuple[float, int, int]], kind: Kind, cluster: Cluster
) -> None:
    cluster = replace(cluster, num_devices=4096)  # of a torus the slice is known then
    size, n, stride = (np.array(column) for column in zip(*rows, strict=True))
    many = network_time_s(kind, size, n, stride, cluster, known(cluster))
    for i, row in enumerate(rows):
        one = network_time_s(kind, *row, cluster, known(cluster))
        for term in ("time_s", "network_s", "overhead_s", "log_sigma"):
            # NumPy 1.26 rounds a division of an array and of a number differently
            assert np.broadcast_to(getattr(many, term), size.shape)[i] == pytest.approx(getattr(one, term), rel=1e-14)


@given(kinds, sizes, powers, clusters)
def test_terms_add_up_and_one_device_costs_nothing(kind: Kind, size: float, n: int, cluster: Cluster) -> None:
    cost = network_time_s(kind, size, n, 1, cluster, known(cluster))
    assert cost.time_s == cost.network_s + cost.overhead_s
    assert (cost.time_s == 0) == (n == 1)


# --------------------------------------------------------------------------------------------------- hand-solved


def two_tiers(**outer: Any) -> tuple[Cluster, Calibration]:
    """Four devices of 100 GB/s per node, 10 GB/s each between; links reach all of their rate, nothing waits."""
    cluster = load_cluster("dgx-h100")
    tiers = (
        LinkTier(name="in", span=4, bytes_per_s=100e9, latency_s=0.0, kind="nvlink"),
        LinkTier(name="out", span=0, bytes_per_s=10e9, latency_s=0.0, kind="infiniband", **outer),
    )
    base = load_calibration(cluster.gpu)
    plain = replace(
        base.collective, link_share=1.0, all_reduce_share=1.0, small_group_loss=0.0, hop_s=0.0, launch_s=0.0, kinds=()
    )
    free = NetworkCoefficients(
        shares={"infiniband": 1.0}, all_to_all_share=1.0, tree_share=1.0, in_network_share=1.0, exposed_share=0.0,
        peer_s=0.0,
    )  # fmt: skip
    made = replace(cluster, tiers=tiers, devices_per_node=4)
    return made, replace(base, collective=plain, network=free)


@pytest.mark.parametrize(
    ("kind", "n", "stride", "milliseconds"),
    [
        (Kind.ALL_REDUCE, 4, 1, 1e9 * 2 * 3 / 4 / 100e9),  # a ring in the node
        (Kind.ALL_REDUCE, 8, 1, 1e9 * 2 * 7 / 8 / 4 / 10e9),  # ring of eight: each node passes twice 7/8 on
        (Kind.ALL_GATHER, 8, 1, 1e9 * 7 / 8 / 4 / 10e9),  # ring of eight: each node passes 7/8 on, over four rails
        (Kind.ALL_GATHER, 8, 4, 1e9 * 7 / 8 / 10e9),  # one member per node: 7/8 over its own rail
        (Kind.ALL_TO_ALL, 8, 1, 1e9 * 4 / 8 / 10e9),  # half of the buffer is for the other node
        (Kind.SEND_RECV, 8, 1, 1e9 / 10e9),  # the hop between nodes is the slowest
        (Kind.SEND_RECV, 2, 1, 1e9 / 100e9),
        (Kind.SEND_RECV, 2, 4, 1e9 / 10e9),
    ],
)
def test_bytes_over_rates_by_hand(kind: Kind, n: int, stride: int, milliseconds: float) -> None:
    cluster, calibration = two_tiers()
    assert seconds(kind, 1e9, n, stride, cluster, calibration) == pytest.approx(milliseconds, rel=1e-9)


def test_switches_that_add_halve_what_is_sent_between_many_nodes() -> None:
    plain, calibration = two_tiers()
    adding, _ = two_tiers(in_network_reduction=True)
    without, within = (seconds(Kind.ALL_REDUCE, 1e9, 1024, 4, each, calibration) for each in (plain, adding))
    assert within == pytest.approx(without / 2, rel=1e-2)
    slower = replace(calibration, network=replace(calibration.network, in_network_share=0.8))
    in_whole_nodes = seconds(Kind.ALL_REDUCE, 1e9, 1024, 1, adding, slower)
    assert in_whole_nodes == pytest.approx(1e9 / 4 / 0.8 / 10e9, rel=1e-9)  # a quarter by each device of a node


def test_oversubscription_divides_the_rate() -> None:
    plain, calibration = two_tiers()
    narrow, _ = two_tiers(oversubscription=4.0)
    for kind in Kind:
        one, other = (seconds(kind, 1e9, 64, 4, each, calibration) for each in (plain, narrow))
        assert other == pytest.approx(4 * one, rel=1e-9)


def test_stages_that_share_a_group_leave_the_core_to_those_at_its_edge() -> None:
    """Groups of 32 devices behind a core of a fourth: stages of 8 devices send from one stage in four."""
    made, calibration = two_tiers()
    tiers = (
        *made.tiers[:1],
        replace(made.tiers[1], span=32),
        replace(made.tiers[1], name="core", oversubscription=4.0),
    )
    wide = replace(made, tiers=tiers)
    within, edge, all_ = (seconds(Kind.SEND_RECV, 1e9, n, s, wide, calibration) for n, s in ((4, 8), (16, 8), (16, 32)))
    assert edge == pytest.approx(within, rel=1e-9)
    assert all_ == pytest.approx(4 * within, rel=1e-9)


def test_traffic_within_a_rail_never_meets_the_core() -> None:
    """Rings, trees and transfers between like places of nodes; a transfer to another place does."""
    plain, calibration = two_tiers()
    narrow, railed = (two_tiers(oversubscription=4.0, rails=on)[0] for on in (False, True))
    for kind in (Kind.ALL_REDUCE, Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.SEND_RECV):
        for stride in (4, 8):
            free, slow, rail = (seconds(kind, 1e9, 64, stride, each, calibration) for each in (plain, narrow, railed))
            assert rail == pytest.approx(free, rel=1e-9)
            assert slow == pytest.approx(4 * free, rel=1e-9)
    across = seconds(Kind.SEND_RECV, 1e9, 64, 2, railed, calibration)
    assert across == pytest.approx(seconds(Kind.SEND_RECV, 1e9, 64, 2, narrow, calibration), rel=1e-9)


def test_an_all_to_all_reaches_other_rails_over_the_nodes_own_links() -> None:
    """64 devices, 4 a node: each sends 60/64 of 1 GB out at 10 GB/s, having handed 3/4 of it to neighbours at 100 GB/s;
    without links to forward over, those 3/4 cross a core that is four times too narrow."""
    railed, calibration = two_tiers(oversubscription=4.0, rails=True)
    assert seconds(Kind.ALL_TO_ALL, 1e9, 64, 1, railed, calibration) == pytest.approx(60 / 64 / 10, rel=1e-4)
    tiers = (replace(railed.tiers[0], bytes_per_s=5e9), railed.tiers[1])
    slow = seconds(Kind.ALL_TO_ALL, 1e9, 64, 1, replace(railed, tiers=tiers), calibration)
    assert slow == pytest.approx((3 / 64 + 60 / 64 * 3 / 4) / 5, rel=1e-4)
    pcie = replace(railed, tiers=(replace(railed.tiers[0], kind="pcie"), railed.tiers[1]))
    crossed = seconds(Kind.ALL_TO_ALL, 1e9, 64, 1, pcie, calibration)
    assert crossed == pytest.approx(60 / 64 / 10 * (1 + 3 * 3 / 4), rel=1e-4)


def test_a_group_that_straddles_nodes_pays_the_network() -> None:
    cluster = load_cluster("dgx-h100", num_devices=48)
    six, eight = (seconds(Kind.ALL_REDUCE, 1e8, n, 1, cluster) for n in (6, 8))
    assert six > 1.5 * eight


def test_a_rack_of_72_is_used_by_its_64() -> None:
    big = load_cluster("gb200-nvl72", num_devices=256)
    assert seconds(Kind.ALL_TO_ALL, 1e8, 64, 1, big) < seconds(Kind.ALL_TO_ALL, 1e8, 128, 1, big) / 3


def test_a_lone_group_over_two_racks_is_halved() -> None:
    """127, 128 and 144 devices are 63, 64 and 72 in the smaller rack, not the greatest common divisor."""
    rack = load_cluster("gb200-nvl72")
    odd, even, full = (seconds(Kind.ALL_REDUCE, 1e9, n, 1, rack) for n in (127, 128, 144))
    assert full == pytest.approx(even, rel=0.02)
    assert full == pytest.approx(odd, rel=0.02)


def test_nodes_are_filled_whole() -> None:
    """Twelve devices are a node of eight and half of another, where groups of four stay inside."""
    twelve = load_cluster("dgx-h100", num_devices=12)
    assert seconds(Kind.ALL_REDUCE, 1e9, 4, 1, twelve) == seconds(Kind.ALL_REDUCE, 1e9, 4, 1, load_cluster("dgx-h100"))


def test_the_pairs_of_a_summit_node_know_their_sockets() -> None:
    summit = load_cluster("summit")
    socket, node, nodes = (seconds(Kind.ALL_REDUCE, 1e8, n, 1, summit) for n in (3, 6, 12))
    assert socket < node / 3
    assert node < nodes


def test_a_torus_is_used_along_the_axes_a_group_covers() -> None:
    cube = load_cluster("tpu-v4", num_devices=4096)
    line, plane, all_axes = (seconds(Kind.ALL_GATHER, 1e10, n, 1, cube) for n in (16, 256, 4096))
    assert line == pytest.approx(2 * plane, rel=0.1)
    assert line == pytest.approx(3 * all_axes, rel=0.1)
    open_line = seconds(Kind.ALL_GATHER, 1e10, 8, 1, load_cluster("tpu-v5e", num_devices=256))
    ring = seconds(Kind.ALL_GATHER, 1e10, 16, 1, load_cluster("tpu-v5e", num_devices=256))
    assert open_line == pytest.approx(2 * ring * (7 / 8) / (15 / 16), rel=1e-3)


def test_an_all_to_all_on_a_ring_takes_a_quarter_of_its_length() -> None:
    ring = load_cluster("tpu-v5e", num_devices=256)
    gather, swap = (seconds(kind, 1e10, 16, 1, ring) for kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL))
    assert swap == pytest.approx(4 * gather, rel=1e-3)


def test_slices_of_tpus_meet_over_the_data_centre_network() -> None:
    two = load_cluster("tpu-v5e", num_devices=512)
    assert seconds(Kind.ALL_REDUCE, 1e9, 512, 1, two) > seconds(Kind.ALL_REDUCE, 1e9, 256, 1, two)
    assert seconds(Kind.SEND_RECV, 1e9, 2, 256, two) == pytest.approx(1e9 / (0.7 * 25e9 / 8), rel=1e-2)


# --------------------------------------------------------------------------------------------------- the edges


def test_estimate_passes_the_cluster_on() -> None:
    cluster = load_cluster("jean-zay-a100")
    wide = Collective(name="g", kind=Kind.ALL_GATHER, group_size=8, stride=8, message_bytes=1e8)
    near = replace(wide, stride=1)
    gemm = Gemm(name="p", m=4096, n=4096, k=4096, dtype=DType.BF16)
    graph = OperatorGraph(operators=(gemm, wide, near))
    alone = price(graph, cluster.gpu)
    within = price(graph, cluster.gpu, cluster=cluster)
    assert within.costs[0] == alone.costs[0]
    assert within.costs[1].time_s > 10 * alone.costs[1].time_s
    assert within.costs[2].time_s == pytest.approx(alone.costs[2].time_s, rel=1e-12)


def test_coefficients_are_overridden_in_one_place() -> None:
    cluster = load_cluster("dgx-a100")
    half = network_coefficients({"shares": {"infiniband": 0.45}, "exposed_share": 0.0})
    slow = replace(known(cluster), network=half)
    full = replace(known(cluster), network=network_coefficients({"shares": {"infiniband": 0.9}, "exposed_share": 0.0}))
    one, two = (seconds(Kind.SEND_RECV, 1e10, 2, 8, cluster, each) for each in (full, slow))
    assert two == pytest.approx(2 * one, rel=1e-3)
    assert half.share("ethernet") == NetworkCoefficients().share("ethernet")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"share": {}}, "network.share={}: is not a network coefficient; nearest: shares"),
        ({"shares": {"infinband": 0.9}}, "network.shares.infinband=0.9: is not a kind of link; nearest: infiniband"),
        ({"shares": {"infiniband": 1.2}}, "must be a share above 0 and at most 1"),
        ({"shares": 0.9}, "must be a table"),
        ({"tree_share": 0}, "must be a share"),
        ({"peer_s": -1}, "must be a finite number"),
        ({"log_sigma": float("nan")}, "must be a finite number"),
    ],
)
def test_coefficients_that_cannot_be_are_refused(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        network_coefficients(table)


def test_a_hundred_thousand_groups_take_one_call() -> None:
    cluster = load_cluster("dgx-h100", num_devices=1024)
    n = np.tile(2 ** np.arange(10), 10_000)
    cost = network_time_s(Kind.ALL_REDUCE, 1e8, n, 1, cluster, known(cluster))
    assert np.shape(cost.time_s) == (100_000,)
    assert np.all(np.isfinite(cost.time_s))
