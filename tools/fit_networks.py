"""Fit broken lines to collectives of named systems and write ``hardware/calibration/networks.toml``.

Development only (pyarrow, the shared data): ``python tools/fit_networks.py SHARED``. A system, collective, number of
devices and devices per node is one topology; its rows, in order of size, are cut into pieces of start + bytes x slope
with the least sum of squared relative errors (dynamic programming over all cuts, a penalty per piece). Judged on every
fourth block of a quarter doubling of the size, held out whole; then fitted on all rows.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "hardware" / "calibration" / "networks.toml"
SOURCE = "data/measured/collectives.parquet (microsoft/vidur, data/profiling, MIT)"
LEAST_ROWS = 6
"""Of a piece."""
PENALTY = 0.02
"""Squared relative error that a piece must explain, and ``PER_NOISE`` times the variance of neighbouring rows."""
PER_NOISE = 3.0
"""A piece has a start, a slope and an end: half of its Bayesian information criterion over ln(rows)."""
MOST_PIECES = 10
CAP = 0.25
"""Relative error beyond which a row counts no more: single rows lie apart by any factor."""
LEAST = 60
"""Rows of a topology."""


def main(shared: Path) -> None:
    columns = [
        "system",
        "op",
        "n_gpus",
        "gpus_per_node",
        "bytes",
        "latency_us",
        "framework",
        "library",
        "flag",
        "source",
    ]
    table = pq.read_table(shared / "data" / "measured" / "collectives.parquet", columns=columns).to_pandas()
    table = table[(table.flag == 0) & (table.source.astype(str) == "microsoft/vidur")]
    words = {name: table[name].astype(str) for name in ("system", "op")}
    table = table.assign(**words)
    lines = [
        "# Written by tools/fit_networks.py: collectives on networks that a table names. docs/concepts/collectives.md"
    ]
    for system, rows in table.groupby("system"):
        lines += ["", f"[{system}]", f'source = "{SOURCE}"', f'date = "{datetime.date.today().isoformat()}"']
        for (op, n, near), group in rows.groupby(["op", "n_gpus", "gpus_per_node"]):
            if len(group) >= LEAST:
                lines += topology(str(system), str(op), int(n), int(near), group)
    OUT.write_text("\n".join(lines) + "\n", encoding="utf-8")


def topology(system: str, op: str, n: int, near: int, group: Any) -> list[str]:
    """One entry's lines."""
    order = np.argsort(group.bytes.to_numpy(), kind="stable")
    size, time_s = group.bytes.to_numpy(dtype=float)[order], group.latency_us.to_numpy(dtype=float)[order] * 1e-6
    held = np.floor(4 * np.log2(size)).astype(int) % 4 == 1
    trial = pieces_of(size[~held], time_s[~held])
    missed = np.abs(np.log(seconds(trial, size[held]) / time_s[held]))
    error = np.abs(seconds(trial, size[held]) / time_s[held] - 1)
    final = pieces_of(size, time_s)
    again = np.abs(np.log(seconds(final, size) / time_s))
    sigma = float(max(np.quantile(missed, 0.8), np.quantile(again, 0.8)) / 1.2816)
    print(
        system,
        op,
        n,
        near,
        len(size),
        f"held out {held.sum()}: {error.mean():.3f}",
        f"{np.median(error):.3f}",
        len(final),
    )
    shown = ", ".join(f"[{int(most)}, {start:.4g}, {slope:.4g}]" for most, start, slope in final)
    return [
        "",
        f"[[{system}.topologies]]",
        f'kind = "{op}"',
        f"num_devices = {n}",
        f"per_node = {near}",
        f"rows = {len(size)}",
        f"held_out = {{ rows = {held.sum()}, mape = {error.mean():.4f}, median = {np.median(error):.4f} }}",
        f"log_sigma = {sigma:.4f}",
        f"pieces = [{shown}]",
    ]


def pieces_of(size: Any, time_s: Any) -> list[tuple[float, float, float]]:
    """(largest size, start, slope) of the best broken line; lines are least squares of the relative error."""
    count = len(size)
    noise = float(np.median(np.abs(np.diff(np.log(time_s / size))))) / 0.954  # sqrt(2) x 0.6745 of a normal
    penalty = max(PENALTY, PER_NOISE * np.log(count) * noise**2)
    cuts = sorted({*range(0, count, max(1, count // 160)), count})
    best = {0: (0.0, 0, [])}
    for stop in cuts[1:]:
        found = None
        for begin in cuts:
            if begin >= stop or begin not in best or stop - begin < LEAST_ROWS or best[begin][1] >= MOST_PIECES:
                continue
            start, slope, cost = _line(size[begin:stop], time_s[begin:stop])
            total = best[begin][0] + cost + penalty
            if found is None or total < found[0]:
                edge = size[stop - 1] if stop == count else np.sqrt(size[stop - 1] * size[stop])
                found = (total, best[begin][1] + 1, [*best[begin][2], (float(edge), start, slope)])
        if found:
            best[stop] = found
    return best[count][2]


def _line(size: Any, time_s: Any) -> tuple[float, float, float]:
    """Start and slope, neither below zero, and the capped squared relative error."""
    x, weight, ones = size / time_s, 1 / time_s, np.ones_like(size)
    start, slope = np.linalg.lstsq(np.stack([weight, x], axis=1), ones, rcond=None)[0]
    if start < 0:
        start, slope = 0.0, x.sum() / (x @ x)
    elif slope < 0:
        start, slope = weight.sum() / (weight @ weight), 0.0
    error = np.minimum(((start + slope * size) / time_s - 1) ** 2, CAP**2)
    return float(start), float(slope), float(error.sum())


def seconds(pieces: list[tuple[float, float, float]], size: Any) -> Any:
    ends, starts, slopes = (np.asarray(column) for column in zip(*pieces, strict=True))
    piece = np.minimum(np.searchsorted(ends, size), len(ends) - 1)
    return starts[piece] + slopes[piece] * size


if __name__ == "__main__":
    main(Path(sys.argv[1]))
