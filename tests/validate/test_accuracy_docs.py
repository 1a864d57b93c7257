"""docs/accuracy.md says what its tables say; the tables are made from measured rows."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from records.made_tables import gemm_rows, write_parquet


@pytest.fixture
def tool(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repo_dir / "tools")
    return importlib.import_module("accuracy_docs")


def test_the_page_is_made_from_the_tables_and_calibration_files(repo_dir: Path, tool: ModuleType) -> None:
    text = (repo_dir / "docs" / "accuracy.md").read_text("utf-8")
    assert text == tool.page(), "run: python tools/accuracy_docs.py"


def test_every_line_of_a_table_has_as_many_cells_as_its_head(repo_dir: Path) -> None:
    cells = 0
    for line in (repo_dir / "docs" / "accuracy.md").read_text("utf-8").splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        assert line.count("|") == (cells or line.count("|"))
        cells = line.count("|")


def test_the_tables_are_made_from_measured_rows(
    tmp_path: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "measured").mkdir()
    write_parquet(tmp_path / "measured" / "x.parquet", [*gemm_rows(1.25), *gemm_rows(1.25, gpu="gh200")])
    monkeypatch.syspath_prepend(repo_dir / "tools")
    importlib.import_module("accuracy_tables").write_tables(tmp_path, tmp_path)
    with (tmp_path / "accuracy_operators.csv").open(newline="") as file:
        rows = {(row["gpu"], row["split"], row["size"]): row for row in csv.DictReader(file)}
    a100 = rows["a100_sxm", "bfloat16", ""]
    assert (a100["shapes"], a100["mape"], a100["bias"], a100["calibration"]) == ("12", "0.2", "-0.2", "own")
    assert rows["gh200", "bfloat16", ""]["calibration"] == "borrowed from h200_sxm"
    assert rows["all", "bfloat16", ""]["shapes"] == "24"
    assert rows["a100_sxm", "bfloat16", "below 512"]
    assert "Operators" in (tmp_path / "accuracy_left_out.md").read_text("utf-8")
