"""Whose collectives are borrowed: those of the most alike links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.relatives import (
    OTHER_LINKS,
    SAME_LINKS,
    SAME_LINKS_OTHER_NODE,
    Relative,
    _nearest_links,
    _nearest_rate,
)
from sartor.hardware.catalog import load_gpu
from sartor.operators import Collective, CollectiveKind, CollectiveLibrary

LENDERS = ("a100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")


@pytest.mark.parametrize(
    ("device", "lender", "widening"),
    [
        ("h100_sxm", "h200_sxm", SAME_LINKS),
        ("b200_sxm", "b300_sxm", SAME_LINKS),
        ("gb300", "gb200", SAME_LINKS),
        ("gh200", "h200_sxm", SAME_LINKS_OTHER_NODE),
        ("v100_sxm", "a100_sxm", OTHER_LINKS),
        ("l4", "", 1.0),
        ("mi300x", "", 1.0),
    ],
)
def test_the_nearest_links_lend(device: str, lender: str, widening: float) -> None:
    assert _nearest_links(load_gpu(device), LENDERS) == Relative(name=lender, widen=widening)


@given(st.floats(1e9, 1e13), st.permutations(LENDERS))
def test_the_order_of_lenders_does_not_matter(rate: float, lenders: list[str]) -> None:
    device = replace(load_gpu("h100_sxm"), link_bytes_per_s=rate, pcie_bytes_per_s=0.0)
    assert _nearest_links(device, lenders) == _nearest_links(device, LENDERS)


def test_a_bridge_borrows_from_the_links_of_its_rate() -> None:
    assert _nearest_rate(300e9, LENDERS) == Relative(name="a100_sxm", widen=SAME_LINKS_OTHER_NODE)
    assert _nearest_rate(56e9, LENDERS) == Relative(name="a100_sxm", widen=OTHER_LINKS)
    assert _nearest_rate(300e9, ()) == Relative()


def test_a_device_that_borrows_says_from_whom() -> None:
    record = load_calibration(load_gpu("gh200")).provenance["collective"]
    assert record["lender"] == "borrowed from h100_sxm"


@pytest.mark.parametrize("library", [CollectiveLibrary.CUSTOM, CollectiveLibrary.TRTLLM])
@pytest.mark.parametrize(("wide", "beside"), [("gb200", "b200_sxm"), ("gb300", "b300_sxm")])
def test_eight_devices_that_were_not_timed_take_as_long_as_the_same_chips_that_were(
    wide: str, beside: str, library: CollectiveLibrary
) -> None:
    """GB200 and GB300 were timed with up to four; their links to each other are those of B200 and B300."""
    sizes = np.geomspace(2**14, 2**23, 37)
    times = [
        collective_cost(
            Collective(name="sum", kind=CollectiveKind.ALL_REDUCE, group_size=8, message_bytes=sizes, library=library),
            load_gpu(name),
            load_calibration(load_gpu(name)),
        ).time_s
        for name in (wide, beside)
    ]
    assert np.all(np.asarray(times[0]) < 1.15 * np.asarray(times[1]))
    assert np.all(np.asarray(times[0]) > 0.75 * np.asarray(times[1]))
