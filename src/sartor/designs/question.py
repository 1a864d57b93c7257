"""The question to `sartor design`: models, devices, batch, budgets, an objective, and cost assumptions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from sartor.cost.chip.ownership import USD_PER_KWH, YEARS
from sartor.errors import InputError, check_positive
from sartor.model.layer import MoeFfn
from sartor.model.shape import TransformerShape
from sartor.model.training import Optimizer, Recompute
from sartor.model.workload import Phase
from sartor.operators import DType
from sartor.placement.problem import MAX_DEVICES, MAX_MICROBATCHES, PlacementTerms
from sartor.units import Array, Floats

HBM_USD_PER_GB = 10.0
"""Price of stacked memory per GB (10^9 bytes): 8 to 10 USD for HBM3E (asiatechfeed.com, "What is HBM memory", 2026,
read 2026-11-21). Uncertain by a factor of two, and depends on the generation: give your own price."""


OPTIMIZER_COPIES = {Optimizer.ADAM: 6.0, Optimizer.SGD: 4.0}
"""Bytes of optimizer state per byte of a 16-bit parameter: an fp32 main weight with Adam's two moments (Rajbhandari et
al. 2020, sec. 3.1) or one of momentum."""
MOST_ZERO = 3

EQUAL = 1e-9
"""Relative difference below which two values count as equal."""
BATCH_SIZES = tuple(2**i for i in range(11))
"""Batch sizes of a copy of a served model [sequences]."""
LIMITS = {Phase.PREFILL: "ttft_ms", Phase.DECODE: "tpot_ms"}
"""Option that limits the latency of a pass, by phase."""


class Objective(StrEnum):
    """The quantity to maximize; throughput is divided by the area, power or cost of all devices."""

    THROUGHPUT = "throughput"
    PER_MM2 = "throughput_per_mm2"
    PER_WATT = "throughput_per_watt"
    PER_DOLLAR = "throughput_per_dollar"
    """Throughput over the price of die and memory."""
    PER_OWNERSHIP_DOLLAR = "throughput_per_ownership_dollar"
    """Throughput over the cost of die, memory, package and the electricity of ``DesignCosts.years``."""


class Mean(StrEnum):
    """The weighted mean that combines several models' throughputs."""

    GEOMETRIC = "geometric"
    ARITHMETIC = "arithmetic"
    """As published; the fastest model dominates."""


class AreaModel(StrEnum):
    PUBLISHED = "published"
    """The closed form of PHAZE at 22 nm: only cores and buffers."""
    DIE = "die"
    """Also memory PHYs, links, network and control, at the candidate's node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertPlan:
    """A placement an expert would take: the baseline to beat."""

    pp: int
    dp: int
    tp: int
    ep: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignModel:
    """A model to be trained or served: ``widths`` are the tensor-parallel degrees that may be used, ``expert_widths``
    the numbers of data-parallel copies that may share its experts (empty: powers of two that divide them).

    In serving, a pass computes a batch of ``batch_sizes`` sequences (``seq_len`` tokens of a prompt, or one token after
    ``context_len``) in at most ``latency_s``: the time to the first token, or per output token.
    """

    name: str
    shape: TransformerShape
    seq_len: int
    widths: tuple[int, ...] = (1, 2, 4, 8)
    weight: float = 1.0
    expert: ExpertPlan | None = None
    expert_widths: tuple[int, ...] = ()
    phase: Phase = Phase.TRAIN
    context_len: int = 0
    latency_s: float | None = None
    batch_sizes: tuple[int, ...] = BATCH_SIZES

    def __post_init__(self) -> None:
        if not self.expert_widths:
            object.__setattr__(self, "expert_widths", expert_widths_of(self.shape))
        for experts in self.expert_widths:
            _whole(f"{self.name} expert width", experts)
        _whole(f"seq_len of {self.name}", self.seq_len)
        if not self.widths:
            raise InputError("tp", "[]", "must hold at least one tensor-parallel width", "1")
        for width in self.widths:
            _whole(f"tp of {self.name}", width)
        check_positive(f"weights of {self.name}", self.weight)
        for size in self.batch_sizes:
            _whole(f"batch of {self.name}", size)
        if self.latency_s is not None:
            check_positive(LIMITS.get(self.phase, "latency_s"), self.latency_s)

    @property
    def served(self) -> bool:
        return self.phase is not Phase.TRAIN


def expert_widths_of(shape: TransformerShape) -> tuple[int, ...]:
    """Powers of two that divide the number of experts of every layer with experts; 1 for a model without."""
    ffns = [ffn for run in shape.main.runs for ffn in run.layer.all_ffns if isinstance(ffn, MoeFfn)]
    together = int(np.gcd.reduce([int(ffn.num_experts) for ffn in ffns])) if ffns else 1
    return tuple(2**i for i in range(together.bit_length()) if together % 2**i == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Limits on a candidate; None: no limit."""

    area_mm2: float | None = None
    power_w: float | None = None
    hbm_bytes: float | None = None
    """Most memory of one device."""
    energy_j_per_token: float | None = None
    """Most energy of all devices per token, with their static power, for every model."""
    plausible: bool = True
    """Leave out chips that cannot be built (``cost.chip.buildable``)."""

    def __post_init__(self) -> None:
        for name in ("area_mm2", "power_w", "hbm_bytes", "energy_j_per_token"):
            value = getattr(self, name)
            if value is not None:
                check_positive(name, value, "leave it out for no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignCosts:
    """Assumptions of the cost model.

    ``resync_factor``: a ring all-reduce of 16-bit gradients.
    """

    area: AreaModel = AreaModel.PUBLISHED
    optimizer_copies: float | None = None
    """Bytes of optimizer state per byte of parameter; None: the optimizer's."""
    resync_factor: float = 2.0
    counts_update: bool = True
    """Whether the step time includes the optimizer."""
    wafer_usd: float | None = None
    """Price of a processed wafer; None: that of the node in ``cost.technology`` (CSET 2020)."""
    hbm_usd_per_gb: float = HBM_USD_PER_GB
    years: float = YEARS
    """Years of use of a chip."""
    usd_per_kwh: float = USD_PER_KWH

    def __post_init__(self) -> None:
        if self.wafer_usd is not None:
            check_positive("wafer_usd", self.wafer_usd)
        if not np.isfinite(self.hbm_usd_per_gb) or self.hbm_usd_per_gb < 0:
            raise InputError("hbm_usd_per_gb", self.hbm_usd_per_gb, "must be finite and not below 0", "0")
        check_positive("years", self.years)
        if not np.isfinite(self.usd_per_kwh) or self.usd_per_kwh < 0:
            raise InputError("usd_per_kwh", self.usd_per_kwh, "must be finite and not below 0", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignQuestion:
    """Everything but the space of candidates."""

    models: tuple[DesignModel, ...]
    num_devices: int
    global_batch_size: int
    microbatch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    recomputes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    budgets: Budgets = field(default_factory=Budgets)
    objective: Objective = Objective.THROUGHPUT
    mean: Mean = Mean.GEOMETRIC
    terms: PlacementTerms | None = None
    costs: DesignCosts = field(default_factory=DesignCosts)
    dtypes: tuple[DType, ...] = (DType.BF16,)
    """Operand types of linear layers that a plan may choose, if the chip supports them."""
    optimizer: Optimizer = Optimizer.ADAM
    zero_stages: tuple[int, ...] = (0,)
    """ZeRO stages to choose from: with 1 optimizer states are sharded over the copies, on a single stage with 2
    gradients too and with 3 also weights. 0 is always allowed."""
    context_widths: tuple[int, ...] = (1,)
    """Numbers of devices that may share a sequence in training."""
    virtual_stages: tuple[int, ...] = (1,)
    """Numbers of chunks of layers per device of a pipeline; 1 is always allowed."""

    def __post_init__(self) -> None:
        _whole("num_devices", self.num_devices)
        _whole("global_batch_size", self.global_batch_size)
        if self.num_devices > MAX_DEVICES:
            raise InputError("num_devices", self.num_devices, "must be at most 10^7", str(MAX_DEVICES))
        if self.global_batch_size > MAX_MICROBATCHES:
            raise InputError("global_batch_size", self.global_batch_size, "must be at most 10^7", str(MAX_MICROBATCHES))
        if not self.models:
            raise InputError("model", "[]", "must hold at least one model")
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError("model", ", ".join(names), "must be named apart")
        phases = {model.phase for model in self.models}
        if self.mean is Mean.ARITHMETIC and len(phases) > 1:
            must = "adds sequences to tokens: jobs of several phases take the geometric mean"
            raise InputError("mean", self.mean.value, must, Mean.GEOMETRIC.value)
        for size in self.microbatch_sizes:
            _whole("microbatch_size", size)
        if not self.microbatch_sizes or min(self.microbatch_sizes) > self.global_batch_size:
            must = f"must hold one of at most global_batch_size={self.global_batch_size}"
            raise InputError("microbatch_size", list(self.microbatch_sizes), must, "1")
        if not self.whole_microbatches and not all(model.served for model in self.models):
            must = f"must hold one that divides global_batch_size={self.global_batch_size}"
            raise InputError("microbatch_size", list(self.microbatch_sizes), must, "1")
        self._check_plans()
        for recompute in self.recomputes:
            if recompute not in (Recompute.NONE, Recompute.FULL):
                raise InputError("recompute", Recompute(recompute).word, "must be none or full here", "none, full")

    def _check_plans(self) -> None:
        if self.optimizer not in OPTIMIZER_COPIES:
            raise InputError("optimizer", self.optimizer.value, "must be adam or sgd here", "adam")
        for name, values in (("cp", self.context_widths), ("virtual_stages", self.virtual_stages)):
            for value in values:
                _whole(name, value)
        for stage in self.zero_stages:
            if stage not in range(MOST_ZERO + 1):
                nearest = str(min(max(stage, 0), MOST_ZERO))
                raise InputError("zero_stage", stage, f"must be 0 to {MOST_ZERO}", nearest)

    @property
    def optimizer_copies(self) -> float:
        """Bytes of optimizer state per byte of parameter."""
        stated = self.costs.optimizer_copies
        return OPTIMIZER_COPIES[self.optimizer] if stated is None else stated

    @property
    def leaves_out_unbuildable(self) -> bool:
        """Whether chips that cannot be built are left out. The published closed form counts no memory interfaces, links
        or control, so its space is searched as published and its best chip is only marked."""
        return self.budgets.plausible and self.costs.area is AreaModel.DIE

    @property
    def batch(self) -> int | None:
        """The sequences of a training step; None where no model is trained."""
        return None if all(model.served for model in self.models) else self.global_batch_size

    @property
    def whole_microbatches(self) -> tuple[int, ...]:
        """The sizes of a microbatch that divide the batch."""
        return tuple(size for size in self.microbatch_sizes if self.global_batch_size % size == 0)

    @property
    def num_ways(self) -> int:
        """Number of batch sizes of a served model, or of microbatches and recomputations; the largest of any model."""
        trained = len(self.microbatch_sizes) * len(self.recomputes)
        return max(len(model.batch_sizes) if model.served else trained for model in self.models)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights that sum to one."""
        total = sum(model.weight for model in self.models)
        return tuple(model.weight / total for model in self.models)

    def with_shape(self, shape: TransformerShape) -> DesignQuestion:
        """The question with another shape of its one model, in all its phases."""
        return replace(self, models=tuple(replace(model, shape=shape, expert_widths=()) for model in self.models))

    def together(self, per_model: Floats) -> Floats:
        """The mean of sequences per second [models, ...]; 0 if a model does not fit."""
        rates = np.asarray(per_model, dtype=np.float64)
        weights = np.asarray(self.weights).reshape(-1, *([1] * (rates.ndim - 1)))
        if self.mean is Mean.ARITHMETIC:
            whole = np.where((rates > 0).all(axis=0), (rates * weights).sum(axis=0), 0.0)
        else:
            with np.errstate(divide="ignore"):
                whole = np.exp((np.log(rates) * weights).sum(axis=0))
        return float(whole) if np.ndim(whole) == 0 else whole

    def needed(self, together: Array, per_model: Array, m: int) -> Array:
        """Rate that model ``m`` needs for the mean to be ``together`` [...], if the others have the rates ``per_model``
        [models, ...]."""
        others = np.delete(per_model, m, axis=0)
        weights = np.delete(np.asarray(self.weights), m).reshape(-1, *([1] * (others.ndim - 1)))
        if self.mean is Mean.ARITHMETIC:
            return np.asarray((together - (others * weights).sum(axis=0)) / self.weights[m])
        with np.errstate(divide="ignore", over="ignore"):
            rest = np.log(together) - (np.log(others) * weights).sum(axis=0)
            return np.asarray(np.exp(rest / self.weights[m]))


def _whole(field_: str, value: Floats) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(field_, value, "must be a whole number of at least 1", "1")
