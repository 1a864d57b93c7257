"""What the journeys answer with: frozen records that tables, figures, pages and JSON are made from."""

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
    from sartor.designs.nearby import Nearby
    from sartor.designs.question import DesignQuestion
    from sartor.designs.result import JointResult, Ranked
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
    from sartor.step.batching import Load, Steady
    from sartor.step.inference import Serving
    from sartor.step.measured import MeasuredRun
    from sartor.step.parts import PricedKernels, Stretch, TracePart
    from sartor.step.run_change import RunChange
    from sartor.step.run_cost import RunCost
    from sartor.step.running import InRun
    from sartor.step.served import Server
    from sartor.step.stage_table import StageRow
    from sartor.step.waterfall import Waterfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, what is asked of it, and on what: the beginning of every journey."""

    reading: ModelReading
    workload: Workload
    dims: ParallelDims
    gpu: Gpu
    assumptions: tuple[str, ...]
    calibration: Calibration | None = None
    """Of the user's own; None: what the catalogue knows of the device."""
    held: HeldPlan | None = None
    """Of training: the job and the plan that the device takes part in."""
    eager: bool = False
    headroom: float = 0.0
    """Of inference: the share of the memory that stays free; a plan has its own."""

    def with_shape(self, shape: TransformerShape) -> Question:
        """The same question of another model of the same kind."""
        return replace(
            self,
            reading=replace(self.reading, shape=shape),
            workload=replace(self.workload, shape=shape),
            held=None if self.held is None else self.held.with_shape(shape),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEstimate:
    """Where the time of a question goes: operators of one pass over a microbatch with their costs, and of training the
    step that they are part of."""

    question: Question
    graph: OperatorGraph
    estimate: Estimate
    layer_time_s: Floats
    """Seconds of one layer (the mean, where layers differ): without embedding and head."""
    priced: PricedPlan | None = None
    """Of training: step and memory of the whole plan."""
    run: InRun | None = None
    """Of training: the device at work in it."""
    serving: Serving | None = None
    """Of inference: memory, and what serving is judged by."""

    @property
    def would_fit(self) -> tuple[Mapping[str, int | str], ...]:
        """Where it does not fit in memory: changes with each of which it would, the best first; searched when asked."""
        held, priced = self.question.held, self.priced
        if self.serving is not None:
            return self.serving.would_fit
        if held is None or priced is None or self.fits:
            return ()
        dims = priced.plan.dims  # of a smaller split, where the model cannot run as asked
        return held.split(tp=int(dims.tp), ep=int(dims.ep), pp=int(dims.pp)).would_fit(self.question.calibration)

    @property
    def peak_bytes(self) -> float:
        """Of the fullest device."""
        if self.serving is not None:
            return self.serving.memory.peak_bytes
        return 0.0 if self.priced is None else float(self.priced.peak_bytes)

    @property
    def usable_bytes(self) -> float:
        """What may be filled of a device's memory."""
        held = self.question.held
        return (1 - self.question.headroom) * usable_of(self.question.gpu) if held is None else held.limit_bytes

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes

    @property
    def interval_parts(self) -> tuple[IntervalPart, ...]:
        """What the operators' interval is made of, and what would narrow it."""
        return interval_parts(self.estimate, self.question.calibration or load_calibration(self.question.gpu))

    @property
    def time_s(self) -> Floats:
        """Of a training step, or of one pass of inference."""
        return self.estimate.time_s if self.priced is None else self.priced.step_s

    @property
    def low_s(self) -> Floats:
        return self.estimate.low_s if self.priced is None else self.priced.low_s

    @property
    def high_s(self) -> Floats:
        return self.estimate.high_s if self.priced is None else self.priced.high_s

    @property
    def source(self) -> Source:
        """As ``plan`` says it of a training step; of a pass, the weakest source of its operators."""
        held = self.question.held
        if held is None:
            return self.estimate.source
        return step_source(held.cluster, held.job.recipe.dtype, self.question.calibration)

    @property
    def mfu(self) -> Floats:
        return self.estimate.mfu if self.priced is None else self.priced.step.mfu

    @property
    def tokens_per_s(self) -> Floats:
        """Of the whole plan that was asked for; of one replica where the number of replicas was assumed."""
        if self.priced is None or self.question.held is None:
            return self.estimate.tokens_per_s
        held = self.question.held
        replicas = int(held.axes["dp"]) if held.assumed else 1
        return held.job.tokens_per_step / self.priced.step_s / replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveAnswer:
    """One collective on a cluster, and its cost."""

    collective: Collective
    cluster: Cluster
    cost: Cost
    members: tuple[int, ...]
    """Of the group in one group of each tier, innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmAnswer:
    """One product, its cost, and every tile that was considered."""

    gemm: Gemm
    gpu: Gpu
    cost: Cost
    alternatives: tuple[GemmAlternative, ...]
    calibration: str = "own"
    """Whose fit its coefficients are, as ``Calibration.owner`` says."""

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
    """What requests see of a server, for each number of sequences in flight."""

    reading: ModelReading
    server: Server
    """Of the answers, and of the prompts too unless ``prefill`` takes them."""
    load: Load
    steady: Steady
    most_sequences: int
    """That all its copies hold at once."""
    num_devices: int
    prefill: Server | None = None
    prefill_workers: int = 0
    decode_workers: int = 1
    would_fit: Mapping[str, int] = field(default_factory=dict)
    """Where not one sequence fits: a change with which one does."""
    assumptions: tuple[str, ...] = ()


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
    """One shape for several phases on all devices, where they were asked for with weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """How to spread a model's training over a cluster: one search for every number of devices asked for."""

    reading: ModelReading
    job: TrainingJob
    cluster: Cluster
    searches: tuple[PlanSearch, ...]
    """In the order the numbers of devices were given."""
    assumptions: tuple[str, ...]
    stages: tuple[StageRow, ...] = ()
    """Pipeline ranks of the best plan."""
    cost: RunCost | None = None
    """Of the token budget under the best plan; None where nothing fits."""
    costs: tuple[RunCost | None, ...] = ()
    """The same of every search's best plan."""
    why_not: WhyNot | None = None
    """The plan that was asked about, beside the best."""
    next_steps: tuple[NextStep, ...] = ()
    """Changes of the job or trainer that would pay under the best plan."""
    roomier: PricedPlan | None = None
    """The fastest plan that leaves a tenth of the memory free, where the best does not."""
    simpler: Simpler | None = None
    """The simplest plan whose step lies inside the best plan's interval; None where that is the best itself."""
    source: Source = Source.ANALYTIC
    calibration: Calibration | None = None

    @property
    def search(self) -> PlanSearch:
        """The search whose plan has the shortest step; the first where none has any."""
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
    """An existing launch, priced: its plan's predicted step and memory, what is wasteful, what was not understood.

    ``framework`` and the three lists are from the file; ``best`` is the fastest plan of the same devices, where it was
    searched for.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDiagnosis:
    """A run by its log, held against the prediction for its plan: what differs, and which fact would explain it."""

    path: str
    trainer: str
    run: int
    """Which of the log's ``num_runs`` runs this is, from 1."""
    num_runs: int
    measured: MeasuredRun
    job: TrainingJob
    cluster: Cluster
    explanations: tuple[Explanation, ...]
    """The plan as it was said, then with single facts changed, the nearest first."""
    conventions: tuple[FlopConvention, ...]
    """How the trainer counts FLOPs: the nearest, and those that cannot be told from it; empty where it prints no rate
    or none comes near."""
    said: Mapping[str, int | str]
    """Facts of plan and job that the log, a launch file or an option gave."""
    best: PricedPlan | None
    """The best plan for the same job and devices, where it was searched and one fits."""
    units: tuple[str, ...]
    """What the trainer's numbers mean."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]
    source: Source

    @property
    def predicted(self) -> PricedPlan:
        """The plan as it was said."""
        return self.explanations[0].priced

    @property
    def mfu(self) -> float:
        """Of the run: the prediction's FLOPs in the measured time."""
        return float(self.predicted.step.mfu) * self.predicted.step_s / self.measured.step_s

    @property
    def deviation(self) -> float:
        """ln(measured / predicted) of the step, in standard deviations of the prediction."""
        ratio = math.log(self.measured.step_s / self.predicted.step_s)
        return ratio / max(float(self.predicted.step.log_sigma), 1e-3)

    @property
    def inside(self) -> bool:
        """The measured step lies in the predicted 80% interval."""
        return self.predicted.low_s <= self.measured.step_s <= self.predicted.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDiagnosis:
    """A profiler trace, divided: where the mean steady step of one rank goes, and what a better run would not spend."""

    path: str
    gpu: str
    """As the trace names its device."""
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
    """By the FLOPs of the operators whose sizes the trace tells; NaN where it tells none."""
    device: str
    """The catalogue's name of what its operators are priced on; empty where nothing is."""
    priced: tuple[PricedKernels, ...]
    """Matrix multiplications and attention with a prediction, most seconds first."""
    priced_share: float
    """Of the time of all of them."""
    median_ratio: float
    """Measured over predicted time of those."""
    predicted: PricedPlan | None
    """Of the plan, where a model and its sizes were given."""
    best: PricedPlan | None
    """The best plan for the same job and devices, where it was searched and one fits."""
    source: Source
    """What the predicted step rests on."""
    stretches: tuple[Stretch, ...]
    """The last step as it ran, for a figure."""
    warnings: tuple[str, ...]
    assumptions: tuple[str, ...]

    @property
    def unknown_share(self) -> float:
        return sum(part.seconds for part in self.parts if part.kind.value == "unknown") / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What changed from run A to run B, and whether it is more than the noise of their steps."""

    kind: str
    """``log`` or ``trace``."""
    a: str
    b: str
    threshold: float
    total: RunChange
    """Seconds of a step; per token where the two runs' steps hold different numbers of tokens."""
    parts: tuple[RunChange, ...] = ()
    """Seconds per step of operators, the largest change first."""
    memory: tuple[RunChange, ...] = ()
    """Bytes: one number per run, so any difference is one."""
    facts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Facts of plan and job that differ: in A, in B."""
    per_token: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def worse(self) -> tuple[RunChange, ...]:
        """What fails a gate: a step that is slower, or memory that is larger, by more than noise and threshold."""
        return tuple(each for each in (self.total, *self.memory) if each.worse(self.threshold))

    @property
    def changed(self) -> bool:
        """Step or memory differ beyond noise and threshold, either way."""
        return any(each.beyond(self.threshold) for each in (self.total, *self.memory))


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignAnswer:
    """Which accelerator and plan go best together for some models: the search with its proof."""

    readings: tuple[ModelReading, ...]
    question: DesignQuestion
    space: AcceleratorSpace
    result: JointResult
    assumptions: tuple[str, ...]
    proved_front: ProvedFront | None = None
    """Over the axes that were asked for; None where none was."""
    against: tuple[Against, ...] = ()
    """Catalogue GPUs on the same jobs, where they were asked for."""
    shapes: ShapeDesign | None = None
    """Shapes of the model's size against chips and plans, where they were asked for."""
    joint: JointShapes | None = None
    """The search over all shapes of the model's size, where it was asked for; ``question`` is then that of the best."""
    warnings: tuple[str, ...] = ()
    """Why to doubt the best chip or to widen its space."""
    nearby: Nearby | None = None
    """How firmly the best stands, where it was asked for."""

    @property
    def best(self) -> Ranked | None:
        return self.result.best

    @property
    def front(self) -> tuple[Ranked, ...]:
        """The proved front; without one, evaluated points that no other beats in objective, area and power at once."""
        if self.proved_front is not None:
            return self.proved_front.points
        from sartor.designs.front import not_dominated

        return not_dominated(self.result.ranked)
