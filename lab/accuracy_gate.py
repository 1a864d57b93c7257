"""Write the sample and the recorded errors of the accuracy gate: ``python lab/accuracy_gate.py [--sample DATA]``.

``tests/golden/measured/*.csv`` has a sample of shapes from every group of the measured tables, with all their rows and
sources; ``tests/golden/accuracy_marks.csv`` has the errors of ``sartor validate operators`` on them. Without
``--sample`` only the errors are rewritten: do that when predictions have improved, or when a loss is intended, and
review the diff. ``--check`` writes nothing and prints which groups have become less accurate.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sartor.records.tables import TableKind, kind_of
from sartor.validate.accuracy import Group, validate_operators

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "tests" / "golden" / "measured"
MARKS = ROOT / "tests" / "golden" / "accuracy_marks.csv"
DATA = ROOT.parent / "shared" / "data" / "measured"

FILES = ("gemm_fp16_bf16", "gemm_lowbit", "gemm_fp32_kernels", "attention", "memory_bound", "moe_bf16", "collectives")
SHAPES = 16
"""Shapes per group, evenly spaced in order of measured time, to cover launch-, memory- and compute-bound kernels."""

GROUP_BY = ("gpu", "dtype", "phase", "op", "kernel")
KEYS = ("table", *GROUP_BY)
FIGURES = ("mape", "bias", "coverage_80", "kendall_tau")
WORSE = 0.0005
"""Most by which a group's MAPE may grow: predictions are deterministic, so more means that they have changed."""


def marks(found: list[Group]) -> dict[tuple[str, ...], dict[str, float | None]]:
    """Error statistics by group."""
    return {
        tuple(str(each.keys.get(key, "")) for key in KEYS): {f: getattr(each, f) for f in FIGURES} for each in found
    }


def groups() -> list[Group]:
    """Current errors on the sample, by group."""
    return list(validate_operators(SAMPLE, group_by=GROUP_BY, worst=0).groups)


def recorded() -> dict[tuple[str, ...], dict[str, float | None]]:
    """The recorded errors."""
    with MARKS.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[key] for key in KEYS): {f: float(row[f]) if row[f] else None for f in FIGURES} for row in rows}


def losses(found: list[Group]) -> Iterator[str]:
    """A sentence for every group with a larger error, and for every new or missing group."""
    now, then = marks(found), recorded()
    for key in sorted(now.keys() ^ then.keys()):
        yield f"{' '.join(key).strip()}: {'not in the marks' if key in now else 'no prediction any more'}"
    for key in sorted(now.keys() & then.keys()):
        before, after = then[key]["mape"], now[key]["mape"]
        if before is not None and (after is None or after > before + WORSE):
            reached = "none" if after is None else f"{after:.2%}"
            yield f"{' '.join(key).strip()}: MAPE {before:.2%} before, {reached} now"


# ------------------------------------------------------------------------------------------- writing


def write_marks() -> None:
    found = marks(groups())
    with MARKS.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow((*KEYS, *FIGURES))
        for key in sorted(found):
            out.writerow((*key, *("" if v is None else f"{v:.5f}" for v in found[key].values())))


def write_sample(data: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    SAMPLE.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        names = pq.read_schema(data / f"{name}.parquet").names
        kind = kind_of(names, name)
        wanted = [c for c in dict.fromkeys((*kind.required, *kind.optional, "framework", "source")) if c in names]
        table = pq.read_table(data / f"{name}.parquet", columns=wanted, filters=pc.field("flag") == 0)
        table = table.take(_chosen(table, kind))
        pa_csv.write_csv(_partly_unlabelled(table) if kind.name == "moe" else table, SAMPLE / f"{name}.csv")


def _partly_unlabelled(table: Any) -> Any:
    """The table with the kernel removed from a third of the shapes, to cover predictions for unknown kernels too."""
    import pyarrow as pa

    tokens, hidden, width = (table[name].to_numpy() for name in ("num_tokens", "hidden_size", "inter_size"))
    bare = (tokens * 7919 + hidden * 104729 + width * 1299709) % 1009 % 3 == 0
    told = zip(bare, table["kernel"].to_pylist(), strict=True)
    labels = ["" if each and "nongated" not in kernel else kernel for each, kernel in told]
    return table.set_column(table.column_names.index("kernel"), "kernel", pa.array(labels))


def _chosen(table: Any, kind: TableKind) -> Any:
    """Rows of the chosen shapes in table order; of each framework's rows for a shape, the median one."""
    group = _codes(table, (*GROUP_BY, "distribution"))
    names = (*kind.texts, *kind.sizes, *kind.amounts, *kind.optional)
    shape = np.unique(_codes(table, names) * (int(group.max()) + 1) + group, return_inverse=True)[1]
    time = table[kind.measured].to_numpy()
    _, first = np.unique(shape, return_index=True)
    kept: list[Any] = []
    for each in np.unique(group):
        mine = first[group[first] == each]
        mine = mine[np.lexsort((mine, time[mine]))]
        kept.append(shape[mine[np.linspace(0, mine.size - 1, min(SHAPES, mine.size)).round().astype(int)]])
    rows = np.flatnonzero(np.isin(shape, np.concatenate(kept)))
    repeat = _codes(table, ("framework",)) + shape * (1 << 20)
    rows = rows[np.lexsort((time[rows], repeat[rows]))]
    _, start, count = np.unique(repeat[rows], return_index=True, return_counts=True)
    return np.sort(rows[start + (count - 1) // 2])


def _codes(table: Any, names: tuple[str, ...]) -> Any:
    """One code per distinct row of some columns."""
    joint = np.zeros(table.num_rows, dtype=np.int64)
    for name in names:
        if name in table.column_names:
            codes = table[name].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy() + 1
            joint = np.unique(joint * (int(codes.max()) + 1) + codes, return_inverse=True)[1]
    return joint


def main(words: list[str]) -> int:
    if words[:1] == ["--check"]:
        found = list(losses(groups()))
        print("\n".join(found) or "every mark is met")
        return 1 if found else 0
    if words[:1] == ["--sample"]:
        write_sample(Path(words[1]) if words[1:] else DATA)
    write_marks()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
