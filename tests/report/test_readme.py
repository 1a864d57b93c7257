"""README.md shows what the program prints and the held-out errors of its calibrations."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from sartor.cli import run
from sartor.hardware.catalog import GPUS
from sartor.model.zoo import model_names


@pytest.fixture
def tool(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(repo_dir / "tools")
    return importlib.import_module("readme_docs")


def test_the_accuracy_table_is_up_to_date_and_short(repo_dir: Path, tool: ModuleType) -> None:
    table = tool.accuracy_table()
    assert table in (repo_dir / "README.md").read_text(encoding="utf-8"), "run: python tools/readme_docs.py"
    assert len([line for line in table.splitlines() if line]) <= 12


@pytest.mark.slow
def test_the_demos_output_is_up_to_date(repo_dir: Path, tool: ModuleType) -> None:
    assert tool.demo_output() in (repo_dir / "README.md").read_text(encoding="utf-8"), (
        "run: python tools/readme_docs.py"
    )


def test_the_readmes_lint_exits_with_1_as_it_says(repo_dir: Path) -> None:
    readme = (repo_dir / "README.md").read_text(encoding="utf-8")
    line = next(line for line in readme.splitlines() if line.startswith("sartor lint ") and "exit code 1" in line)
    assert run(shlex.split(line, comments=True)[1:]) == 1


def test_the_set_up_commands_are_targets_of_the_makefile(repo_dir: Path) -> None:
    readme, makefile = (repo_dir / "README.md").read_text(encoding="utf-8"), (repo_dir / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert f"\n{target}:" in makefile


def test_the_counts_of_the_readme_are_those_of_the_catalogue(repo_dir: Path) -> None:
    text = (repo_dir / "README.md").read_text(encoding="utf-8")
    assert f"one of {len(model_names())} known models" in text
    assert f"GPU is one of {len(GPUS.names())} in the catalogue" in " ".join(text.split())
