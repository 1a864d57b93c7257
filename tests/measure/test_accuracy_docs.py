"""docs/accuracy.md has the tables its generator writes; the generator works on tables made here."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from measure.made_tables import gemm_rows, write_parquet


@pytest.fixture(scope="module")
def tool(repo_dir: Path) -> Iterator[ModuleType]:
    sys.path.insert(0, str(repo_dir / "tools"))
    spec = importlib.util.spec_from_file_location("accuracy_docs", repo_dir / "tools" / "accuracy_docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(repo_dir / "tools"))


def test_the_page_has_the_headings_and_tables_of_its_generator(repo_dir: Path, tool: ModuleType) -> None:
    text = (repo_dir / "docs" / "accuracy.md").read_text("utf-8")
    assert sorted(tool.outline(text)) == sorted(tool.expected()), "run: python tools/accuracy_docs.py"
    assert text.startswith(tool.GENERATED)


def test_every_line_of_a_table_has_as_many_cells_as_its_head(repo_dir: Path) -> None:
    cells = 0
    for line in (repo_dir / "docs" / "accuracy.md").read_text("utf-8").splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        assert line.count("|") == (cells or line.count("|"))
        cells = line.count("|")


def test_a_page_is_written_from_other_tables(tmp_path: Path, tool: ModuleType) -> None:
    (tmp_path / "measured").mkdir()
    write_parquet(tmp_path / "measured" / "x.parquet", [*gemm_rows(1.25), *gemm_rows(1.25, gpu="h100_sxm")])
    text = tool.page(tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("| a100_sxm | bfloat16 | 12 ")]
    assert "| 20.0% | 20.0% | 20.0% | -20.0% |" in lines[0]
    assert "held out" in lines[0], "the line says what its device's fit held out"
    assert any("kin h200_sxm, nothing of this device" in line for line in text.splitlines())


def test_the_training_section_is_put_before_the_last_and_replaced_after_that(tool: ModuleType) -> None:
    training = tool.training
    first = training.replaced("# Accuracy\n\n## Summary\n\n## Not expressed\n", f"{training.TITLE}\n\nold\n")
    assert first == f"# Accuracy\n\n## Summary\n\n{training.TITLE}\n\nold\n\n## Not expressed\n"
    assert training.replaced(first, f"{training.TITLE}\n\nnew\n") == first.replace("old", "new")
