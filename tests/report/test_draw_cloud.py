"""The picture of a design's points: names never cover a point or each other; axes are those that were asked for."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.report.charts import FILE, PAGE, draw
from sartor.report.chip_points import LETTER, LINE, MARK, WIDTH, DesignCloud, _meet, _placed, _rows, _scaled

NUMBER = st.floats(1.0, 1000.0)
KIND = st.sampled_from(["best", "front", "evaluated", "baseline"])


def cloud(
    points: list[tuple[float, float, str]], axes: tuple[str, ...] = ("die [mm2]",), **changes: Any
) -> DesignCloud:
    across, value, kinds = zip(*points, strict=True)
    numbers = {name: np.array(across) for name in ("area_mm2", "power_w", "across", "shade")}
    names = tuple(f"chip {i}, searched placement" for i in range(len(points)))
    numbers |= {"objective": np.array(value), **changes}
    return DesignCloud(title="points", unit="sequences/s", labels=names, kind=kinds, axes=axes, **numbers)


@given(st.lists(st.tuples(NUMBER, NUMBER, KIND), min_size=1, max_size=30))
def test_names_cover_neither_points_nor_each_other(points: list[tuple[float, float, str]]) -> None:
    rows = list(_rows(cloud(points)))
    marks = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in _scaled(rows)]
    boxes = []
    for align, named in _placed(rows).items():
        for row in named:
            ((x, y),) = {at for at, other in zip(_scaled(rows), rows, strict=True) if other["label"] == row["label"]}
            wide = LETTER * len(row["words"])
            left = x + 9 if align == "left" else x - 9 - wide
            assert 0 <= left <= left + wide <= WIDTH
            boxes.append((left, y - LINE / 2, left + wide, y + LINE / 2))
    assert not any(_meet(one, other) for one, other in combinations(boxes, 2))
    assert not any(_meet(box, mark) for box in boxes for mark in marks)


@pytest.mark.parametrize("frame", [FILE, PAGE])
def test_a_front_is_drawn_over_its_axes(frame: Any) -> None:
    points = [(1.0, 5.0, "best"), (2.0, 4.0, "front"), (3.0, 3.0, "evaluated"), (4.0, 2.0, "baseline")]
    text = draw(cloud(points, ("power at most [W]", "die and memory [USD]")), frame).to_json()
    assert "power at most [W]" in text
    assert "size in the front: die and memory [USD]" in text
    assert "other way to choose" in text
    assert "size in the front" not in draw(cloud(points), frame).to_json()


def test_what_has_no_price_is_left_out_of_a_front_over_prices() -> None:
    points = [(1.0, 5.0, "best"), (2.0, 4.0, "baseline")]
    rows = list(_rows(cloud(points, across=np.array([1.0, np.inf]))))
    assert [row["kind"] for row in rows] == ["best"]
