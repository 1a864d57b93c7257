"""Our counts beside published ground truth: one row per model and column.

The truth is a folder of ``<family>/<name>/config.json`` with a ``truth.csv`` of what the published classes count.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sartor.errors import InputError
from sartor.model.counts import count_params, forward_matmul_flops, layer_runs
from sartor.model.workload import ModelReading
from sartor.read.huggingface import read_model

COLUMNS: dict[str, Callable[[ModelReading, int], str]] = {
    "expected_params": lambda m, _: str(count_params(m.shape).total),
    "text_params": lambda m, _: str(count_params(m.shape).text),
    "layer_params_runs": lambda m, _: ";".join(f"{n}x{params}" for n, params in layer_runs(m.shape.main)),
    "active_params": lambda m, _: str(count_params(m.shape).active),
    "routed_linear_flops": lambda m, s: str(forward_matmul_flops(m.shape, 1, s).linear),
    "attention_flops": lambda m, s: str(forward_matmul_flops(m.shape, 1, s).attention),
}
"""Columns of truth.csv that are compared exactly, and our value of each (batch 1, ``seq_len`` tokens, full squares)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceRow:
    """One value of one model: ours and the published class's. ``ours`` of a refused file is ``refused: ...``."""

    family: str
    name: str
    column: str
    ours: str
    truth: str

    @property
    def agrees(self) -> bool:
        return self.ours == self.truth


def conformance_rows(folder: Path) -> Iterator[ConformanceRow]:
    """Rows for every model of ``folder/truth.csv`` and every column its truth settles, in the file's order."""
    with (folder / "truth.csv").open(newline="", encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            yield from _rows_of(folder, entry)


def _rows_of(folder: Path, entry: dict[str, str]) -> Iterator[ConformanceRow]:
    family, name = entry["family"], entry["name"]
    settled = {column: entry[column] for column in COLUMNS if entry.get(column)}
    try:
        reading = read_model(folder / family / name / "config.json")
    except InputError as error:
        for column, truth in (settled or {"expected_params": "refused"}).items():
            ours = "refused" if not settled else f"refused: {error}"
            yield ConformanceRow(family=family, name=name, column=column, ours=ours, truth=truth)
        return
    for column, truth in settled.items():
        ours = COLUMNS[column](reading, int(entry["seq_len"] or 0))
        yield ConformanceRow(family=family, name=name, column=column, ours=ours, truth=truth)
