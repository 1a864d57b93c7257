"""Any number of a chip's file is an axis of a space."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from design_samples import SMALL_CONFIG

SPACE = "num_tensor_cores = [1, 4]\nnum_vector_cores = 1\narray_rows = 16\narray_cols = 32\nglobal_buffer_mib = 2\n"
LATENCIES = "link_latency_us = [2, 4]\n"
COUNTS = [
    "--num-devices",
    "8",
    "--global-batch-size",
    "32",
    "--microbatch-size",
    "4",
    "--tp",
    "1",
    "--recompute",
    "none",
    "--no-baselines",
]


@pytest.fixture
def ask(sartor: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Design for a small model and a space file with this text."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL_CONFIG))

    def asked(text: str, *words: str) -> Any:
        (tmp_path / "space.toml").write_text(text)
        return sartor("design", "--model", tmp_path, "--space", tmp_path / "space.toml", *COUNTS, *words)

    return asked


@pytest.mark.slow
def test_a_number_of_a_chips_file_is_an_axis(ask: Callable[..., Any]) -> None:
    body = ask(SPACE + LATENCIES, "--sensitivity", "--json").body
    assert body["status"] == "optimal"
    assert body["near_best"]["link_latency_us"][0] == 2
    assert any("link_latency_us=2 is the smallest of its axis (2 to 4)" in each for each in body["warnings"])
    assert "link_latency_us=2 is the smallest" in " ".join(ask(SPACE + LATENCIES).out.split())

    usual = ask(SPACE, "--json").body
    assert 2 * usual["num_candidates"] == body["num_candidates"]
