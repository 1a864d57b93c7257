"""Whose kernels run an expert layer: told with their share of the rows, else as each framework chooses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from measure.made_tables import write_csv
from sartor.hardware.calibration import Clock
from sartor.measure.predictions import GUESSED_LOG_SIGMA, predict
from sartor.measure.tables import read_tables
from sartor.measure.targets import targets_of
from sartor.measure.usual_kernels import usual_kernels

LAYER: dict[str, Any] = {
    "gpu": "b200_sxm", "dtype": "bfloat16", "num_tokens": 64, "hidden_size": 4096, "inter_size": 1536, "topk": 8,
    "num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced",
}  # fmt: skip
BLACKWELL = frozenset({"trtllm", "sglang_trtllm", "sglang_triton", "vllm_trtllm", "vllm_cutlass"})


def kernels(tmp_path: Path, rows: list[dict[str, Any]]) -> str:
    rows = [{**LAYER, "latency_us": 10.0 + i, **row} for i, row in enumerate(rows)]
    targets = targets_of(read_tables(write_csv(tmp_path / "x.csv", rows)).tables)
    (only,) = targets.coded["kernels"].take(np.arange(1)).plain()
    return str(only)


def test_kernels_count_as_often_as_their_rows(tmp_path: Path) -> None:
    told = ["sglang_flashinfer_trtllm_moe", "sglang_flashinfer_trtllm_moe", "moe_torch_flow_cutlass"]
    assert kernels(tmp_path, [{"kernel": each} for each in told]) == "sglang_trtllm+sglang_trtllm+trtllm"
    assert kernels(tmp_path, [{"kernel": each} for each in [*told, *told]]) == "sglang_trtllm+sglang_trtllm+trtllm"


def test_kernels_not_told_are_those_the_frameworks_run(tmp_path: Path) -> None:
    assert kernels(tmp_path, [{}]) == "usual: sglang_trtllm+trtllm+vllm_trtllm"
    assert kernels(tmp_path, [{"kernel": "somebody's"}]) == "usual: sglang_trtllm+trtllm+vllm_trtllm"


def test_a_guess_at_kernels_is_less_sure_than_being_told(tmp_path: Path) -> None:
    told = [{"kernel": each} for each in ("sglang_flashinfer_trtllm_moe", "moe_torch_flow", "vllm_flashinfer_trtllm")]
    found = []
    for name, rows in (("told", told), ("not", [{}])):
        rows = [{**LAYER, "latency_us": 10.0, **row} for row in rows]
        table = read_tables(write_csv(tmp_path / f"{name}.csv", rows)).tables
        predicted = predict(targets_of(table), Clock.BOOST)
        found.append((predicted.time_s[0], predicted.log_sigma[0]))
    (told_s, sure), (guessed_s, less_sure) = found
    assert guessed_s == told_s
    assert less_sure == pytest.approx(np.hypot(sure, GUESSED_LOG_SIGMA))


@pytest.mark.parametrize(
    ("gated", "change", "expected"),
    [
        (True, {}, "sglang_trtllm+trtllm+vllm_trtllm"),
        (True, {"topk": 2}, "sglang_triton+trtllm+vllm_trtllm"),
        (True, {"inter_size": 704}, "sglang_triton+trtllm+vllm_cutlass"),
        (False, {"inter_size": 1856}, "sglang_trtllm+trtllm+vllm_trtllm"),
        (True, {"moe_tp_size": 2, "moe_ep_size": 4}, "sglang_trtllm+trtllm"),
    ],
)
def test_each_framework_chooses_by_shape(gated: bool, change: dict[str, int], expected: str) -> None:
    sizes = {key: np.asarray([value]) for key, value in {**LAYER, **change}.items() if isinstance(value, int)}
    assert list(usual_kernels(BLACKWELL, np.asarray([gated]), sizes)) == ["usual: " + expected]


def test_one_framework_alone_is_no_median() -> None:
    sizes = {key: np.asarray([value]) for key, value in LAYER.items() if isinstance(value, int)}
    assert list(usual_kernels(frozenset({"vllm_xpu"}), np.asarray([True]), sizes)) == [""]
