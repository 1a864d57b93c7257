"""docs/measured.md: which records it compares, under which line, and that it has what the records give."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from sartor.bench.cases import BenchCase
from sartor.hardware.catalog import load_gpu
from sartor.operators import Gemm, Layout, MemoryBound, MemoryBoundKind

H200 = load_gpu("h200")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, repo_dir: Path) -> Any:
    monkeypatch.syspath_prepend(repo_dir / "tools")
    return importlib.import_module("measured_gpus")


@pytest.mark.parametrize(
    ("sizes", "layout", "line"),
    [
        ((4096, 4096, 4096), Layout.TN, "aligned, from 512"),
        ((64, 4096, 4096), Layout.TN, "aligned, smaller"),
        ((4096, 4096, 4092), Layout.TN, "misaligned"),
        ((4096, 4095, 4096), Layout.NN, "misaligned"),
        ((4097, 4096, 4096), Layout.TN, "aligned, from 512"),
        ((4097, 4096, 4096), Layout.NT, "misaligned"),
    ],
)
def test_a_gemm_is_misaligned_if_a_contiguous_length_is(
    tool: Any, sizes: tuple[int, int, int], layout: Layout, line: str
) -> None:
    m, n, k = sizes
    case = BenchCase(work=Gemm(name="x", m=m, n=n, k=k, layout=layout))
    assert tool.kind_of(case) == f"GEMM bf16, {line}"


def why_not(tool: Any, moved: float = 1e9, **row: str) -> str:
    work = MemoryBound(name="x", kind=MemoryBoundKind.NORM, rows=1, cols=1, bytes_moved=1e9)
    words = {"flag": "0", "timer": "graph", "latency_us": "300", "bytes": str(moved)}
    found: str = tool._why_not({**words, **row}, BenchCase(work=work), H200)
    return found


def test_a_short_row_that_the_host_launched_is_its_time_and_a_long_one_is_compared(tool: Any) -> None:
    assert "one by one" in why_not(tool, timer="events", latency_us="149")
    assert why_not(tool, timer="events", latency_us="300") == ""


def test_a_row_faster_than_the_memory_or_of_other_bytes_than_the_price_ran_another_kernel(tool: Any) -> None:
    assert "memory" in why_not(tool, latency_us="100")
    assert "priced otherwise" in why_not(tool, moved=2e9)
    assert "noisy" in why_not(tool, flag="64")
    assert why_not(tool) == ""


def test_a_study_is_predicted_again_and_keeps_what_was_measured(tool: Any, repo_dir: Path) -> None:
    path = repo_dir / "lab" / "records" / "h200_sxm" / "study-vocabulary.json"
    recorded, now = (
        {(arm["arm"], arm["group"]): arm for arm in tool.study_of(path, predictor)["arms"]}
        for predictor in (tool.nothing, tool.todays)
    )
    assert recorded.keys() == now.keys()
    for name, arm in now.items():
        assert arm["measured_speedup"] == pytest.approx(recorded[name]["measured_speedup"], rel=1e-3)
        assert arm["predicted_s"] > 0


def test_the_pages_of_records_have_their_headings_lines_and_counts(tool: Any, capsys: Any) -> None:
    assert importlib.import_module("records_docs").main(["--check"]) == 0, capsys.readouterr().out
