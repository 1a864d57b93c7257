"""A gate on what ``sartor validate`` finds: errors of a fixed sample of the shared tables may not grow.

Marks are a little above what was reached when they were set (2026-11-21): lower them when predictions improve.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sartor.measure.accuracy import Group, validate_operators

EVERY = 7
"""Of each table's shapes on a device, those whose sizes add up to a multiple of this: the same ones every time."""

MARKS: list[tuple[str, str, dict[str, str], dict[str, float]]] = [
    ("gemm_fp16_bf16", "h200_sxm", {"dtype": "bfloat16"}, {"mape": 0.06, "median": 0.045, "tau": 0.75}),
    ("gemm_fp16_bf16", "a100_sxm", {"dtype": "bfloat16"}, {"mape": 0.10, "median": 0.065, "tau": 0.72}),
    ("gemm_fp16_bf16", "b200_sxm", {"dtype": "bfloat16"}, {"mape": 0.08, "median": 0.06, "tau": 0.75}),
    ("gemm_lowbit", "b200_sxm", {"dtype": "nvfp4"}, {"mape": 0.09, "median": 0.065, "tau": 0.68}),
    ("attention", "h200_sxm", {"phase": "context"}, {"mape": 0.21, "median": 0.15, "tau": 0.6}),
    ("attention", "h200_sxm", {"phase": "generation"}, {"mape": 0.24, "median": 0.17, "tau": 0.42}),
    ("memory_bound", "a40", {"op": "rmsnorm"}, {"mape": 0.08, "median": 0.065, "tau": 0.3}),
    ("collectives", "h200_sxm", {"op": "all_gather"}, {"mape": 0.15, "median": 0.13, "tau": 0.8}),
]
SIZES = {
    "gemm_fp16_bf16": ("m", "n", "k"),
    "gemm_lowbit": ("m", "n", "k"),
    "attention": ("batch", "heads", "kv_heads", "seq_kv"),
    "memory_bound": ("rows", "cols"),
    "collectives": (),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "gpu", "words", "marks"), MARKS, ids=[f"{t}-{g}-{'-'.join(w.values())}" for t, g, w, _ in MARKS]
)
def test_errors_on_a_fixed_sample_stay_below_their_marks(
    shared_dir: Path, tmp_path: Path, table: str, gpu: str, words: dict[str, str], marks: dict[str, float]
) -> None:
    path = sample(shared_dir / "data" / "measured" / f"{table}.parquet", tmp_path, gpu, words, SIZES[table])
    groups = validate_operators(path, group_by=["gpu", *words], worst=0).groups
    group: Group = groups[0]
    assert len(groups) == 1
    assert group.expressed == group.rows
    assert group.mape is not None
    assert group.median_error is not None
    assert group.kendall_tau is not None
    assert group.coverage_80 is not None
    assert group.roofline_mape is not None
    assert group.mape <= marks["mape"]
    assert group.median_error <= marks["median"]
    assert group.kendall_tau >= marks["tau"]
    assert 0.7 <= group.coverage_80 <= 0.96
    assert group.mape < group.roofline_mape


def sample(source: Path, folder: Path, gpu: str, words: dict[str, Any], sizes: tuple[str, ...]) -> Path:
    """One device's rows of a table with ``words``, thinned by their sizes (whole shapes stay or go)."""
    wanted = pc.field("gpu") == gpu
    for name, value in words.items():
        wanted = wanted & (pc.field(name) == value)
    found: pa.Table = pq.read_table(source, filters=wanted)
    if sizes:
        total = sum(found[name].to_numpy() * (3 * i + 1) for i, name in enumerate(sizes))
        found = found.filter(pa.array(total % EVERY == 0))
    path = folder / "sample.parquet"
    pq.write_table(found, path)
    return path
