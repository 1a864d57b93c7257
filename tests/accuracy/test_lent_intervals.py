"""Devices that borrow as if nobody had measured them: what lies inside the interval, and whether p is a probability."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIMITED = ("attention", "collectives")
"""Families that are quick to predict, one with networks and one without."""


LAB = Path(__file__).resolve().parents[2] / "lab"


def test_what_borrowers_need_is_found_without_what_was_found_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(LAB))
    import fit_intervals

    with fit_intervals.borrowing("b200_sxm", "h200_sxm", 3.0):
        assert not fit_intervals.table_of("lent.toml")
    with fit_intervals.kin_docs.unmeasured("b200_sxm", "h200_sxm", 3.0):
        assert fit_intervals.table_of("lent.toml")


@pytest.fixture(scope="module")
def told(shared_dir: Path) -> list[Any]:
    """Every measured device of two families, by what it would borrow; intervals by the other devices."""
    tools = str(LAB)
    sys.path.insert(0, tools)
    try:
        import interval_docs
    finally:
        sys.path.remove(tools)
    patch = pytest.MonkeyPatch()
    families = interval_docs.kin_docs.FAMILIES
    patch.setattr(interval_docs.kin_docs, "FAMILIES", {name: families[name] for name in LIMITED})
    patch.setattr(interval_docs.fit_intervals, "MOST", 300)
    try:
        return list(interval_docs.told(shared_dir / "data"))
    finally:
        patch.undo()


@pytest.mark.slow
def test_what_is_told_with_a_probability_comes_about_as_often(told: list[Any]) -> None:
    p, won = (np.concatenate([getattr(each, name) for each in told]) for name in ("probability", "won"))
    for low, high in ((0.5, 0.65), (0.65, 0.8), (0.8, 0.95), (0.95, 1.0)):
        where = (p >= low) & (p <= high)
        assert won[where].mean() == pytest.approx(p[where].mean(), abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("family", LIMITED)
def test_totals_of_eight_lent_operators_lie_in_their_interval(told: list[Any], family: str) -> None:
    assert 0.65 <= np.mean([each.inside.mean() for each in told if each.family == family]) <= 0.95
