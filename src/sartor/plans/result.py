"""Result of a search over plans: the best plan, others, the front, and why the rest was rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from sartor.cost.cost import interval_80
from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.footprint import in_doubt
from sartor.step.mechanisms import parts
from sartor.step.mechanisms.mechanism import Rows
from sartor.step.results import Footprint, StepEstimate, WholeStep


class PlanStatus(Enum):
    """``OPTIMAL``: no other plan of the space has a shorter predicted step; ``INFEASIBLE``: none fits."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """One plan with its predicted step and memory."""

    plan: TrainingPlan
    step: StepEstimate
    footprint: Footprint
    spread: tuple[float, float] = field(default=(1.0, 1.0), compare=False)
    """The shortest and the longest step with other plausible values of what was not stated, relative to this one."""

    def __repr__(self) -> str:
        return f"PricedPlan(step_s={self.step_s:.4g}, peak_bytes={self.peak_bytes:.4g}, plan={self.plan})"

    @property
    def step_s(self) -> float:
        return float(self.step.step_s)

    @property
    def low_s(self) -> float:
        """Not below the time of the step's matrix multiplications at the peak; holds the ``spread``."""
        low_s = interval_80(self.step_s, self.step.log_sigma, self.step_s * self.step.mfu)[0]
        return min(float(low_s), self.spread[0] * self.step_s)

    @property
    def high_s(self) -> float:
        return max(float(interval_80(self.step_s, self.step.log_sigma)[1]), self.spread[1] * self.step_s)

    def whole(self, waiting: float) -> WholeStep:
        """The step as a change of the model's shape sees it; ``waiting``: ``TrainingCoefficients.waiting``."""
        busy_s = sum(float(self.step.parts[part.key]) for part in parts() if part.of_operators) * (1.0 + waiting)
        return WholeStep(busy_s=busy_s, step_s=self.step_s, low_s=self.low_s, high_s=self.high_s)

    @property
    def peak_bytes(self) -> float:
        """Bytes of the fullest device, everything included."""
        return float(self.footprint.device_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPoints:
    """Plans as columns for a figure: ``rows`` by axis name, with seconds and bytes of the fullest device."""

    rows: Rows
    step_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    device_bytes: np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change after which some plan fits: a description, and the best plan's step time then."""

    change: str
    field: str
    value: str
    step_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightest:
    """Why nothing fits: the constraint as a sentence; if memory is short, the leanest plan and how much it is over."""

    message: str
    stage: int | None = None
    over_bytes: float | None = None
    leanest: PricedPlan | None = None
    relaxations: tuple[Relaxation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSearch:
    """Result of a search for one number of devices. ``top`` holds the best plan of each (tp, pp, dp, cp, ep)."""

    job: TrainingJob = field(repr=False)
    cluster: Cluster = field(repr=False)
    num_devices: int
    fixed: Mapping[str, int]
    status: PlanStatus
    best: PricedPlan | None
    top: tuple[PricedPlan, ...] = field(repr=False)
    front: tuple[PricedPlan, ...] = field(repr=False)
    """Plans that no other beats in both step time and memory, fastest first."""
    points: PlanPoints = field(repr=False)
    """The best plan of every (tp, pp, dp, cp, ep) that fits."""
    space_size: int
    """Points of the whole grid: ``fitting`` plus all of ``rejected``."""
    evaluated: int
    """Plans with computed memory (and step time if they fit), including the refined ones."""
    refined: int
    """Plans outside the grid: only as many layers recomputed as necessary."""
    placed: int
    """Plans whose layers the dynamic program placed on stages."""
    unplaced: int
    """Plans with a bound below the best step that were not placed: 0 except in spaces with many such plans."""
    fitting: int
    """Points of the grid that fit."""
    rejected: Mapping[str, int] = field(repr=False)
    """Rejected points by reason, most first."""
    tightest: Tightest | None = field(repr=False)
    headroom: float = 0.0
    """Share of the usable memory that every plan leaves free."""
    wall_s: float = field(compare=False)

    @property
    def may_fit(self) -> bool:
        """Whether nothing is sure to fit, and the leanest plan may."""
        lean = self.tightest and self.tightest.leanest
        return bool(lean and in_doubt(lean.peak_bytes, self.cluster))

    @property
    def evaluated_per_s(self) -> float:
        return self.evaluated / self.wall_s if self.wall_s else 0.0
