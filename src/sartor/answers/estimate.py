"""``estimate``, ``gemm`` and ``collective``: their records, and the table of fields of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sartor.answers.field import (
    Answer,
    Fields,
    Level,
    MapOf,
    Scalar,
    field,
    flag,
    integer,
    integers,
    mapping,
    number,
    numbers,
    rows,
    text,
    texts,
    through,
)
from sartor.answers.plan import BATCH, CANNOT_RUN, COST_OF_STEP, DEPENDS_ON, INTERVAL, PRICED, VALUE, Divided, Sourced
from sartor.cost.collective.links import volume
from sartor.cost.correction.calibration import ANY, Calibration, load_calibration
from sartor.cost.cost import Cost, Source
from sartor.cost.gpu.gemm import GemmAlternative
from sartor.cost.price import Estimate
from sartor.cost.uncertainty import IntervalPart, interval_parts
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import Kernels
from sartor.model.workload import ModelReading, ParallelDims, Phase, Workload
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, MemoryBound, Operator, OperatorGraph, kind_name
from sartor.run.fields import Run, Turn
from sartor.step.footprint import fit_probability, in_doubt, usable_of
from sartor.step.question import padded_vocab
from sartor.step.results import step_source
from sartor.step.run_cost import RunCost, run_cost
from sartor.units import Floats

if TYPE_CHECKING:
    from sartor.hardware.cluster import Cluster
    from sartor.model.shape import TransformerShape
    from sartor.plans.next import DividedBatch
    from sartor.plans.result import PricedPlan
    from sartor.plans.search import HeldPlan
    from sartor.rules.plan.rule import PlanFinding
    from sartor.step.coefficients import InRun
    from sartor.step.serving.engines import Engine
    from sartor.step.serving.inference import Room, Serving


# ------------------------------------------------------------------------------------------------ one operator


def _problem_size(op: Operator) -> tuple[Any, Any, Any, Any]:
    """(batch, m, n, k) of a GEMM; attention as its score GEMM; rows and columns of a memory-bound kernel."""
    if isinstance(op, Gemm):
        return op.batch, op.m, op.n, op.k
    if isinstance(op, GroupedGemm):
        return op.groups, op.rows, op.n, op.k
    if isinstance(op, Attention):
        return op.batch * op.num_heads, op.seq_q, op.seq_kv, op.head_dim
    if isinstance(op, MemoryBound):
        return None, op.rows, op.cols, None
    assert isinstance(op, Collective)
    return op.group_size, None, None, None


def bus_bytes_per_s(op: Collective, cost: Cost) -> Floats:
    """Bus bandwidth as in nccl-tests: bytes that leave a device in a ring, over the time."""
    shares: Floats = volume(op.kind, np.asarray(op.group_size, dtype=np.float64))
    return shares * op.message_bytes / np.maximum(cost.time_s, 1e-30)


def _residual(cost: Cost) -> Floats | None:
    return cost.learned if {"residual", "own_rows"} & set(cost.details) else None


def _detail(name: str) -> Any:
    return lambda pair: pair[1].details.get(name)


_SIZES = ("batch", "m", "n", "k")
OPERATOR: Fields = (
    text("name", "operator", path=lambda pair: pair[0].name),
    text("kind", "kind", path=lambda pair: kind_name(pair[0])),
    text("pass", "pass", path=lambda pair: pair[0].pass_),
    number("count", "count", path=lambda pair: pair[0].count, help="executions in one step"),
    *(
        number(size, path=lambda pair, i=i: _problem_size(pair[0])[i], null=True, help="of C[m,n] = A[m,k] B[k,n]")
        for i, size in enumerate(_SIZES)
    ),
    *through(lambda pair: pair[0], numbers("flops bytes_moved")),
    *through(lambda pair: pair[1], INTERVAL),
    *through(lambda pair: pair[1], numbers("compute_s memory_s overhead_s network_s")),
    text("bound_by", "bound by", path=lambda pair: pair[1].bound_by, help="the largest term"),
    *(
        number(name, path=_detail(name), null=True)
        for name in ("tile_m", "tile_n", "waves", "tile_efficiency", "wave_efficiency")
    ),
    number("residual", path=lambda pair: _residual(pair[1]), null=True, help="measured over analytic time"),
    text("source", "source", path=lambda pair: pair[1].stated_source, help="measured, calibrated or analytic"),
)
"""One operator and its cost: kind, size, and the time and terms of one execution; reads a pair (operator, cost)."""
TILE: Fields = (
    integer("tile_m", "tile m"),
    integer("tile_n", "tile n"),
    integer("split_k", "split k"),
    integer("waves", "waves", form="{:.0f}".format),
    number("time_s", "time"),
    number("compute_s", "compute"),
    number("memory_s", "memory"),
    number("overhead_s", "overhead"),
    number("tile_efficiency", "tile eff", unit="share", help="useful share of the tiles"),
    number("wave_efficiency", "wave eff", unit="share", help="useful share of the waves"),
    number("alignment", "alignment", unit="share", help="speed that the operands' alignment allows"),
)
GEMM: Fields = (
    text("gpu", "GPU", path="gpu.name", level=Level.HEADLINE),
    text("dtype", path="gemm.dtype"),
    text("layout", path="gemm.layout"),
    *through(lambda answer: (answer.gemm, answer.cost), OPERATOR),
    number("achieved_flops_per_s", path=lambda answer: answer.gemm.flops / answer.cost.time_s),
    text("calibration", help="the device whose measurements its coefficients are fitted to"),
    flag("fits"),
    number("peak_bytes"),
    rows("tiles", TILE, path="alternatives", help="all tiles considered, best first"),
    rows("assumptions", Scalar.TEXT),
    DEPENDS_ON,
)
GROUP_TIER: Fields = (
    text("name", "over", path=lambda pair: pair[0].name),
    number("link_bytes_per_s", "per device", path=lambda pair: pair[0].bytes_per_s),
    integer("members", "devices", path=lambda pair: pair[1], help="of the group, within one of this tier"),
)
"""A link tier and the members of a group within it."""
COLLECTIVE: Fields = (
    text("cluster", "cluster", path="cluster.name", level=Level.HEADLINE),
    text("gpu", path="cluster.gpu.name"),
    text("library", path="collective.library"),
    *through("collective", (*integers("group_size stride"), flag("alone"), number("message_bytes"))),
    *through(lambda answer: (answer.collective, answer.cost), OPERATOR),
    number("busbw_bytes_per_s", path=lambda answer: bus_bytes_per_s(answer.collective, answer.cost)),
    rows("tiers", GROUP_TIER, path=lambda answer: list(zip(answer.cluster.tiers, answer.members, strict=True))),
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GemmAnswer(Answer):
    """One GEMM, its cost, and every tile that was considered."""

    fields: ClassVar[Fields] = GEMM
    subject: ClassVar[Fields] = (
        text("size", "GEMM", path=lambda answer: " x ".join(str(n) for n in _problem_size(answer.gemm)[1:])),
        number("time_s", "time", path="cost.time_s"),
        text("bound_by", "bound by", path="cost.bound_by"),
    )
    gemm: Gemm
    gpu: Gpu
    cost: Cost
    alternatives: tuple[GemmAlternative, ...]
    calibration: str = "own"
    """Which device its coefficients were fitted on (``Calibration.owner``)."""
    assumptions: tuple[str, ...] = ()
    depends_on: tuple[Turn, ...] = ()
    """Other plausible values of what a chip's file leaves out that would change the time."""

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CollectiveAnswer(Answer):
    """One collective on a cluster, and its cost."""

    fields: ClassVar[Fields] = COLLECTIVE
    subject: ClassVar[Fields] = (
        text("kind", "collective", path="collective.kind"),
        integer("group_size", "devices", path="collective.group_size"),
        number("time_s", "time", path="cost.time_s"),
    )
    collective: Collective
    cluster: Cluster
    cost: Cost
    members: tuple[int, ...]
    """At each tier, innermost first: members of the group within one group of that tier."""
    assumptions: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------ a model


FACT: Fields = (
    text("name", "field", path=lambda fact: fact[0]),
    *through(lambda fact: fact[1], (replace(VALUE[0], words="value", level=Level.TABLE), *VALUE[1:])),
)
"""A field of a run with its value; reads a pair (name, value)."""
ASKED: Fields = (
    text("model", "model", path="reading.shape.name", level=Level.HEADLINE),
    text("gpu", "GPU", path="gpu.name", level=Level.HEADLINE),
    text("phase", "phase", path="workload.phase", level=Level.HEADLINE),
    rows("run", FACT, path=lambda question: list(question.run.facts.items()), help="every value, with its origin"),
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Question(Answer):
    """A model, workload, parallelism and device, settled: the input of estimate, lint and advise."""

    fields: ClassVar[Fields] = ASKED
    reading: ModelReading
    run: Run
    """Every value of the finished run, with its origin."""
    workload: Workload
    dims: ParallelDims
    gpu: Gpu
    assumptions: tuple[str, ...]
    calibration: Calibration | None = None
    """The user's own, or in inference that of kernels in their engine; None: the catalogue's of the device."""
    engine: Engine | None = None
    """Inference only: the serving engine that runs the pass; None: a model's own code."""
    held: HeldPlan | None = None
    """Training only: the job and the plan that the device takes part in."""
    eager: bool = False
    headroom: float = 0.0
    """Inference only: the share of memory left free. A training plan has its own."""
    depends_on: tuple[Turn, ...] = ()
    """Other plausible values of what was not stated that would turn the verdict."""
    plan_findings: tuple[PlanFinding, ...] = ()
    """Of a launch file: what the rules find in its plan; of a pass: why its serving engine does not start it."""

    @property
    def room(self) -> Room:
        """Inference only: what divides the device's memory."""
        from sartor.step.serving.inference import Room

        return Room(gpu=self.gpu, engine=self.engine, headroom=self.headroom)

    @property
    def open_engine(self) -> bool:
        """Whether a serving engine runs the pass that was not named and could be another."""
        return self.engine is not None and bool(self.run.facts["kernels"].alternatives)

    @property
    def kernels(self) -> Kernels:
        """What runs an inference pass: the engine's kernels, or those of a model's own code."""
        if self.engine is None:
            return Kernels(fused=not self.eager)
        return self.engine.kernels

    @property
    def trained_shape(self) -> TransformerShape:
        """The shape with the vocabulary that the trainer pads for the stated degrees."""
        return self.trained(self.workload.shape)

    def trained(self, shape: TransformerShape) -> TransformerShape:
        """Another shape, or an array of them, with the vocabulary that the trainer pads for the stated degrees."""
        if self.held is None:
            return shape
        return replace(shape, vocab_size=padded_vocab(shape, self.held.job.trainer, self.dims.tp))

    def with_shape(self, shape: TransformerShape) -> Question:
        """The same question about another shape."""
        return replace(
            self,
            reading=replace(self.reading, shape=shape),
            workload=replace(self.workload, shape=shape),
            held=None if self.held is None else self.held.with_shape(shape),
        )


def _trains(answer: ModelEstimate) -> bool:
    return answer.question.held is not None


def _infers(answer: ModelEstimate) -> bool:
    return not _trains(answer)


def _kernels(answer: ModelEstimate) -> str | None:
    """For inference, the framework whose kernels run, if known."""
    calibration = answer.question.calibration
    return calibration.kernels if calibration and calibration.kernels not in ("", ANY) else None


MODEL: Fields = (
    text("name", path="reading.shape.name"),
    text("model_type", path=lambda question: question.reading.shape.model_type or None, null=True),
    *through("reading", (*numbers("num_params num_active_params text_params", null=True), flag("exact"))),
    rows(
        "unread_sizes",
        Scalar.TEXT,
        path="reading.unread_sizes",
        help="entries of the config that name a size and were not read",
    ),
    rows("assumptions", Scalar.TEXT),
    mapping("", Scalar.INTEGER, path=lambda question: question.reading.shape.fields()),
)
WORKLOAD: Fields = (
    text("gpu", path="question.gpu.name"),
    *through("question.workload", (*texts("phase dtype"), *integers("microbatch_size seq_len context_len"))),
    text("attention", path="question.workload.attention_kernel"),
    *through("question.dims", integers("tp pp ep")),
    integer("tokens", path="question.workload.tokens"),
    text("cluster", path="question.held.cluster.name", when=_trains),
    text("kernels", path=_kernels, null=True, when=_infers),
    integer("num_devices", path=lambda answer: _num_devices(answer)),
    integer("global_batch_size", path="question.held.job.global_batch_size", when=_trains),
)


QUESTION: Fields = (
    mapping("run", VALUE, path="run.facts", help="every value of the run, with its origin"),
    DEPENDS_ON,
)


def _num_devices(answer: ModelEstimate) -> int:
    """Of the whole plan in training, of one replica in inference."""
    held, dims = answer.question.held, answer.question.dims
    return int(dims.num_devices) if held is None else held.num_devices


def _decodes(answer: ModelEstimate) -> bool:
    return answer.serving is not None and answer.question.workload.phase is Phase.DECODE


def _prefills(answer: ModelEstimate) -> bool:
    return answer.serving is not None and answer.question.workload.phase is not Phase.DECODE


def _serves(answer: ModelEstimate) -> bool:
    return answer.serving is not None


def _is_priced(answer: ModelEstimate) -> bool:
    return answer.question.held is not None and answer.priced is not None


FIT: Fields = (
    flag("fits", "fits", null=True, help="null: unknown, sizes of the config were not read"),
    flag("near_limit", help="the peak is closer to the limit than the error of its prediction"),
    number("peak_bytes", "memory", help="of the fullest device"),
    number("usable_bytes"),
    number("fit_probability", null=True, help="probability that a training run fits"),
    number("headroom", path=lambda answer: 1 - answer.peak_bytes / answer.usable_bytes),
    rows("would_fit", MapOf(Scalar.ANY), help="changes that would each make it fit"),
)
"""Whether the fullest device has enough memory, and changes that would each make it fit."""
_TWICE = ("low_s", "high_s", "source", "mfu", "peak_bytes")
STEP_OF_ESTIMATE: Fields = tuple(
    replace(column, when=_is_priced)
    for column in through(lambda answer: Sourced(answer.priced, answer.source), PRICED)
    if column.name not in _TWICE
)
"""For training, the plan and its step, as in the JSON of `plan`."""
ENGINE_MEMORY: Fields = (
    number("param_bytes"),
    number("workspace_bytes", help="of the largest step that the engine keeps memory for"),
    number("context_bytes", help="CUDA context, libraries, NCCL, graphs, as far as the engine counts them"),
    number("kv_room_bytes", help="for keys and values; negative if the rest does not fit"),
    integer("kv_tokens", path=lambda memory: int(memory.kv_tokens), help="every layer in full, as engines log it"),
)
"""How an engine divides the memory of one device."""
SERVED_MEMORY: Fields = (*ENGINE_MEMORY, number("kv_cache_bytes", help="of the pass"))
SERVED: Fields = (
    number("step_s", path="time_s", when=_serves),
    number("tokens_per_s_per_device", when=_serves),
    number("bandwidth_utilization", path="serving.bandwidth_utilization", when=_serves, help="share of HBM bandwidth"),
    number("time_per_output_token_s", path="time_s", when=_decodes),
    number("knee_microbatch_size", path="serving.knee", null=True, when=_decodes),
    number("time_to_first_token_s", path="time_s", when=_prefills),
    number("kv_cache_bytes_per_sequence", path="serving.memory.kv_cache_bytes_per_sequence", when=_serves),
    integer("max_microbatch_size", path="serving.most_sequences", when=_serves),
    integer("longest_tokens", path="serving.longest_tokens", when=_serves, help="of one sequence alone"),
    field("memory", SERVED_MEMORY, path="serving.memory", when=_serves),
)
"""For inference, the memory of one device, and the usual metrics of decoding and prefill."""
TOTALS: Fields = (
    number("layer_time_s", help="of one layer, without embedding and head"),
    *INTERVAL,
    text("source", help="what the times rest on"),
    number("microbatch_s", path="microbatch.time_s"),
    number("formula_time_s", path="microbatch.formula_time_s", help="without what measurements add"),
    number("flops", path="microbatch.matmul_flops"),
    *numbers("tokens_per_s mfu"),
    *STEP_OF_ESTIMATE,
    COST_OF_STEP,
    *SERVED,
    *FIT,
)
"""Totals of a training step or an inference pass, and of one microbatch."""
TOTALS_WITHOUT_REMEDIES: Fields = tuple(
    replace(column, read=lambda answer: []) if column.name == "would_fit" else column for column in TOTALS
)
"""The same without the search for changes that would make it fit."""
INTERVAL_PART: Fields = (
    text("kind"),
    number("share"),
    *texts("source narrows"),
    rows("kernels", Scalar.TEXT),
    number("log_sigma_without"),
)
BATCHES = rows("batches", BATCH, help="global batches next to this one, which the devices do not divide, if faster")
ESTIMATE: Fields = (
    field("model", MODEL, path="question"),
    field("workload", WORKLOAD, path=lambda answer: answer),
    *through("question", QUESTION),
    rows("operators", OPERATOR, path=lambda answer: answer.pairs),
    field("totals", TOTALS, path=lambda answer: answer),
    rows("interval_parts", INTERVAL_PART, help="contributions to the operators' interval"),
    BATCHES,
    *CANNOT_RUN,
)


SUBJECT: Fields = (
    text("model", "model", path="question.reading.shape.name"),
    text("gpu", "GPU", path="question.gpu.name"),
    number("time_s", "time"),
    number("peak_bytes", "memory"),
    flag("fits", "fits", null=True),
    text("cannot_run", "as stated it cannot run:", when=lambda answer: bool(answer.cannot_run)),
)
"""What a repr says of an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ModelEstimate(Answer):
    """Where the time goes: the operators of one pass over a microbatch with their costs and, in training, the whole
    step."""

    fields: ClassVar[Fields] = ESTIMATE
    subject: ClassVar[Fields] = SUBJECT
    question: Question
    graph: OperatorGraph
    microbatch: Estimate
    """The device's operators of one microbatch, forward and backward; in inference the pass."""
    layer_time_s: Floats
    """Seconds of one layer (the mean, where layers differ): without embedding and head."""
    priced: PricedPlan | None = None
    """Training only: step and memory of the whole plan."""
    run: InRun | None = None
    """Training only: the device's calibration and kernels within that run."""
    serving: Serving | None = None
    """Inference only: memory, and the usual serving metrics."""
    cannot_run: str = ""
    """Why the model cannot run with the stated degrees: they do not divide it. Then this is the estimate at the largest
    smaller split at which it can."""
    divided: tuple[Divided, ...] = ()
    """What would run instead, the nearest first."""
    batches: tuple[DividedBatch, ...] = ()
    """Training only: global batches next to this one, which the devices do not divide, that train faster."""

    @property
    def pairs(self) -> list[tuple[Operator, Cost]]:
        """Every operator with its cost."""
        return list(zip(self.graph.operators, self.microbatch.costs, strict=True))

    @property
    def would_fit(self) -> tuple[Mapping[str, int | str], ...]:
        """If it does not fit in memory: changes that would each make it fit, best first (searched on access)."""
        held, priced = self.question.held, self.priced
        if self.serving is not None:
            return self.serving.would_fit
        if held is None or priced is None or self.fits is not False:
            return ()
        from sartor.plans.next import would_fit

        dims = priced.plan.dims  # the plan of a smaller split, where the model cannot run as requested
        return would_fit(held.split(tp=int(dims.tp), ep=int(dims.ep), pp=int(dims.pp)), self.question.calibration)

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the fullest device."""
        if self.serving is not None:
            return float(self.serving.memory.peak_bytes)
        return 0.0 if self.priced is None else float(self.priced.peak_bytes)

    @property
    def usable_bytes(self) -> float:
        """Memory of a device that may be used."""
        held = self.question.held
        if self.serving is not None:
            return float(self.serving.memory.usable_bytes)
        return (1 - self.question.headroom) * usable_of(self.question.gpu) if held is None else held.room_bytes

    @property
    def fits(self) -> bool | None:
        """Whether a run is as likely to fit as it must be; None: unknown, as sizes of the config were not read."""
        held = self.question.held
        limit_bytes = self.usable_bytes if held is None else held.limit_bytes
        return self.question.reading.known(bool(self.peak_bytes <= limit_bytes))

    @property
    def stopped(self) -> str:
        """Why it cannot run as stated: its degrees do not divide the model, or a pass's engine does not start it."""
        findings = self.question.plan_findings if self.question.held is None else ()
        return self.cannot_run or "; ".join(finding.message for finding in findings)

    @property
    def infeasible(self) -> bool:
        """Whether nothing runs as stated: the degrees do not divide the model, its trainer has no such plan, or it does
        not fit with any plausible value of what was not stated (in inference: not one sequence does)."""
        question = self.question
        if self.cannot_run or any(finding.rule == "cannot_run" for finding in question.plan_findings):
            return True
        if self.fits is not False or self.near_limit:
            return False
        if self.serving is not None and self.serving.most_sequences >= 1:
            return False
        return not any(turn.of_memory or turn.of_arguments for turn in question.depends_on)

    @property
    def near_limit(self) -> bool:
        """Whether the error of the predicted peak leaves open if a training run fits."""
        held = self.question.held
        own_margin = self.question.run.own_margin
        return (
            held is not None and (self.fits is not False or not own_margin) and in_doubt(self.peak_bytes, held.cluster)
        )

    @property
    def fit_probability(self) -> float | None:
        """Probability that a training run fits; 1 or 0 of inference, whose engine fills what is left. None: unknown."""
        held, fits = self.question.held, self.fits
        if fits is None:
            return None
        return float(fits) if held is None else float(fit_probability(self.peak_bytes, held.cluster))

    @property
    def interval_parts(self) -> tuple[IntervalPart, ...]:
        """The contributions to the operators' interval, and what would narrow each."""
        calibration = self.question.calibration or load_calibration(self.question.gpu)
        return interval_parts(self.microbatch, calibration.with_kernels(ANY if self.question.open_engine else ""))

    @property
    def time_s(self) -> Floats:
        """Seconds of a training step, or of one inference pass."""
        return self.microbatch.time_s if self.priced is None else self.priced.step_s

    @property
    def low_s(self) -> Floats:
        return self.microbatch.low_s if self.priced is None else self.priced.low_s

    @property
    def high_s(self) -> Floats:
        return self.microbatch.high_s if self.priced is None else self.priced.high_s

    @property
    def source(self) -> Source:
        """Training: the source ``plan`` reports for the step. Inference: the weakest source of any operator."""
        held = self.question.held
        if held is None:
            return self.microbatch.source
        return step_source(held.cluster, held.job.recipe.dtype, self.question.calibration)

    @property
    def mfu(self) -> Floats:
        return self.microbatch.mfu if self.priced is None else self.priced.step.mfu

    @property
    def tokens_per_s(self) -> Floats:
        """Tokens per second of all devices of a training plan; in inference of one replica."""
        if self.priced is None or self.question.held is None:
            return self.microbatch.tokens_per_s
        return self.question.held.job.tokens_per_step / self.priced.step_s

    @property
    def tokens_per_s_per_device(self) -> Floats:
        """The same over the devices of the plan; in inference over those of one replica."""
        dims = self.question.dims
        if self.priced is None:
            return self.tokens_per_s / (int(dims.tp) * int(dims.pp))
        return self.priced.step.tokens_per_s_per_device

    @property
    def cost(self) -> RunCost | None:
        """Training only: cost of the tokens of one step."""
        held = self.question.held
        if held is None or self.priced is None:
            return None
        step_s = (self.priced.step_s, self.priced.low_s, self.priced.high_s)
        return run_cost(held.job, held.cluster, held.num_devices, step_s, held.job.tokens_per_step)
