"""Answers of the API functions: frozen records from which tables, figures, pages and JSON are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.gemm import GemmAlternative
from sartor.cost.narrowing import IntervalPart, interval_parts
from sartor.cost.price import Estimate
from sartor.hardware.gpu import Gpu
from sartor.model.parallel import ParallelDims
from sartor.model.reading import ModelReading
from sartor.model.workload import Workload
from sartor.operators import Collective, Gemm, OperatorGraph
from sartor.step.results import step_source
from sartor.step.stage_bytes import usable_of
from sartor.units import Floats

if TYPE_CHECKING:
    from sartor.designs.against import Against
    from sartor.designs.front import ProvedFront
    from sartor.designs.question import DesignQuestion
    from sartor.designs.result import JointResult, Ranked
    from sartor.designs.sensitivity import Nearby
    from sartor.designs.shapes import ShapeDesign
    from sartor.designs.shapes_proved import JointShapes
    from sartor.designs.space import AcceleratorSpace
    from sartor.hardware.cluster import Cluster
    from sartor.model.flop_conventions import FlopConvention
    from sartor.model.shape import TransformerShape
    from sartor.model.training import TrainingJob
    from sartor.plans.explain import Explanation
    from sartor.plans.next import NextStep
    from sartor.plans.result import PlanSearch, PricedPlan
    from sartor.plans.search import HeldPlan
    from sartor.plans.simpler import Simpler
    from sartor.plans.why_not import WhyNot
    from sartor.rules.plan.rule import PlanFinding
    from sartor.rules.rule import Finding
    from sartor.shapes.codesign import CoDesign
    from sartor.shapes.search import ShapeSearch
    from sartor.step.batching import Steady
    from sartor.step.inference import Serving
    from sartor.step.load import Load
    from sartor.step.measured import MeasuredRun
    from sartor.step.parts import PricedKernels, Stretch, TracePart
    from sartor.step.run_change import RunChange
    from sartor.step.run_cost import RunCost
    from sartor.step.running import InRun
    from sartor.step.served import Server, Shortage
    from sartor.step.stage_table import StageRow
    from sartor.step.waterfall import Waterfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, workload, parallelism and device, settled: the input of estimate, lint and advise."""

    reading: ModelReading
    workload: Workload
    dims: ParallelDims
    gpu: Gpu
    assumptions: tuple[str, ...]
    calibration: Calibration | None = None
    """The user's own; None: the catalogue's calibration of the device."""
    held: HeldPlan | None = None
    """Training only: the job and the plan that the device takes part in."""
    eager: bool = False
    headroom: float = 0.0
    """Inference only: the share of memory left free. A training plan has its own."""

    def with_shape(self, shape: TransformerShape) -> Question:
        """The same question about another shape."""
        return replace(
            self,
            reading=replace(self.reading, shape=shape),
            workload=replace(self.workload, shape=shape),
            held=None if self.held is None else self.held.with_shape(shape),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimate:
    """Where the time goes: the operators of one pass over a microbatch with their costs and, in training, the whole
    step."""

    question: Question
    graph: OperatorGraph
    estimate: Estimate
    layer_time_s: Floats
    """Seconds of one layer (the mean, where layers differ): without embedding and head."""
    priced: PricedPlan | None = None
    """Training only: step and memory of the whole plan."""
    run: InRun | None = None
    """Training only: the device's calibration and kernels within that run."""
    serving: Serving | None = None
    """Inference only: memory, and the usual serving metrics."""

    @property
    def would_fit(self) -> tuple[Mapping[str, int | str], ...]:
        """If it does not fit in memory: changes that would each make it fit, best first (searched on access)."""
        held, priced = self.question.held, self.priced
        if self.serving is not None:
            return self.serving.would_fit
        if held is None or priced is None or self.fits:
            return ()
        from sartor.plans.fits import would_fit

        dims = priced.plan.dims  # the plan of a smaller split, where the model cannot run as requested
        return would_fit(held.split(tp=int(dims.tp), ep=int(dims.ep), pp=int(dims.pp)), self.question.calibration)

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the fullest device."""
        if self.serving is not None:
            return self.serving.memory.peak_bytes
        return 0.0 if self.priced is None else float(self.priced.peak_bytes)

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that may be used."""
        held = self.question.held
        return (1 - self.question.headroom) * usable_of(self.question.gpu) if held is None else held.limit_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes

    @property
    def interval_parts(self) -> tuple[IntervalPart, ...]:
        """The contributions to the operators' interval, and what would narrow each."""
        return interval_parts(self.estimate, self.question.calibration or load_calibration(self.question.gpu))

    @property
    def time_s(self) -> Floats:
        """Seconds of a training step, or of one inference pass."""
        return self.estimate.time_s if self.priced is None else self.priced.step_s

    @property
    def low_s(self) -> Floats:
        return self.estimate.low_s if self.priced is None else self.priced.low_s

    @property
    def high_s(self) -> Floats:
        return self.estimate.high_s if self.priced is None else self.priced.high_s

    @property
    def source(self) -> Source:
        """Training: the source ``plan`` reports for the step. Inference: the weakest source of any operator."""
        held = self.question.held
        if held is None:
            return self.estimate.source
        return step_source(held.cluster, held.job.recipe.dtype, self.question.calibration)

    @property
    def mfu(self) -> Floats:
        return self.estimate.mfu if self.priced is None else self.priced.step.mfu

    @property
    def tokens_per_s(self) -> Floats:
        """Tokens per second of all devices of a training plan; in inference of one replica."""
        if self.priced is None or self.question.held is None:
            return self.estimate.tokens_per_s
        return self.question.held.job.tokens_per_step / self.priced.step_s

    @property
    def tokens_per_s_per_device(self) -> Floats:
        """The same over the devices of the plan; in inference over those of one replica."""
        dims = self.question.dims
        if self.priced is None:
            return self.tokens_per_s / (int(dims.tp) * int(dims.pp))
        return self.priced.step.tokens_per_s_per_device


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAnswer:
    """One collective on a cluster, and its cost."""

    collective: Collective
    cluster: Cluster
    cost: Cost
    members: tuple[int, ...]
    """At each tier, innermost first: members of the group within one group of that tier."""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmAnswer:
    """One GEMM, its cost, and every tile that was considered."""

    gemm: Gemm
    gpu: Gpu
    cost: Cost
    alternatives: tuple[GemmAlternative, ...]
    calibration: str = "own"
    """Which device its coefficients were fitted on (``Calibration.owner``)."""
    assumptions: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> float:
        """Both operands and the result."""
        return float(self.gemm.bytes_moved)

    @property
    def usable_bytes(self) -> float:
        return usable_of(self.gpu)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingAnswer:
    """Latency and throughput of a server, for each number of sequences in flight."""

    reading: ModelReading
    server: Server
    """Serves decoding, and prefill too unless ``prefill`` is set."""
    load: Load
    steady: Steady
    most_sequences: int
    """Sequences halfway through their answers that fit in the memory of all copies together."""
    num_devices: int
    prefill: Server | None = None
    prefill_workers: int = 0
    decode_workers: int = 1
    would_fit: Mapping[str, int | str] = field(default_factory=dict)
    """If not even one sequence fits: a change with which one does."""
    shortages: tuple[Shortage, ...] = ()
    """What servers lack that don't hold one sequence: those for prompts of their own, then those for answers."""
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.shortages


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """What the rules found, worst first."""

    base: ModelEstimate
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The verdict: where the time goes, what is wasteful, and same-size shapes that are faster."""

    base: ModelEstimate
    gpus: tuple[Gpu, ...]
    findings: tuple[Finding, ...]
    search: ShapeSearch
    after: ModelEstimate | None
    """The recommended shape's own estimate; None when nothing beats the baseline."""
    codesign: CoDesign | None = None
    """One shape for several phases on all devices, if the objective has weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """How to spread a model's training over a cluster: one search for each requested number of devices."""

    reading: ModelReading
    job: TrainingJob
    cluster: Cluster
    searches: tuple[PlanSearch, ...]
    """In the order the numbers of devices were given."""
    assumptions: tuple[str, ...]
    stages: tuple[StageRow, ...] = ()
    """Pipeline ranks of the best plan."""
    cost: RunCost | None = None
    """Cost of the token budget under the best plan; None if no plan fits."""
    costs: tuple[RunCost | None, ...] = ()
    """The same for the best plan of every search."""
    why_not: WhyNot | None = None
    """The plan given in ``why_not``, compared with the best."""
    next_steps: tuple[NextStep, ...] = ()
    """Changes of the job or trainer that would speed up the best plan."""
    roomier: PricedPlan | None = None
    """The fastest plan that leaves 10% of memory free, if the best does not."""
    simpler: Simpler | None = None
    """The simplest plan about as fast as the best (`sartor.plans.simpler.CLOSE`); None if that is the best."""
    source: Source = Source.ANALYTIC
    calibration: Calibration | None = None

    @property
    def search(self) -> PlanSearch:
        """The search whose best plan has the shortest step; the first search if no plan fits."""
        found = [each for each in self.searches if each.best is not None]
        return min(found, key=lambda each: each.best.step_s if each.best else 0.0) if found else self.searches[0]

    @property
    def best(self) -> PricedPlan | None:
        return self.search.best

    @property
    def front(self) -> tuple[PricedPlan, ...]:
        """Plans of all searches that no other beats in step time, memory and devices at once, fastest first."""
        from sartor.plans.front import front_over_devices

        return front_over_devices(self.searches)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchAnswer:
    """An existing launch, priced: predicted step and memory of its plan, what is wasteful, what was not understood.

    ``framework`` and the three lists are from the file; ``best`` is the fastest plan on the same devices, if searched.
    """

    path: str
    framework: str
    job: TrainingJob
    cluster: Cluster
    priced: PricedPlan
    fits: bool
    usable_bytes: float
    memory: Waterfall
    findings: tuple[PlanFinding, ...]
    unknown: tuple[str, ...]
    unpriced: tuple[str, ...]
    ignored: tuple[str, ...]
    assumptions: tuple[str, ...]
    search: PlanSearch | None = None
    source: Source = Source.ANALYTIC
    """What the predicted times rest on."""
    runs: bool = True
    """Whether the trainer can run it, if it fits."""
    headroom: float = 0.0
    """Share of usable memory that stays free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiagnosis:
    """A run's log compared with the prediction for its plan: what differs, and which changed fact would explain it."""

    path: str
    trainer: str
    run: int
    """Which of the log's ``num_runs`` runs this is, from 1."""
    num_runs: int
    measured: MeasuredRun
    job: TrainingJob
    cluster: Cluster
    explanations: tuple[Explanation, ...]
    """The plan as given, then with one fact changed each, the best match first."""
    conventions: tuple[FlopConvention, ...]
    """How the trainer counts FLOPs: the best match and those equally good; empty if the log has no rate or none
    matches."""
    said: Mapping[str, int | str]
    """Facts of plan and job that the log, a launch file or an option gave."""
    best: PricedPlan | None
    """The best plan for the same job and devices, if it was searched for and one fits."""
    units: tuple[str, ...]
    """What the trainer's numbers mean."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    source: Source
    stalls: str = ""
    """How often slow steps come that count, and how long they take."""

    @property
    def predicted(self) -> PricedPlan:
        """The plan as given."""
        return self.explanations[0].priced

    @property
    def mfu(self) -> float:
        """MFU of the run: the prediction's FLOPs over the measured time."""
        return float(self.predicted.step.mfu) * self.predicted.step_s / self.measured.step_s

    @property
    def deviation(self) -> float:
        """ln(measured / predicted) of the step without stalls, in standard deviations of the prediction."""
        ratio = math.log(self.measured.stall_free_s / self.predicted.step_s)
        return ratio / max(float(self.predicted.step.log_sigma), 1e-3)

    @property
    def inside(self) -> bool:
        """Whether the measured step without stalls lies in the predicted 80% interval."""
        return self.predicted.low_s <= self.measured.stall_free_s <= self.predicted.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiagnosis:
    """A profiler trace divided into parts: where the mean steady step of one rank goes, and what could be saved."""

    path: str
    gpu: str
    """The device's name in the trace."""
    rank: int | None
    num_ranks: int
    """Ranks whose traces were read."""
    world_size: int | None
    step_s: float
    num_steps: int
    span_s: float
    parts: tuple[TracePart, ...]
    """Their seconds add up to ``step_s``."""
    losses: tuple[TracePart, ...]
    """The parts worth a change, the largest gain first."""
    mfu: float
    """From the FLOPs of the operators that have sizes in the trace; NaN if none has."""
    device: str
    """Catalogue name of the device on which its operators are priced; empty if none are."""
    priced: tuple[PricedKernels, ...]
    """Matrix multiplications and attention with a prediction, most seconds first."""
    priced_share: float
    """Share of the time of all matrix multiplications and attention that has a prediction."""
    median_ratio: float
    """Median of measured over predicted time."""
    predicted: PricedPlan | None
    """Prediction for the plan, if a model and its sizes were given."""
    best: PricedPlan | None
    """The best plan for the same job and devices, if it was searched for and one fits."""
    source: Source
    """What the predicted step rests on."""
    stretches: tuple[Stretch, ...]
    """The intervals of the last step, for a figure."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def unknown_share(self) -> float:
        return sum(part.seconds for part in self.parts if part.kind.value == "unknown") / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What changed from run A to run B, and whether it exceeds the noise of their steps."""

    kind: str
    """``log`` or ``trace``."""
    a: str
    b: str
    threshold: float
    total: RunChange
    """Seconds per step; per token if the two runs' steps hold different numbers of tokens."""
    parts: tuple[RunChange, ...] = ()
    """Seconds per step of operators, the largest change first; of logs with stalls, usual steps and stalls."""
    memory: tuple[RunChange, ...] = ()
    """Bytes: one number per run, so any difference counts."""
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Facts of plan and job that differ, as (in A, in B)."""
    per_token: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[RunChange, ...]:
        """Changes that fail a gate: a slower step or larger memory, beyond noise and threshold."""
        return tuple(each for each in (self.total, *self.memory) if each.worse(self.threshold))

    @property
    def changed(self) -> bool:
        """Whether step time or memory differ beyond noise and threshold, either way."""
        return any(each.beyond(self.threshold) for each in (self.total, *self.memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignAnswer:
    """Which accelerator and plan go best together for some models: the search and its proof."""

    readings: tuple[ModelReading, ...]
    question: DesignQuestion
    space: AcceleratorSpace
    result: JointResult
    assumptions: tuple[str, ...]
    proved_front: ProvedFront | None = None
    """Over the axes of ``pareto``; None if none were given."""
    against: tuple[Against, ...] = ()
    """Catalogue GPUs on the same jobs, if requested."""
    shapes: ShapeDesign | None = None
    """Shapes of the model's size against chips and plans, if requested."""
    joint: JointShapes | None = None
    """The search over all shapes of the model's size, if requested; ``question`` is then that of the best shape."""
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the best chip or to widen the space."""
    nearby: Nearby | None = None
    """How sensitive the best point is to its axes and rates, if requested."""

    @property
    def best(self) -> Ranked | None:
        return self.result.best

    @property
    def front(self) -> tuple[Ranked, ...]:
        """The proved front; without one, evaluated points not dominated in objective, area and power."""
        if self.proved_front is not None:
            return self.proved_front.points
        from sartor.designs.front import not_dominated

        return not_dominated(self.result.ranked)
