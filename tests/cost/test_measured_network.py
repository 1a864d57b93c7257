"""Collectives on measured networks: pieces by size, groups not measured from the nearest that was."""

from __future__ import annotations

import numpy as np
import pytest

from sartor.cost.measured_network import UNSEEN, measured_cost
from sartor.hardware.measured_network import MeasuredNetwork, Topology, find_network, measured_networks
from sartor.operators import Collective, CollectiveKind


def line(kind: str, n: int, near: int, *pieces: tuple[float, float, float]) -> Topology:
    return Topology(kind=kind, num_devices=n, per_node=near, log_sigma=0.1, pieces=pieces)


NETWORK = MeasuredNetwork(
    name="two nodes",
    source="a test",
    date="2026-11-21",
    topologies=(
        line("all_reduce", 8, 4, (1e6, 50e-6, 1e-10), (1e9, 200e-6, 5e-11)),
        line("all_reduce", 4, 4, (1e9, 20e-6, 1e-12)),
    ),
)


def reduce(n: int, size: float) -> Collective:
    return Collective(name="r", kind=CollectiveKind.ALL_REDUCE, group_size=n, message_bytes=size)


@pytest.mark.parametrize(("size", "expected"), [(1e5, 60e-6), (1e6, 150e-6), (1e7, 700e-6), (1e10, 0.5002)])
def test_a_size_takes_the_piece_it_falls_into_and_the_last_goes_on(size: float, expected: float) -> None:
    cost = measured_cost(reduce(8, size), 4, NETWORK)
    assert cost is not None
    assert cost.time_s == pytest.approx(expected)
    assert cost.log_sigma == 0.1


def test_a_group_not_measured_is_the_nearest_scaled_by_hops_and_bytes_and_is_less_sure() -> None:
    """16 devices over 4 nodes: from 8 over 2, with 30 hops for 14 and 2 x 15/16 of the buffer for 2 x 7/8."""
    cost = measured_cost(reduce(16, 1e5), 4, NETWORK)
    assert cost is not None
    assert cost.time_s == pytest.approx(50e-6 * 30 / 14 + 1e-5 * (15 / 16) / (7 / 8))
    assert cost.log_sigma == pytest.approx(0.1 * UNSEEN)


def test_an_array_of_groups_and_sizes_is_the_single_answers() -> None:
    sizes, groups = np.asarray([1e5, 1e7, 1e7]), np.asarray([8, 8, 4])
    many = measured_cost(reduce(groups, sizes), 4, NETWORK)  # type: ignore[arg-type]
    assert many is not None
    for i, (n, size) in enumerate(zip(groups, sizes, strict=True)):
        one = measured_cost(reduce(int(n), float(size)), 4, NETWORK)
        assert one is not None
        assert np.asarray(many.time_s)[i] == one.time_s


def test_a_collective_that_was_not_measured_has_no_time() -> None:
    op = Collective(name="a", kind=CollectiveKind.ALL_TO_ALL, group_size=8, message_bytes=1e6)
    assert measured_cost(op, 4, NETWORK) is None


def test_every_network_that_ships_has_a_source_and_rising_pieces() -> None:
    assert find_network("nobody's") is None
    for network in measured_networks().values():
        assert network.source
        for each in network.topologies:
            ends = [most for most, _, _ in each.pieces]
            assert ends == sorted(ends)
            assert all(start >= 0 and slope >= 0 and start + slope > 0 for _, start, slope in each.pieces)
