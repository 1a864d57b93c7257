"""What the commands that search have in common: the same bytes for the same question, in a file as on stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from design_samples import SMALL_CONFIG

SPACE = "num_tensor_cores = [1, 4]\nnum_vector_cores = 2\narray_rows = 32\narray_cols = 32\nglobal_buffer_mib = 2\n"
CLOCK = ("wall_s", "evaluated_per_s")
"""Keys whose values a wall clock decides."""


def plan(folder: Path) -> list[object]:
    return ["plan", folder, "--cluster", "dgx-h100", "--num-devices", "8", "--global-batch-size", "32"]


def design(folder: Path) -> list[object]:
    (folder / "space.toml").write_text(SPACE)
    words = ["--num-devices", "8", "--global-batch-size", "32", "--tp", "1", "--microbatch-size", "4"]
    return ["design", "--model", folder, "--space", folder / "space.toml", *words, "--no-baselines"]


@pytest.fixture(params=[plan, design], ids=["plan", "design"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> list[object]:
    """A question that takes no time."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))
    words: list[object] = request.param(tmp_path)
    return words


def without_clock(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: without_clock(value) for key, value in body.items() if key not in CLOCK}
    return [without_clock(value) for value in body] if isinstance(body, list) else body


def test_the_same_question_gets_the_same_bytes_but_for_the_clock(
    sartor: Callable[..., Any], asked: list[object]
) -> None:
    first, second = (sartor(*asked, "--json").body for _ in range(2))
    assert json.dumps(without_clock(first)) == json.dumps(without_clock(second))


def test_out_writes_what_json_prints(sartor: Callable[..., Any], asked: list[object], tmp_path: Path) -> None:
    ran = sartor(*asked, "--json", "--out", tmp_path / "answer.json")
    assert ran.code == 0
    assert (tmp_path / "answer.json").read_text() == ran.out


def test_a_batch_that_is_not_given_is_said_to_be_assumed(sartor: Callable[..., Any], asked: list[object]) -> None:
    at = asked.index("--global-batch-size")
    ran = sartor(*asked[:at], *asked[at + 2 :])
    assert ran.code == 0
    assert "(usual; set --global-batch-size)" in " ".join(ran.out.split())
