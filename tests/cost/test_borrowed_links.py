"""Whose collectives are borrowed: those of the most alike links."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.cost.correction.borrowing import (
    OTHER_LINKS,
    SAME_LINKS,
    SAME_LINKS_OTHER_NODE,
    Relative,
    nearest_links,
    nearest_rate,
)
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.catalog import load_gpu

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
    assert nearest_links(load_gpu(device), LENDERS) == Relative(name=lender, widen=widening)


@given(st.floats(1e9, 1e13), st.permutations(LENDERS))
def test_the_order_of_lenders_does_not_matter(rate: float, lenders: list[str]) -> None:
    device = replace(load_gpu("h100_sxm"), link_bytes_per_s=rate, pcie_bytes_per_s=0.0)
    assert nearest_links(device, lenders) == nearest_links(device, LENDERS)


def test_a_bridge_borrows_from_the_links_of_its_rate() -> None:
    assert nearest_rate(300e9, LENDERS) == Relative(name="a100_sxm", widen=SAME_LINKS_OTHER_NODE)
    assert nearest_rate(56e9, LENDERS) == Relative(name="a100_sxm", widen=OTHER_LINKS)
    assert nearest_rate(300e9, ()) == Relative()


def test_a_device_that_borrows_says_from_whom() -> None:
    record = load_calibration(load_gpu("gh200")).provenance["collective"]
    assert record["lender"] == "borrowed from h100_sxm"
