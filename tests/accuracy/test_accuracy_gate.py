"""A gate on what ``sartor validate`` finds: errors of a fixed sample of measured rows may not grow.

The sample and its marks lie in tests/golden, so it holds in any clone. ``python lab/accuracy_gate.py`` writes the
marks anew where predictions improved or a loss is meant.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "lab"))

import accuracy_gate as gate  # noqa: E402

FAMILIES = {"gemm": 36, "attention": 22, "memory_bound": 130, "moe": 8, "collectives": 60}
"""Table -> groups it has at least."""


@pytest.fixture(scope="module")
def found() -> list[gate.Group]:
    pytest.importorskip("pyarrow")
    return gate.groups()


def test_no_group_of_the_fixed_sample_is_further_off_than_its_mark(found: list[gate.Group]) -> None:
    assert list(gate.losses(found)) == []


def test_every_family_of_operators_is_in_the_sample(found: list[gate.Group]) -> None:
    tables = [group.keys["table"] for group in found if group.expressed == group.rows]
    assert {name: min(tables.count(name), least) for name, least in FAMILIES.items()} == FAMILIES


def test_predictions_beat_the_plain_roofline_on_the_sample(found: list[gate.Group]) -> None:
    for table in FAMILIES:
        mine = [g for g in found if g.keys["table"] == table and g.mape is not None and g.roofline_mape is not None]
        ours, plain = sum(g.mape or 0 for g in mine), sum(g.roofline_mape or 0 for g in mine)
        assert ours < 0.5 * plain, table


def test_the_gate_sees_a_group_that_is_worse_by_a_tenth_of_a_point(found: list[gate.Group]) -> None:
    worse = [replace(found[0], mape=(found[0].mape or 0) + 0.001), *found[1:]]
    assert len(list(gate.losses(worse))) == 1


def test_the_gate_sees_a_group_without_a_prediction(found: list[gate.Group]) -> None:
    assert len(list(gate.losses(found[1:]))) == 1


def test_every_row_of_the_sample_names_where_it_was_published() -> None:
    for path in gate.SAMPLE.glob("*.csv"):
        with path.open(encoding="utf-8") as file:
            assert all(row["source"] for row in csv.DictReader(file)), path.name
