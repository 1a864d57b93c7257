"""Output files: none is an input of the same command, nor another of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LINES = {
    "the argument MODEL": "estimate in.json --gpu a100 --out in.json",
    "the argument MODELS": "lint in.json --gpu a100 --out ./in.json",
    "--gpu": "advise gpt2 --gpu a100 --gpu in.json --html in.json",
    "--cluster": "estimate gpt2 --gpu a100 --cluster in.json --out in.json",
    "--calibration": "gemm 64 64 64 --gpu a100 --calibration in.json --out in.json",
    "--space": "design --model gpt2 --num-devices 1 --space in.json --study in.json",
    "--data": "validate operators --data in.json --html in.json",
    "the argument RUNS": "diagnose other.log in.json --out in.json",
    "the argument FILE": "study in.json --out in.json",
    "the argument SHAPES": "operators in.json --gpu a100 --write in.json",
    "the argument INSTANCE": "schedule in.json --trace in.json",
}


@pytest.mark.parametrize("reader", LINES)
def test_an_output_that_the_same_command_reads_is_refused_and_left_as_it_is(
    sartor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.json").write_text("{}")
    found = sartor(*LINES[reader].split())
    assert found.code == 2
    assert f"is the file that {reader}" in found.err
    assert Path("in.json").read_text() == "{}"


def test_the_config_of_a_model_given_as_its_folder_is_not_overwritten(
    sartor: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link.json").symlink_to("config.json")
    for name in ("config.json", "link.json"):
        found = sartor("estimate", tmp_path, "--gpu", "a100", "--out", tmp_path / name)
        assert found.code == 2
        assert "is the file that the argument MODEL reads" in found.err
    assert (tmp_path / "config.json").read_text() == "{}"


def test_two_outputs_of_a_command_are_two_files(sartor: Callable[..., Any], tmp_path: Path) -> None:
    same = tmp_path / "new.json"
    found = sartor("advise", "gpt2", "--gpu", "a100", "--out", same, "--html", same)
    assert found.code == 2
    assert "also writes" in found.err
    assert not same.exists()


def test_an_output_may_have_the_name_of_a_catalogue_entry_and_be_written_again(
    sartor: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert sartor("gemm", 64, 64, 64, "--gpu", "a100", "--out", "A100.json").code == 0
    assert sartor("gemm", 64, 64, 64, "--gpu", "a100", "--out", "a100").code == 0
