"""The result of a shape search: candidates, Pareto front, smallest edit, sensitivity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.shapes.mixes import Mix
from sartor.shapes.quality import Quality
from sartor.shapes.stability import StabilityGrid, StabilityRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One shape of the baseline's size. Times are of the objective on the first GPU unless stated otherwise."""

    shape: TransformerShape
    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new)."""
    num_fields: int
    """Number of changed fields, without derived ones (``shapes.choose.Changes``)."""
    num_params: int
    params_change: float
    """Relative to the baseline's parameters."""
    flops_change: float
    """Relative to the baseline's FLOPs in the objective's workload."""
    time_s: float
    low_s: float
    high_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency_gain: float
    """The part of the speedup that is not due to a smaller model: speedup at equal parameters and FLOPs
    (``cost.uncertainty.work_kept``), with its 80% interval."""
    efficiency_low: float
    efficiency_high: float
    confidence: float
    """Probability that it takes less time than the baseline at equal work on the first GPU."""
    phase_s: Mapping[str, float]
    """Seconds by phase (train, prefill, decode) on the first GPU."""
    per_gpu: Mapping[str, float]
    """Speedup by GPU."""
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point that no other beats in training time, decode time, parameter change and number of changed fields."""

    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    num_fields: int
    params_change: float
    phase_s: Mapping[str, float]
    speedup: float
    efficiency_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEdit:
    """The best value of one field changed alone, at the same size."""

    field: str
    old: int
    new: int
    changed: Mapping[str, tuple[int, int]]
    speedup: float
    efficiency_gain: float
    params_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSearch:
    """The result of a search. ``candidates`` gain at equal work with an interval above 1, best first; ties go to fewer
    changed fields, then to the smaller change of size."""

    workload: Workload
    gpus: tuple[Gpu, ...]
    baseline: Estimate
    candidates: tuple[Candidate, ...]
    front: tuple[FrontPoint, ...]
    smallest_edit: Candidate | None
    """Fewest changed fields for at least 70% of the best gain at equal work; None without candidates."""
    unsure: Candidate | None
    """If there are no candidates, the shape with the best gain (its interval includes 1); None if none gains."""
    minimax: Candidate | None
    """With several GPUs: the shape with the smallest worst-case loss against each GPU's best."""
    regret: float
    """That worst-case loss, as a share of the GPU's best time; 0 with one GPU."""
    best_per_gpu: Mapping[str, Candidate]
    mixes: tuple[Mix, ...]
    """Other mixtures of experts at equal total and active parameters, also coarser ones; empty without experts."""
    single_edits: tuple[SingleEdit, ...]
    stability: tuple[StabilityRange | StabilityGrid, ...]
    grid_size: int
    """Combinations of the grid, all sizes."""
    evaluated: int
    """Shapes of the baseline's size; all are priced."""
    wall_s: float = field(compare=False)
    assumptions: tuple[str, ...]

    @property
    def evaluated_per_s(self) -> float:
        return self.evaluated / self.wall_s if self.wall_s else 0.0
