"""The options of ``design`` and their types; ``options.toml`` has their defaults and words on the command line."""

# no `from __future__ import annotations`: the types are read when the module is loaded
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from sartor.designs.space import AcceleratorSpace
    from sartor.hardware.gpu import Gpu

Number = float | None


class JobOptions(TypedDict, total=False):
    """What the devices do."""

    seq_len: int | Sequence[int] | None
    context_len: int | None
    ttft_ms: Number
    tpot_ms: Number
    weights: Sequence[float]
    tp: Sequence[int]
    objective: str


class QuestionOptions(TypedDict, total=False):
    """Budgets of a device, the plans to try, and costs."""

    global_batch_size: int | None
    mean: str
    area_mm2: Number
    power_w: Number
    hbm_gib: Number
    energy_j_per_token: Number
    plausibility: bool
    microbatch_size: Sequence[int]
    recompute: Sequence[str]
    optimizer: str
    zero_stage: Sequence[int]
    cp: Sequence[int]
    virtual_stages: Sequence[int]
    area_model: str | None
    wafer_usd: Number
    hbm_usd_per_gb: Number
    years: Number
    usd_per_kwh: Number


class SpaceOptions(TypedDict, total=False):
    """The chips and shapes to search."""

    space: "str | Path | AcceleratorSpace"
    shapes: int | str
    params_tolerance: float
    evidence: float
    fleet: Mapping[str, float] | None
    set: Mapping[str, int | str] | None


class _ProofOptions(TypedDict, total=False):
    """When the search ends, and what is priced beside the best point."""

    time_limit: Number
    tolerance: float
    baselines: bool
    against: "Sequence[str | Path | Gpu] | None"
    pareto: Sequence[str]
    sensitivity: bool


class _RunningOptions(TypedDict, total=False):
    """Where the search runs and what it stores."""

    study: str | Path | None
    executor: str
    workers: int | None


class DesignOptions(JobOptions, QuestionOptions, SpaceOptions, _ProofOptions, _RunningOptions, total=False):
    """All options of ``design``."""
