"""Write the tables of lab/notebook/intervals.md: how often held-out devices are inside borrowed intervals.

``python lab/interval_docs.py [DATA]`` (default: ../shared/data), after lab/fit_intervals.py, which records coverage.
Comparisons and totals are computed here: every measured device borrows as if it had never been measured, with intervals
fitted on the other devices; pairs and sums of its operators, as predicted by ``sartor.cost.price``, are compared with
the measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fit_intervals
import kin_docs
from sartor.cost.correction.carrying import DIE
from sartor.cost.correction.coefficients import table_of
from sartor.cost.cost import RHO, Cost
from sartor.cost.price import Estimate
from sartor.cost.uncertainty import compare
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, OperatorGraph
from sartor.records.tables import read_tables
from sartor.records.targets import targets_of
from sartor.validate.predictions import predict

PAGE = kin_docs.ROOT / "lab" / "notebook" / "intervals.md"
MARK = "<!-- Below: written by lab/interval_docs.py. -->\n"
NEAR = {"die": "same die", "generation": "same generation", "joint": "another generation, joint fit",
        "other": "another generation"}  # fmt: skip
PAIRS, SUMS, PARTS = 2000, 500, 8
"""Random pairs and sums per device and family, and operators per sum; fixed seed."""
NEAR_TIME = 1.5
"""Pairs with predicted times that differ by a larger factor are left out: their order is obvious."""
BINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, kw_only=True)
class Told:
    """Borrowed predictions of one device and family: pairs with probability and outcome, sums, correlated errors."""

    family: str
    near: str
    probability: Any
    """Predicted probability that the one predicted to be faster is faster."""
    won: Any
    inside: Any
    """Whether the measured total of each sum is inside the interval."""
    common: float
    """Squared median of ln(measured / predicted) / sigma; ``own``: mean square of the deviations from that median."""
    own: float


def main(arguments: Sequence[str]) -> int:
    data = Path(arguments[0]) if arguments else kin_docs.DATA
    if not (data / "measured").is_dir():
        print(f"no measured tables under {data}: {PAGE.name} is left as it is")
        return 0
    text = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(text + MARK + "\n".join([*coverage(), *comparisons(list(told(data)))]) + "\n", encoding="utf-8")
    return 0


def coverage() -> Iterator[str]:
    """The table of coverage that lab/fit_intervals.py recorded."""
    yield "\n## Borrowed, held out by device\n"
    yield "| distance | section | devices | σ over the measured GPU's | at least | held-out devices, in 80% |"
    yield "|---|---|---|---|---|---|"
    for near, entries in (table_of("lent.toml") or {}).items():
        for section, entry in entries.items():
            least = f"{entry['least']:.2f}" if "least" in entry else ""
            inside = f"{entry['inside']:.0%}" if "inside" in entry else ""
            yield f"| {NEAR[near]} | {section} | {entry['devices']} | {entry['times']:.2f} | {least} | {inside} |"


def told(data: Path) -> Iterator[Told]:
    reading = read_tables(data / "measured", ())
    for family in kin_docs.FAMILIES:
        targets = targets_of([table for table in reading.tables if table.kind.name == family], [])
        column = targets.coded["gpu"]
        names = np.array([kin_docs._known(str(value)) for value in column.values])[column.codes]
        second = {"gemm": "dtype", "attention": "phase"}.get(family)
        words = fit_intervals._words(targets, second) if second else np.full(len(targets), "", dtype=object)
        for gpu in sorted(set(names) & set(kin_docs.ELSEWHERE)):
            rows = np.concatenate(
                [fit_intervals._drawn((names == gpu) & (words == word)) for word in sorted(set(words[names == gpu]))]
            )
            few, kinds = kin_docs.taken(targets, rows), words[rows]
            for lender, widen in fit_intervals.pairs(family, gpu):
                with kin_docs.unmeasured(gpu, lender, widen, links=lender):
                    predicted = predict(few)
                for word in sorted(set(kinds)):
                    part = np.flatnonzero(np.isfinite(predicted.time_s) & (kinds == word))
                    if part.size >= fit_intervals.FEWEST:
                        near = "die" if widen <= DIE else "generation" if widen < 2.5 else "other"
                        found = predicted.time_s[part], predicted.log_sigma[part], few.measured_s[part]
                        yield _told(family, near, gpu, *found)
        print(family, flush=True, file=sys.stderr)


def _told(family: str, near: str, gpu: str, time_s: Any, sigma: Any, measured_s: Any) -> Told:
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, time_s.size, (2, 20 * PAIRS))
    close = (np.abs(np.log(time_s[a] / time_s[b])) < np.log(NEAR_TIME)) & (measured_s[a] != measured_s[b])
    a, b = a[close][:PAIRS], b[close][:PAIRS]
    p = compare(_estimate(gpu, time_s[[a]], sigma[[a]]), _estimate(gpu, time_s[[b]], sigma[[b]])).probability
    faster = measured_s[b] < measured_s[a]
    parts = draw.integers(0, time_s.size, (PARTS, SUMS))
    total = _estimate(gpu, time_s[parts], sigma[parts])
    came = measured_s[parts].sum(axis=0)
    z = np.log(measured_s / time_s) / sigma
    return Told(
        family=family,
        near=near,
        probability=np.maximum(p, 1 - p),
        won=np.where(p >= 0.5, faster, ~faster),
        inside=(came >= total.low_s) & (came <= total.high_s),
        common=float(np.median(z) ** 2),
        own=float(np.mean(np.clip(z - np.median(z), -5, 5) ** 2)),
    )


def _estimate(gpu: str, time_s: Any, sigma: Any) -> Estimate:
    """An estimate of operators of one family with these times and deviations [operators, alternatives]."""
    names = [f"operator {i}" for i in range(len(time_s))]
    operators = tuple(Gemm(name=name, m=1, n=1, k=1, dtype=DType.BF16) for name in names)
    costs = tuple(Cost(time_s=t, log_sigma=s) for t, s in zip(time_s, sigma, strict=True))
    return Estimate(
        graph=OperatorGraph(operators=operators, tokens=1), device=load_gpu(gpu), costs=costs, time_s=time_s.sum(axis=0)
    )


def comparisons(all_told: Sequence[Told]) -> Iterator[str]:
    yield "\n## A beats B with probability p\n"
    yield "| p predicted | pairs | p, mean | really won | " + " | ".join(f"won, {NEAR[n]}" for n in _NEAR) + " |"
    yield "|---" * (4 + len(_NEAR)) + "|"
    p, won = (np.concatenate([getattr(t, name) for t in all_told]) for name in ("probability", "won"))
    near = np.concatenate([np.full(len(t.won), t.near) for t in all_told])
    for low, high in pairwise(BINS):
        where = (p >= low) & (p < high + (high == 1.0))
        shares = [_mean(won[where & (near == name)]) for name in _NEAR]
        cells = [f"{low:.0%}-{high:.0%}", f"{where.sum():,}", _mean(p[where]), _mean(won[where]), *shares]
        yield f"| {' | '.join(cells)} |"
    yield "\n## Sums of eight operators, and how errors go together\n"
    yield f"| family | distance | totals in 80% | correlation found (ρ = {RHO} is used) |\n|---|---|---|---|"
    for family, (heading, _) in kin_docs.FAMILIES.items():
        for name in _NEAR:
            some = [t for t in all_told if (t.family, t.near) == (family, name)]
            if some:
                common, own = (float(np.mean([getattr(t, what) for t in some])) for what in ("common", "own"))
                inside = _mean(np.concatenate([t.inside for t in some]))
                yield f"| {heading} | {NEAR[name]} | {inside} | {common / (common + own):.2f} |"


_NEAR = ("die", "generation", "other")


def _mean(values: Any) -> str:
    return f"{np.mean(values):.0%}" if len(values) else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
