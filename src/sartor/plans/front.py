"""The plans that a search keeps from a stream: the best for each set of dims, the Pareto front, the leanest.

Ties are broken by less memory, then by the simpler plan (smaller degrees, in the order of ``AXES``), so the answer does
not depend on the order in which plans arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sartor.model.plan import AXES, DIMS
from sartor.pareto import is_pareto
from sartor.plans.evaluate import Evaluated
from sartor.plans.result import PlanSearch, PricedPlan
from sartor.plans.space import size_of
from sartor.step.mechanisms.mechanism import Rows
from sartor.units import Array

OPEN = 4096
"""Most plans kept for placing layers."""
KEYS = (*DIMS, "ep")
FIGURES = ("step_s", "bound_s", "device_bytes", "stage")
"""Columns of `Evaluated` besides its rows."""


def empty() -> Evaluated:
    """No plans yet."""
    none = np.zeros(0, dtype=np.int64)
    figures = dict.fromkeys(FIGURES, none.astype(float))
    return Evaluated(rows=dict.fromkeys(AXES, none), **{**figures, "stage": none})


@dataclass(slots=True)
class Kept:
    """Running result of a search over chunks of plans; ``add`` takes one more chunk."""

    top: int = 1
    """How many sets of dims to try uneven stages for."""

    best: Evaluated = field(default_factory=empty)
    """The fastest plan of every (tp, pp, cp, dp, ep)."""
    front: Evaluated = field(default_factory=empty)
    open: Evaluated = field(default_factory=empty)
    """Plans that uneven stages might make faster than the best."""
    leanest: Evaluated = field(default_factory=empty)
    """The plan with the least memory, whether it fits or not."""
    evaluated: int = 0
    refined: int = 0
    fitting: int = 0
    over: dict[str, int] = field(default_factory=dict)
    """Plans that do not fit, by the stage that exceeds memory."""

    def count(self, evaluated: Evaluated, fits: Array) -> None:
        """Count plans of the grid, of which some fit; the leanest is kept."""
        self.evaluated += size_of(evaluated.rows)
        self.fitting += int(fits.sum())
        for reason, count in _why_not(evaluated, ~fits).items():
            self.over[reason] = self.over.get(reason, 0) + count
        least = chosen(evaluated, evaluated.device_bytes == evaluated.device_bytes.min(initial=np.inf))
        self.leanest = first_of(joined(self.leanest, least), ("device_bytes",), 1)

    def add_refined(self, evaluated: Evaluated) -> None:
        """Add plans outside the grid; all of them fit."""
        self.evaluated += size_of(evaluated.rows)
        self.refined += size_of(evaluated.rows)
        self.add(evaluated)

    def add(self, evaluated: Evaluated) -> None:
        """Add timed plans."""
        if evaluated.fits.any():
            good = chosen(evaluated, evaluated.fits)
            self.best = _best_of_each(joined(self.best, _best_of_each(good)))
            self.front = _front_of(joined(self.front, _front_of(good)))
        self._keep_open(evaluated)

    def _keep_open(self, evaluated: Evaluated) -> None:
        """Keep plans whose bound could beat the best so far, those with the lowest bounds first."""
        hopeful = (
            np.isfinite(evaluated.bound_s) & (evaluated.bound_s < evaluated.step_s) & (evaluated.bound_s < self.worst_s)
        )
        both = joined(self.open, chosen(evaluated, hopeful))
        both = chosen(both, both.bound_s < self.worst_s)
        self.open = first_of(both, ("bound_s",), OPEN) if size_of(both.rows) > OPEN else both

    @property
    def worst_s(self) -> float:
        """Step time of the last of the ``top`` best sets of dims so far; infinite while there are fewer."""
        return float(self.best.step_s[self.top - 1]) if len(self.best.step_s) >= self.top else np.inf


def _why_not(evaluated: Evaluated, over: Array) -> dict[str, int]:
    """Number of plans that do not fit (``over``), by which stage is fullest."""
    stage, pp = evaluated.stage, evaluated.rows["pp"]
    masks = {
        "does not fit in memory": over & (pp == 1),
        "does not fit in memory: the first stage is fullest": over & (pp > 1) & (stage == 0),
        "does not fit in memory: the last stage is fullest": over & (pp > 1) & (stage == pp - 1) & (stage > 0),
    }
    masks["does not fit in memory: a middle stage is fullest"] = over & ~np.logical_or.reduce(list(masks.values()))
    return {reason: int(mask.sum()) for reason, mask in masks.items() if mask.any()}


def joined(*parts: Evaluated) -> Evaluated:
    return Evaluated(
        rows={name: np.concatenate([part.rows[name] for part in parts]) for name in AXES},
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in FIGURES},
    )


def chosen(evaluated: Evaluated, index: Array) -> Evaluated:
    """The rows selected by mask or positions."""
    return Evaluated(
        rows={name: evaluated.rows[name][index] for name in AXES},
        **{name: getattr(evaluated, name)[index] for name in FIGURES},
    )


def order(evaluated: Evaluated, by: tuple[str, ...] = ("step_s", "device_bytes")) -> Array:
    """Positions sorted by ``by``, ties by the simpler plan."""
    first = [getattr(evaluated, name) for name in by]
    rest = [evaluated.rows[name] for name in AXES]
    return np.lexsort([*reversed(rest), *reversed(first)])


def first_of(evaluated: Evaluated, by: tuple[str, ...], count: int) -> Evaluated:
    return chosen(evaluated, order(evaluated, by)[:count])


def _best_of_each(evaluated: Evaluated) -> Evaluated:
    """The fastest plan of every set of dims, fastest first."""
    ranked = chosen(evaluated, order(evaluated))
    key = _codes(ranked.rows)
    _, first = np.unique(key, return_index=True)
    return chosen(ranked, np.sort(first))


def _codes(rows: Rows) -> Array:
    """A distinct number for every set of dims."""
    code = np.zeros(size_of(rows), dtype=np.int64)
    for name in KEYS:
        values, inverse = np.unique(rows[name], return_inverse=True)
        code = code * len(values) + inverse
    return code


def keys_of(rows: Rows) -> list[tuple[int, ...]]:
    """The (tp, pp, cp, dp, ep) of every row."""
    return list(zip(*(rows[name].tolist() for name in KEYS), strict=True))


def _front_of(evaluated: Evaluated) -> Evaluated:
    """Pareto-optimal plans in seconds and bytes, fastest first; of equal ones the simplest."""
    mask = is_pareto(np.stack([evaluated.step_s, evaluated.device_bytes], axis=1))
    ranked = first_of(chosen(evaluated, mask), ("step_s", "device_bytes"), int(mask.sum()))
    same = np.zeros(size_of(ranked.rows), dtype=bool)
    same[1:] = (np.diff(ranked.step_s) == 0) & (np.diff(ranked.device_bytes) == 0)
    return chosen(ranked, ~same)


def front_over_devices(searches: Sequence[PlanSearch]) -> tuple[PricedPlan, ...]:
    """Pareto-optimal plans in seconds, bytes and devices over the fronts of several searches, fastest first."""
    plans = [plan for search in searches for plan in search.front]
    if not plans:
        return ()
    mask = is_pareto([[p.step_s, p.peak_bytes, float(p.plan.num_devices)] for p in plans])
    return tuple(sorted((p for p, on in zip(plans, mask, strict=True) if on), key=lambda p: (p.step_s, p.peak_bytes)))
