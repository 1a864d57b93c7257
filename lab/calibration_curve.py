"""Held-out error of a calibration against the number of products measured, chosen or drawn: tables and figure of
docs/howto/calibrate.md.

Development only (the shared data, extras data and report): ``python lab/calibration_curve.py SHARED [--png FILE]``.
A device is taken as unknown, with its whole generation: the fit starts at the joint fit of the other generations
(lab/joint_held_out.toml), or for comparison at another generation's own coefficients; and, where a relative of its
generation was measured, a factor is drawn over what the package predicts by that relative. Four folds of contiguous
regions of whole weights (``sartor.calibrate.samples.regions``); products are chosen outside the fold, errors are of the
fold's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kin_docs
from sartor.calibrate.calibration_toml import starting_point
from sartor.calibrate.fit import Products, fit, packaged_seconds, seconds
from sartor.calibrate.read_records import read_records
from sartor.calibrate.samples import choose, factor_of, fit_own_rows, regions
from sartor.cost.correction.carrying import REFERENCE, Rates, rescaled
from sartor.cost.correction.coefficients import GemmCoefficients, coefficients
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType
from sartor.report.palette import LIGHT

DEVICES = {
    "a100_sxm": "h200_sxm",
    "h200_sxm": "b200_sxm",
    "b200_sxm": "h200_sxm",
    "rtx_pro_6000_server": "h200_sxm",
}
"""Device whose generation is treated as unknown -> device of another generation with the starting coefficients."""

NARROW = (("h200_sxm", "fp8"), ("b200_sxm", "nvfp4"))
RELATIVES = (
    ("gb200", "b200_sxm", "bf16"),
    ("b300_sxm", "gb300", "bf16"),
    ("b300_sxm", "gb300", "fp8"),
    ("b300_sxm", "gb300", "nvfp4"),
    ("b300_sxm", "gb300", "fp8_block"),
)
"""Device treated as unknown, a measured device with the same die, dtype."""

COUNTS = (20, 50, 100, 200)
SEEDS = (0, 1)
SCORED = 700
"""Random GEMMs of a fold that errors are computed on."""

Pick = Callable[[Products], Any]
Learn = Callable[[Any, Any], Any]
"""(training positions, test positions) -> predicted seconds."""


def main(shared: Path, png: Path | None) -> None:
    rows = []
    for name in DEVICES:
        rows += from_start(shared, name, "bf16", "")
    for name, dtype in NARROW:
        rows += from_start(shared, name, dtype, "")
    for name, lender, dtype in RELATIVES:
        rows += over_package(shared, name, lender, dtype)
    for name, donor in DEVICES.items():
        rows += from_start(shared, name, "bf16", donor)
    if png:
        png.write_bytes(picture([row for row in rows if row["start"] == "joint fit" and row["dtype"] == "bf16"]))


def from_start(shared: Path, name: str, dtype: str, donor: str) -> list[dict[str, Any]]:
    """The curve of coefficients fitted from a start: another device's coefficients (``donor``) or the joint fit's."""
    gpu, (products, measured_s) = load_gpu(name), records(shared, name, dtype)
    if donor:
        start = starting_point(load_gpu(donor), DType(dtype))
    else:
        rates, joint = Rates.of(gpu), kin_docs._joint_without(gpu.generation)[dtype]["gemm"]
        assert rates is not None
        start = rescaled(coefficients(GemmCoefficients, joint), REFERENCE, rates)

    def learn(learned: Any, where: Any) -> Any:
        found = fit(products.part(learned), measured_s[learned], start) if len(learned) else start
        return seconds(products.part(where))(found)

    return list(curve(products, measured_s, learn, name, dtype, donor or "joint fit"))


def over_package(shared: Path, name: str, lender: str, dtype: str) -> list[dict[str, Any]]:
    """The curve of a factor on the package's prediction with only a related device's calibration."""
    products, measured_s = records(shared, name, dtype)
    with kin_docs.unmeasured(name, lender, 1.3):
        told = packaged_seconds(products)

    def learn(learned: Any, where: Any) -> Any:
        if not len(learned):
            return told[where]
        own = fit_own_rows(products.part(learned), told[learned], measured_s[learned])
        return told[where] * factor_of(own, products.part(where))

    return list(curve(products, measured_s, learn, name, dtype, f"package, by {lender}"))


def records(shared: Path, name: str, dtype: str) -> tuple[Products, Any]:
    table = "gemm_fp16_bf16.parquet" if dtype == "bf16" else "gemm_lowbit.parquet"
    found = read_records(shared / "data" / "measured" / table, name, dtype)
    return found.products, found.measured_s


def curve(
    products: Products, measured_s: Any, learn: Learn, name: str, dtype: str, start: str
) -> Iterator[dict[str, Any]]:
    """Mean held-out MAPE at each number of GEMMs, chosen and random; as rows, and printed as a line of Markdown."""
    fold = regions(products)
    sides = [(np.flatnonzero(fold != f), _some(np.flatnonzero(fold == f))) for f in np.unique(fold)]

    def mean(pick: Pick) -> float:
        found = []
        for outside, inside in sides:
            told = learn(outside[pick(products.part(outside))], inside)
            found.append(np.abs(told / measured_s[inside] - 1).mean())
        return float(np.mean(found))

    before = mean(lambda pool: np.zeros(0, dtype=int))
    cells = []
    for count in COUNTS:
        chosen = mean(lambda pool: choose(pool, count))  # noqa: B023 - called at once
        drawn = [mean(lambda pool: np.random.default_rng(s).permutation(len(pool))[:count]) for s in SEEDS]  # noqa: B023
        words = {"gpu": name, "dtype": dtype, "start": start, "samples": count}
        yield words | {"choice": "chosen", "mape": chosen}
        yield words | {"choice": "drawn at random", "mape": float(np.mean(drawn))}
        yield words | {"choice": "none measured", "mape": before}
        cells.append(f"{chosen:.1%} / {np.mean(drawn):.1%}")
    print(f"| {name} | {dtype} | {start} | {before:.1%} | {' | '.join(cells)} |", flush=True)


def _some(where: Any) -> Any:
    return np.random.default_rng(0).permutation(where)[:SCORED]


def picture(points: list[dict[str, Any]]) -> bytes:
    """The curves as a PNG, with what the first count brings as its title."""
    import altair as alt
    import vl_convert

    before, after = (
        np.mean([row["mape"] for row in points if row["choice"] == choice and row["samples"] == COUNTS[0]])
        for choice in ("none measured", "chosen")
    )
    title = f"{COUNTS[0]} chosen GEMMs take the mean error on a new generation from {before:.0%} to {after:.0%}"
    words = ["none measured", "drawn at random", "chosen"]
    chart = (
        alt.Chart(alt.Data(values=points), width=150, height=180)
        .mark_line(point=True)
        .encode(
            x=alt.X(
                "samples:Q",
                scale=alt.Scale(type="log", domain=[15, 260]),
                axis=alt.Axis(values=list(COUNTS)),
                title="GEMMs measured",
            ),
            y=alt.Y("mape:Q", axis=alt.Axis(format="%"), scale=alt.Scale(zero=True), title="mean error, held out"),
            color=alt.Color(
                "choice:N", title=None, scale=alt.Scale(domain=words, range=[LIGHT.grey, LIGHT.orange, LIGHT.blue])
            ),
            column=alt.Column("gpu:N", title=None),
        )
        .properties(title=alt.TitleParams(text=title, anchor="start", offset=10))
    )
    return bytes(vl_convert.vegalite_to_png(chart.to_dict(), scale=1.5))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--png", type=Path)
    asked = parser.parse_args()
    main(asked.shared, asked.png)
