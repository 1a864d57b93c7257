"""Docs pages run, and say what the model says today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

REPO = Path(__file__).resolve().parents[2]


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_docs", REPO / "tools" / "run_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_docs"] = module
    spec.loader.exec_module(module)
    return module


RUN = runner()
PAGES = list(RUN.pages())


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_a_page_runs_and_its_output_is_up_to_date(page: Path) -> None:
    shown = page.read_text(encoding="utf-8")
    now = RUN.refreshed(page, draw=False)
    assert now == shown, f"run: python tools/run_docs.py {page.relative_to(REPO)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_picture_of_a_page_is_there_and_small(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("![") and line.endswith(")"):
            picture = page.parent / line[line.rindex("(") + 1 : -1]
            assert picture.is_file(), line
            assert picture.stat().st_size < 200_000, line


def test_output_replaces_output_and_code_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A page\n\n```python\nx = 2\nprint(x + 2)\n```\n\n```text\n5\n```\n\nWords.\n\n```python\nx\n```\n"
    )
    once = RUN.refreshed(page, draw=False)
    assert "```text\n4\n```" in once
    assert "Words." in once
    page.write_text(once)
    assert RUN.refreshed(page, draw=False) == once


def test_a_block_marked_not_run_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- not run -->\n```python\nraise SystemExit\n```\n")
    assert RUN.refreshed(page, draw=False) == page.read_text()
