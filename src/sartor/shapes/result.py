"""What a shape search answers with: candidates, the front, the smallest edit, and how far it holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.shapes.quality import Quality
from sartor.shapes.stability import StabilityGrid, StabilityRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One shape of the baseline's size. Times are of the objective on the first GPU unless they say otherwise."""

    shape: TransformerShape
    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    """Field -> (old, new)."""
    num_changes: int
    """Fields changed, not counting those that follow from others (``search.choose.Changes``)."""
    num_params: int
    params_change: float
    """Share of the baseline's parameters."""
    flops_change: float
    """Share of the baseline's matrix-product FLOPs in the objective's workload."""
    time_s: float
    low_s: float
    high_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    confidence: float
    """Probability that it is faster than the baseline on the first GPU."""
    phase_s: Mapping[str, float]
    """Seconds by phase (train, prefill, decode) on the first GPU."""
    per_gpu: Mapping[str, float]
    """Speedup by GPU."""
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A point no other beats in training time, decode time, parameter change and number of fields changed at once."""

    fields: Mapping[str, int]
    changed: Mapping[str, tuple[int, int]]
    num_changes: int
    params_change: float
    phase_s: Mapping[str, float]
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEdit:
    """The best value of one field changed alone, at the same size: what moves and what it gains."""

    field: str
    old: int
    new: int
    changed: Mapping[str, tuple[int, int]]
    speedup: float
    params_change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSearch:
    """What a search found. ``candidates`` are best first by the objective's time on the first GPU."""

    workload: Workload
    gpus: tuple[Gpu, ...]
    baseline: Estimate
    candidates: tuple[Candidate, ...]
    front: tuple[FrontPoint, ...]
    smallest_edit: Candidate | None
    """Fewest fields changed for at least 80% of the time the best candidate saves; None when nothing is faster."""
    minimax: Candidate | None
    """With several GPUs: the shape whose greatest loss to any GPU's own best is least."""
    regret: float
    """That greatest loss, as a share of the GPU's own best time; 0 with one GPU."""
    best_per_gpu: Mapping[str, Candidate]
    single_edits: tuple[SingleEdit, ...]
    stability: tuple[StabilityRange | StabilityGrid, ...]
    grid_size: int
    """Combinations of the grid, all sizes."""
    evaluated: int
    """Shapes of the baseline's size, every one priced in full."""
    wall_s: float = field(compare=False)
    assumptions: tuple[str, ...]

    @property
    def evaluated_per_s(self) -> float:
        return self.evaluated / self.wall_s if self.wall_s else 0.0
