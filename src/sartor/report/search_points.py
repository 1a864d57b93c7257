"""Records of a search's figures: points with their Pareto front, and convergence of bound and incumbent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.answers.design import DesignAnswer, rate
from sartor.designs.pareto import value_of
from sartor.designs.result import Ranked
from sartor.report.design_words import (
    against_text,
    short_chips,
    unit_of,
)
from sartor.report.words import printable
from sartor.units import GIGA, format_seconds, format_share

Numbers = npt.NDArray[np.float64]

MOST_CLOUD = 1500
"""Most evaluated points drawn, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCloud:
    """Evaluated points as cost against objective, with the Pareto front marked and the alternatives named.

    ``across`` and ``shade`` are the first two axes of the requested front, named in ``axes`` with their units; by
    default, area alone.
    """

    title: str
    unit: str
    labels: tuple[str, ...]
    area_mm2: Numbers
    power_w: Numbers
    objective: Numbers
    kind: tuple[str, ...]
    """``best``, ``front``, ``evaluated`` or ``baseline``."""
    axes: tuple[str, ...]
    across: Numbers
    shade: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """Upper bound and best value while the search runs."""

    title: str
    unit: str
    seconds: Numbers
    bound: Numbers
    incumbent: Numbers
    evaluated: npt.NDArray[np.int64]


def convergence(answer: DesignAnswer) -> Convergence | None:
    """Bound and incumbent over time; None with fewer than two steps."""
    steps = [step for step in answer.result.trajectory if step.bound > 0 and np.isfinite(step.bound)]
    if len(steps) < 2:
        return None
    found = answer.result
    last = steps[-1].seconds
    if found.gap:
        proof = f"After {format_seconds(last)}, no point can be more than {format_share(found.gap)} better"
    else:
        proof = f"Proved optimal after {format_seconds(last)}"
    return Convergence(
        title=f"{proof}; {found.evaluated:,} of {found.evaluated + found.pruned:,} points evaluated",
        unit=unit_of(answer.question),
        seconds=np.array([step.seconds for step in steps]),
        bound=np.array([step.bound for step in steps]),
        incumbent=np.array([step.incumbent for step in steps]),
        evaluated=np.array([step.evaluated for step in steps]),
    )


def design_cloud(answer: DesignAnswer) -> DesignCloud | None:
    """Evaluated points by area; None for a single one."""
    best = answer.best
    ranked = [each for each in answer.result.ranked[:MOST_CLOUD] if each.objective > 0]
    if answer.proved_front is not None and best is not None:
        ranked += [each for each in answer.front if each.objective < best.objective]
    others = [(each.name, each.ranked) for each in answer.result.baselines if each.ranked is not None]
    if best is None or len(ranked) + len(others) < 2:
        return None
    front = {id(each) for each in answer.front}
    kinds = ["best" if each is best else "front" if id(each) in front else "evaluated" for each in ranked]
    everything = [*ranked, *(other for _, other in others)]
    axes = answer.proved_front.axes if answer.proved_front is not None else ("area_mm2",)
    return DesignCloud(
        title=_cloud_title(best, others),
        unit=unit_of(answer.question),
        labels=(
            *short_chips([each.evaluation.point.accelerator for each in ranked]),
            *(printable(name) for name, _ in others),
        ),
        area_mm2=np.array([each.area_mm2 for each in everything]),
        power_w=np.array([each.power_w for each in everything]),
        objective=np.array([each.objective for each in everything]),
        kind=(*kinds, *("baseline" for _ in others)),
        axes=tuple(AXES[axis][0] for axis in axes[:2]),
        across=_on(everything, axes[0]),
        shade=_on(everything, axes[-1] if len(axes) < 2 else axes[1]),
    )


AXES = {
    "area_mm2": ("die [mm2]", 1.0),
    "power_w": ("peak power [W]", 1.0),
    "hbm_bytes": ("memory [GB]", GIGA),
    "usd": ("die and memory [USD]", 1.0),
}
"""The axes of a front: title, and scale from the SI unit."""


def _on(ranked: Sequence[Ranked], axis: str) -> Numbers:
    values = [value_of(each, axis) for each in ranked]
    return np.array(values, dtype=np.float64) / AXES[axis][1]


def _cloud_title(best: Ranked, others: Sequence[tuple[str, Ranked]]) -> str:
    if not others:
        return f"The best point reaches {rate(best.objective)} on {best.area_mm2:,.0f} mm2"
    name, first = others[0]
    return f"The best point reaches {against_text(best, first)} the objective of {printable(name)}"
