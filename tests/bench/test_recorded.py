"""Recorded rows become the cases again that were timed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.cost.cost_samples import lab_module

from bench.test_suites import LARGE
from sartor.bench.records_file import row_key
from sartor.bench.studies import STUDIES, Size, study
from sartor.bench.suites import suite

case_of = lab_module("timed_cases").case_of


@pytest.mark.parametrize("name", ["quick", "full", "alignment"])
def test_a_case_comes_back_from_its_columns(name: str) -> None:
    for case in suite(name, LARGE):
        again = case_of({"table": case.table, **case.columns})
        assert again.key == case.key
        assert getattr(again.work, "bytes_moved", 0) == getattr(case.work, "bytes_moved", 0)


@pytest.mark.parametrize("name", STUDIES)
def test_the_parts_of_a_study_come_back_whole(name: str) -> None:
    for case in study(name, LARGE, Size.FULL, lambda model: None).cases:
        assert case_of({"table": case.table, **case.columns}).key == case.key


def test_every_row_of_the_lent_gpus_comes_back(repo_dir: Path) -> None:
    for folder in ("h200_sxm", "h100_sxm"):
        for path in (repo_dir / "lab" / "records" / folder).glob("*.csv"):
            with path.open() as file:
                for row in csv.DictReader(file):
                    assert case_of(row).key == row_key(row)
