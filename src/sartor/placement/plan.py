"""The result of a placement: stages on devices with their times, or the tightest constraint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PlacementStatus(Enum):
    """``OPTIMAL``: no placement of the model is faster; ``INFEASIBLE``: none fits."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers of one stage in topological order, devices of one of its copies, seconds per microbatch."""

    layers: tuple[int, ...]
    devices: int
    load_s: float
    device_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placement, first stage first: ``data_parallel`` copies of a pipeline at one tensor-parallel width.

    With ``virtual_stages`` v > 1 the pipeline is S device groups deep and ``stages`` are its v S chunks: group i runs
    the chunks i, i + S, i + 2 S, ...
    """

    tensor_parallel: int
    data_parallel: int
    stages: tuple[Stage, ...]
    time_per_batch_s: float
    context_parallel: int = 1
    expert_parallel: int = 1
    virtual_stages: int = 1
    zero_stage: int = 0

    @property
    def num_stages(self) -> int:
        """Number of device groups in the pipeline."""
        return len(self.stages) // self.virtual_stages

    @property
    def num_devices(self) -> int:
        """Devices used by all copies."""
        return self.data_parallel * sum(stage.devices for stage in self.stages[: self.num_stages])


@dataclass(frozen=True, slots=True, kw_only=True)
class TightestLimit:
    """Why nothing fits, and the nearest feasible problem.

    ``least_memory_bytes`` is the smallest memory per device with which these devices hold the model (None: too few
    devices for any width); ``least_devices`` the fewest devices with the given memory that hold it (None: no number
    does); ``layer`` a layer that no device holds.
    """

    least_memory_bytes: float | None
    least_devices: int | None
    layer: int | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of a placement problem."""

    status: PlacementStatus
    plan: Plan | None
    fixed_strategy_time_per_batch_s: float | None
    checked: bool
    solve_s: float
    tightest: TightestLimit | None = None
