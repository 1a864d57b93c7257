"""Published training steps beside the same GPUs and TPUs drawn in the chip template: docs/concepts/accelerator.md.

python lab/chip_steps.py [END_TO_END]
Every dense 16-bit run whose device is drawn, with its own plan and links: under its own trainer, whose constants are
fitted without the run's source, and in lockstep (the runtime of `sartor design`). GPUs' shares are from timed kernels.
The TPUs' sustained share was checked on these very runs, and ``run_factor`` is a mean of all sources.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fit_training
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.json_types import JsonMap
from sartor.model.training import TrainingJob
from sartor.step.coefficients import coefficients_for
from sartor.step.step import step
from sartor.step.trainers.lockstep import LOCKSTEP
from sartor.validate.training_predictions import settled
from sartor.validate.training_rows import TrainingCase, read_training

DRAWN = {
    "a100_sxm": "a100_like",
    "h100_sxm": "h100_like",
    "mi300x": "mi300x_like",
    "tpu_v4": "tpu_v4_lanes",
    "tpu_v5e": "tpu_v5e_like",
    "tpu_v6e": "tpu_v6e_like",
}
"""Catalogue device -> the same one in the template."""
LARGE = 1e11
"""Parameters from which a run counts as one of GPT-3's class."""


@dataclass(frozen=True, slots=True)
class ChipStep:
    """A run's device, source and size, and predicted over measured seconds; NaN where lockstep cannot run the plan."""

    device: str
    source: str
    large: bool
    own: float
    lockstep: float


Constants = Mapping[str, JsonMap]
"""Source -> constants of a training step fitted without it."""


def constants_without(data: Path) -> Constants:
    """The constants for every source."""
    timed = [case for case in read_training(data) if not case.reason and case.measured_s == case.measured_s]
    runs = fit_training.Runs([settled(case)[0] for case in timed])
    x, base, slope = fit_training.fit(runs)
    weight, ridge = fit_training.weights_of(runs.cases), fit_training.ridge_of(runs.cases)
    sources, out = np.array([case.words["source"] for case in runs.cases]), {}
    for source in dict.fromkeys(sources.tolist()):
        seen = sources != source
        out[source] = fit_training.table_of(fit_training.solve(base[seen], slope[seen], x, weight[seen], ridge))
    return out


def chip_steps(data: Path, without: Constants | None = None) -> Iterator[ChipStep]:
    """Every dense 16-bit run on a drawn device; ``without`` replaces the packaged constants."""
    for case in read_training(data):
        if case.precision != "16-bit" or case.experts != "dense" or not math.isfinite(case.measured_s):
            continue
        if case.cluster is None or case.reason or case.cluster.gpu.name not in DRAWN:
            continue
        try:
            one, _ = settled(case)
            own = _ratio(one, one.job, (without or {}).get(case.words["source"]))
        except InputError:
            continue
        row = case.words
        size = 12.0 * int(row["L"]) * int(row["h"]) ** 2
        yield ChipStep(case.cluster.gpu.name, row["source"], size >= LARGE, own, _in_lockstep(one))


def _in_lockstep(case: TrainingCase) -> float:
    assert case.job is not None
    try:
        return _ratio(case, replace(case.job, trainer=LOCKSTEP))
    except InputError:
        return math.nan


def _ratio(case: TrainingCase, job: TrainingJob | None, table: JsonMap | None = None) -> float:
    assert job is not None
    assert case.cluster is not None
    assert case.plan is not None
    drawn = replace(case.cluster, gpu=load_device(DRAWN[case.cluster.gpu.name]))
    constants = coefficients_for(job, drawn.gpu, table)
    return float(np.ravel(step(job, case.plan, drawn, None, constants).step_s)[0]) / case.measured_s


def table(found: list[ChipStep]) -> Iterator[str]:
    """A line for each device and source, the largest models apart."""
    yield "| device | runs | number | own trainer: median, error, within 20% | in lockstep |"
    yield "|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[ChipStep]] = {}
    for each in found:
        groups.setdefault((each.device, each.source + (", 100B and more" if each.large else "")), []).append(each)
    for (device, runs), rows in sorted(groups.items()):
        cells = (_cell([each.own for each in rows]), _cell([each.lockstep for each in rows]))
        yield f"| {device} | {runs} | {len(rows)} | {' | '.join(cells)} |"


def _cell(ratios: list[float]) -> str:
    known = np.array([x for x in ratios if math.isfinite(x)]) - 1
    if not known.size:
        return "-"
    return f"{np.median(known):+.0%}, {np.abs(known).mean():.0%}, {int((np.abs(known) <= 0.2).sum())} of {known.size}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, default=Path("../shared/data/end_to_end"))
    where = parser.parse_args().data
    with ProcessPoolExecutor(1) as apart:  # the fit replaces functions of the package by its own
        fitted = apart.submit(constants_without, where).result()
    print(*table(list(chip_steps(where, fitted))), sep="\n")
