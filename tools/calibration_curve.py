"""Held-out error of a calibration against the number of products measured, chosen or drawn: table and figure of
docs/howto/calibrate.md.

Development only (the shared data, extras data and report): ``python tools/calibration_curve.py SHARED [--png FILE]``.
A device is treated as unknown: the fit starts from another generation's coefficients, never from its own or from a
relative's of the same die. Four folds of contiguous regions of whole weights (``sartor.measure.samples.regions``);
products are chosen outside the fold, errors are of the fold's.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from sartor.hardware.catalog import load_gpu
from sartor.measure.calibrate import read_records, starting_point
from sartor.measure.fit import fit, seconds
from sartor.measure.samples import choose, choose_at_random, regions
from sartor.operators import DType

DEVICES = {
    "a100_sxm": "h200_sxm",
    "h200_sxm": "b200_sxm",
    "b200_sxm": "h200_sxm",
    "gb200": "h200_sxm",
    "rtx_pro_6000_server": "h200_sxm",
}
"""Device taken as unknown -> the one of another generation whose coefficients the fit starts at."""

COUNTS = (20, 50, 100, 200)
SEEDS = (0, 1, 2)
STRIDE = 5
"""One in so many of a fold's products is scored."""


def main(shared: Path, png: Path | None, devices: list[str]) -> None:
    table = shared / "data" / "measured" / "gemm_fp16_bf16.parquet"
    rows = [row for name in devices or DEVICES for row in curve(table, name, DEVICES[name])]
    if png:
        png.write_bytes(picture(rows))


def curve(table: Path, name: str, donor: str) -> list[dict[str, Any]]:
    """Mean held-out MAPE at each count, chosen and drawn; as rows, and printed as a line of Markdown."""
    records = read_records(table, name, "bf16")
    products, measured_s = records.products, records.measured_s
    start = starting_point(load_gpu(donor), DType.BF16)
    fold = regions(products)

    def error(picked: Any, where: Any) -> float:
        found = fit(products.part(picked), measured_s[picked], start) if len(picked) else start
        return float(np.abs(seconds(products.part(where))(found) / measured_s[where] - 1).mean())

    def mean(pick: Any) -> float:
        every = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)[::STRIDE]) for f in np.unique(fold)]
        return float(np.mean([error(outside[pick(outside)], inside) for outside, inside in every]))

    rows = [{"gpu": name, "choice": "none", "samples": 0, "mape": mean(lambda pool: np.zeros(0, dtype=int))}]
    for count in COUNTS:
        chosen = mean(lambda pool: choose(products.part(pool), count))  # noqa: B023 - called at once
        drawn = [mean(lambda pool: choose_at_random(products.part(pool), count, s)) for s in SEEDS]  # noqa: B023
        rows.append({"gpu": name, "choice": "chosen", "samples": count, "mape": chosen})
        rows.append({"gpu": name, "choice": "drawn", "samples": count, "mape": float(np.mean(drawn))})
    cells = [f"{rows[i]['mape']:.1%} / {rows[i + 1]['mape']:.1%}" for i in range(1, len(rows), 2)]
    print(f"| {name} | {donor} | {rows[0]['mape']:.1%} | {' | '.join(cells)} |", flush=True)
    return rows


def picture(rows: list[dict[str, Any]]) -> bytes:
    """The curves as a PNG."""
    import altair as alt
    import vl_convert

    points = [row for row in rows if row["choice"] != "none"]
    chart = (
        alt.Chart(alt.Data(values=points), width=150, height=180)
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "samples:Q",
                scale=alt.Scale(type="log", domain=[15, 260]),
                axis=alt.Axis(values=list(COUNTS)),
                title="products",
            ),
            y=alt.Y("mape:Q", axis=alt.Axis(format="%"), scale=alt.Scale(zero=True), title="held-out mean error"),
            color=alt.Color("choice:N", title=None),
            strokeDash=alt.StrokeDash("choice:N", title=None),
            column=alt.Column("gpu:N", title=None),
        )
    )
    return bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("devices", nargs="*")
    parser.add_argument("--png", type=Path)
    asked = parser.parse_args()
    main(asked.shared, asked.png, asked.devices)
