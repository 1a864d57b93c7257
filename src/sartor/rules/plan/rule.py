"""A plan rule's input, its suspicion with remedies, and what a priced suspicion becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from dataclasses import field as default
from typing import Any

from sartor.cost.correction.calibration import Calibration
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonMap
from sartor.model.plan import AXES
from sartor.model.training import PipelineSchedule, TrainingJob, TrainingPlan
from sartor.rules.rule import Grade
from sartor.step.footprint import footprint, usable_bytes
from sartor.step.results import Footprint, StepEstimate
from sartor.step.step import step as step_of

ONE_F_ONE_B = PipelineSchedule.ONE_F_ONE_B


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """A job and one plan of it on a cluster, with its predicted step and memory. Raises ``InputError`` for a plan that
    the model or schedule does not allow."""

    job: TrainingJob
    plan: TrainingPlan
    cluster: Cluster
    step: StepEstimate = default(init=False)
    footprint: Footprint = default(init=False)
    calibration: Calibration | None = None
    best: Remedy | None = None
    """The best plan for the same devices, if a search found one."""
    headroom: float = 0.0
    """Share of usable memory that stays free."""
    own_margin: bool = False
    """It is stated, so a peak that does not leave it free does not fit."""
    broken: tuple[str, ...] = ()
    """Why the trainer cannot run the plan."""
    runs: Callable[[TrainingJob, TrainingPlan], bool] = lambda job, plan: True
    """Whether the trainer can run a changed job and plan."""
    batch_follows: bool = False
    """Whether nothing states the global batch, so that it changes with the microbatch and the number of replicas."""
    unpriced: tuple[str, ...] = ()
    """Switches of the launch without a price that may turn whether it fits."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", step_of(self.job, self.plan, self.cluster, self.calibration))
        object.__setattr__(self, "footprint", footprint(self.job, self.plan, self.cluster))

    @property
    def step_s(self) -> float:
        return float(self.step.step_s)

    @property
    def fits(self) -> bool:
        return float(self.footprint.device_bytes) <= self.limit_bytes

    @property
    def limit_bytes(self) -> float:
        """Bytes that a plan may use on one device."""
        return (1 - self.headroom) * usable_bytes(self.cluster)

    @property
    def node(self) -> int:
        """Devices that share the fastest links."""
        return self.cluster.tiers[0].span or self.cluster.devices_per_node

    def share(self, part: str) -> float:
        """A part of the step (``tp_s``, ``pp_bubble_s``, ...) as a share of it."""
        return float(self.step.parts[part]) / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Fields to change with their new values, and the resulting plan (and job)."""

    fix: JsonMap
    plan: TrainingPlan
    job: TrainingJob | None = None
    """The changed job, if a trainer switch changes it; None: the same job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSuspicion:
    """A rule's complaint before it is priced; pricing takes the remedy that saves most."""

    grade: Grade
    message: str
    field: str
    value: Any
    remedies: tuple[Remedy, ...] = ()
    blocking: bool = False
    """The plan cannot run: reported whatever the gain; a remedy makes it run."""
    frees_memory: bool = False
    """The remedy is worth it for the memory it frees, even if it costs a little time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFinding:
    """A suspicion with its price. ``gain_s`` is the time the fix saves per step; None if the plan cannot run."""

    rule: str
    code: str
    grade: Grade
    message: str
    field: str
    value: Any
    gain_s: float | None
    gain_fraction: float | None
    fix: JsonMap = default(default_factory=dict)
    saves_bytes: float = 0.0
    """On the device that needs most memory."""
    step_s: float | None = None
    """Predicted with the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """One kind of waste in a plan; ``page`` is its documentation, in Markdown."""

    code: str
    check: Callable[[PlanContext], Iterable[PlanSuspicion]]
    page: str

    @property
    def name(self) -> str:
        return self.check.__name__


# -- remedies -----------------------------------------------------------------------------------------------------


def changed(context: PlanContext, **fields: Any) -> Iterator[Remedy]:
    """The plan with some fields or degrees changed, on the same devices and batch; data parallelism makes up the
    difference. Without a pipeline there are no chunks and no schedule. Yields nothing if the sizes do not divide."""
    plan, job = context.plan, context.job
    if fields.get("pp") == 1:
        fields |= {} if int(plan.virtual_stages) == 1 else {"virtual_stages": 1}
        fields |= {} if plan.schedule == ONE_F_ONE_B else {"schedule": ONE_F_ONE_B}
    new = plan.with_columns(**fields)
    devices, d, size = int(plan.num_devices), new.dims, int(new.microbatch_size)
    model = int(d.tp) * int(d.pp) * int(d.cp)
    if devices % model or job.global_batch_size % (devices // model * size):
        return
    dp = devices // model
    if dp * int(d.cp) * int(d.tp) % (int(d.ep) * int(job.trainer.expert_tp(d.tp, d.ep))):
        return
    cuts = new.stage_layers if int(d.pp) == plan.dims.pp and "virtual_stages" not in fields else None
    new = new.with_columns(dp=dp, num_microbatches=job.global_batch_size // (dp * size), stage_layers=cuts)
    fixed = {**fields, **({"dp": dp} if dp != plan.dims.dp else {})}
    yield Remedy(
        fix={name: _word(value) for name, value in fixed.items() if name != "recompute_layers" or value >= 0}, plan=new
    )


def best_remedy(best: TrainingPlan, launched: TrainingPlan) -> Remedy:
    """The best plan as a remedy: every field in which it differs from the one launched."""
    old, new = (
        {name: row.shown(int(plan.columns[name])) for name, row in AXES.items()}
        | {"num_microbatches": int(plan.num_microbatches)}
        for plan in (launched, best)
    )
    cuts = {} if best.stage_layers in (None, launched.stage_layers) else {"stage_layers": _word(best.stage_layers)}
    alike = {"sequence_parallel"} if best.dims.tp == 1 else set()
    return Remedy(fix={n: new[n] for n in new if n not in alike and new[n] != old[n]} | cuts, plan=best)


def switched(context: PlanContext, **switches: Any) -> Iterator[Remedy]:
    """The same plan with a trainer switch set."""
    job = replace(context.job, trainer=replace(context.job.trainer, **switches))
    yield Remedy(fix=dict(switches), plan=context.plan, job=job)


def _word(value: object) -> Any:
    return value.word if hasattr(value, "word") else list(value) if isinstance(value, tuple) else value
