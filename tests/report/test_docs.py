"""Docs pages run, and say what the model says today."""

from __future__ import annotations

import importlib
import importlib.util
import json
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


CONSOLES = [page for page in sorted((REPO / "docs").rglob("*.md")) if list(RUN.commands(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLES, ids=lambda p: p.stem)
def test_what_a_page_shows_of_a_command_is_what_it_prints(page: Path) -> None:
    stale = [line for command, lines in RUN.commands(page) for line in RUN.not_printed(command, lines)]
    assert not stale, "\n".join(stale)


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted((REPO / "docs").rglob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last_and_is_kept_without_output(notebook: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("altair", reason="extra report is not installed")
    namespace: dict[str, object] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), notebook.name, "exec"), namespace)
            assert not cell["outputs"]


def test_the_page_of_claims_shows_what_its_program_prints() -> None:
    printed = RUN.BLOCK.search((REPO / "lab/notebook/claims.md").read_text(encoding="utf-8"))["output"]
    assert printed.strip() in (REPO / "docs/case_studies/claims.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_picture_of_a_page_is_there_and_small(page: Path) -> None:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("![") and line.endswith(")"):
            picture = page.parent / line[line.rindex("(") + 1 : -1]
            assert picture.is_file(), line
            assert picture.stat().st_size < 200_000, line


DATED = {
    "calibration-curve": "an experiment of 2026-11-21 on measured tables (lab/notebook/calibration-curve.md)",
    **dict.fromkeys(
        (
            f"measured-{path.parent.name}-{path.stem.removeprefix('study-')}"
            for path in (REPO / "lab" / "records").glob("*/study-*.json")
        ),
        "drawn from records, which stay as they are (tools/records_docs.py)",
    ),
}
"""Figures of what was once measured, and by which program."""


def test_every_figure_is_drawn_by_a_tool_that_notes_its_numbers_or_says_when_it_was_measured() -> None:
    drawn = {path.stem for path in RUN.FIGURES.glob("*.png")}
    assert drawn == {*RUN.numbers(), *DATED}


def test_the_picture_of_the_page_shows_todays_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("starlette", reason="the extra web is not installed")
    monkeypatch.syspath_prepend(REPO / "tools")
    tool = importlib.import_module("page_docs")
    assert RUN.numbers()[tool.NAME] == RUN.digest(tool.shown()), "run: python tools/page_docs.py"


def test_a_figure_of_other_numbers_is_stale() -> None:
    assert RUN.digest({"a": [1.23456, 2]}) == RUN.digest({"a": [1.23461, 2]})
    assert RUN.digest({"a": [1.23456]}) != RUN.digest({"a": [1.236]})


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
