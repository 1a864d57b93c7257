"""A plan of a training job, and the one table of its axes.

An axis is declared here alone: its field of `TrainingPlan`, its keyword in `AxisFields`, and its row in `AXES`, which
says what it is called, which values a search tries, and which tables of a step depend on it; every door, the search
and the answers read the table. What it costs is said by a mechanism (`sartor.step.mechanisms`), which reads its column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypedDict, TypeVar

from sartor.model.shape import TransformerShape, layer_order
from sartor.model.workload import COMMON_SCHEDULES, ParallelDims, PipelineSchedule, Recompute
from sartor.options import Panel, RunField, Unit
from sartor.units import Array, Bools, Ints, distinct, divisors

if TYPE_CHECKING:
    from sartor.model.training import Trainer

UNEVEN_CHUNKS = 8
"""Virtual stages up to which chunks may be uneven; beyond, only numbers that divide the layers are tried."""
LEAST_SHARD_GROUP = 8  # in a search; ``--fix shard_group`` accepts smaller ones


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A plan for a job, or many as arrays that broadcast.

    ``dims`` holds tp, pp, dp, cp, ep (tp x pp x dp x cp devices; ep is within dp x cp, or tp x dp x cp if experts stay
    whole) and sequence parallelism. Ranks are numbered as Megatron does: tp innermost, then cp, then dp (ep the inner
    part of cp x dp), pp outermost.
    """

    dims: ParallelDims = field(default_factory=ParallelDims)
    microbatch_size: Ints = 1
    num_microbatches: Ints = 1
    """Microbatches per pipeline and step: global_batch_size / (dp x microbatch_size)."""
    virtual_stages: Ints = 1
    """Chunks of layers per device (interleaving)."""
    schedule: Ints = PipelineSchedule.ONE_F_ONE_B
    zero_stage: Ints = 0
    """0 plain data parallelism, 1 optimizer states sharded (Megatron's distributed optimizer), 2 and gradients, 3 and
    parameters (FSDP)."""
    shard_group: Ints = 0
    """Devices per set of ZeRO shards; 0: all of dp x cp (smaller: hybrid sharding)."""
    recompute: Ints = Recompute.NONE
    recompute_layers: Ints = -1
    """With ``Recompute.FULL``: layers per stage that are recomputed; -1 all."""
    optimizer_offload: Bools = False
    stage_layers: tuple[int, ...] | None = None
    """For a single plan, layers of each chunk in model order (pp x virtual_stages chunks); None: as even as possible
    without counting embedding and head, the first chunks taking the rest."""

    @property
    def num_devices(self) -> Ints:
        d = self.dims
        return d.tp * d.pp * d.dp * d.cp

    @property
    def columns(self) -> dict[str, Any]:
        """Every degree and field by name, but ``stage_layers``."""
        holders = {f.name: holder for holder in (self.dims, self) for f in fields(holder)}
        return {name: getattr(holders[name], name) for name in holders if name not in ("dims", "stage_layers")}

    def with_columns(self, **values: Any) -> TrainingPlan:
        """The plan with some degrees and fields changed."""
        degrees = {f.name: values.pop(f.name) for f in fields(self.dims) if f.name in values}
        return replace(self, dims=replace(self.dims, **degrees), **values)


Size = TypeVar("Size")
Word = TypeVar("Word")
Switch = TypeVar("Switch")


class AxisFields(TypedDict, Generic[Size, Word, Switch], total=False):
    """Keywords that state a plan; those of a type variable may have several values in a grid."""

    microbatch_size: Size | None
    tp: Size | None
    pp: Size | None
    dp: Size | None
    cp: Size | None
    ep: Size | None
    virtual_stages: Size | None
    schedule: Word | None
    sequence_parallel: Switch | None
    zero_stage: Size | None
    shard_group: Size | None
    recompute: Word | None
    recompute_layers: int | None
    optimizer_offload: Switch | None


class AxisKind(Enum):
    """How a search lays out the values of an axis, in this order."""

    DEGREE = auto()  # the product of these axes is the number of devices
    STRUCTURE = auto()  # with the degrees: what a device holds and computes
    SWITCH = auto()  # how a structure runs
    REFINED = auto()  # not laid out: tried in each of its values near the best plans


class Depends(Flag):
    """Tables of a step that have a row for each value of an axis; what is added once a step sees every axis."""

    NOTHING = 0
    BLOCKS = auto()  # seconds and traffic of a block's microbatch (``at_block``)
    PIPELINE = auto()  # seconds of stages and of the pipeline (``at_stage``, ``at_pipeline``)
    KEPT = auto()  # bytes of activations
    HELD = auto()  # bytes of weights, gradients and optimizer states


Values: TypeAlias = "Callable[[TransformerShape, Trainer, int, Mapping[str, Array]], Sequence[int]]"
"""Values that some plan could have, from model, trainer, sequences per step and the degrees that devices allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAxis(RunField):
    """An axis of a plan. Its value is a number; words and switches have numbers too."""

    axis: ClassVar[bool] = True
    kind: type = int
    panel: Panel = Panel.PLAN
    least: float | None = 1
    inference: bool = False
    kinds: type[PipelineSchedule] | type[Recompute] | None = None  # the numbers behind its words
    layout: AxisKind = AxisKind.SWITCH
    values: tuple[int, ...] | Values = ()  # that a search tries
    depends: Depends = Depends.NOTHING
    plain: tuple[int, ...] = (1,)  # values that bring no mechanism, the usual one first
    mechanism: str = ""  # what a plan has with any other value, as a noun
    phrase: str = ""
    """What a sentence about a plan says of a value that is not plain: ``{} rounds``; empty: words of its own."""
    heading: str = ""  # of its column in a table of plans; empty: it has none
    common: tuple[int, ...] | None = None
    """Values that more trainers have, tried for a plan that a trainer cannot run; None: the usual one."""
    fits_rank: int = 0  # place among the axes that are changed for a plan that does not fit; 0: left as it is
    flat: bool = False  # not searched for a model whose states fit on no number of devices
    derived: bool = False  # never open in a run that does not state it: it follows from other axes, or is plain
    odds: float = 0.0
    """Penalty on other values than the usual one for a run that does not state it: -2 ln of their odds (6: 1 in 20;
    estimated, not measured)."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """The numbers of its words; empty if its values are numbers."""
        if self.kind is bool:
            return {"false": 0, "true": 1, "off": 0, "on": 1, "no": 0, "yes": 1}
        return {kind.word: int(kind) for kind in self.kinds or ()}

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest number."""
        numbers = self.numbers.values()
        most = max(numbers) if numbers else min(int(self.most or 2**31), 2**31)
        return (min(numbers) if numbers else int(self.least or 0)), most

    def shown(self, number: int) -> int | str | bool:
        """A number as users state it: a word, true or false, or itself."""
        if self.kinds is not None:
            return self.kinds(number).word
        return bool(number) if self.kind is bool else int(number)

    def word(self, number: int) -> str:
        """A number as ``--fix`` writes it: ``full`` for recompute 2."""
        return self.kinds(number).word if self.kinds else str(number)


def _experts(shape: TransformerShape, *_: object) -> list[int]:
    moe = shape.moe_ffn
    return [1] if moe is None else divisors(int(moe.num_experts))


def _chunks(shape: TransformerShape, _: Trainer, __: int, dims: Mapping[str, Array]) -> list[int]:
    """1 up to UNEVEN_CHUNKS, and all that divide the layers evenly for some number of stages."""
    layers, stages = len(layer_order(shape)), distinct(dims["pp"])
    even = {v for p in stages.tolist() if p > 1 and layers % p == 0 for v in divisors(layers // p)}
    few = range(1, min(UNEVEN_CHUNKS, max(1, layers // 2)) + 1)
    return sorted({1, *few, *even})


def _shard_groups(_: TransformerShape, trainer: Trainer, __: int, dims: Mapping[str, Array]) -> list[int]:
    """0, and sizes from a node up if the trainer shards fully (HSDP); other trainers gather once a step, which smaller
    groups hardly speed up."""
    devices = int(dims["dp"].max(initial=1))
    smaller = (n for n in divisors(devices) if LEAST_SHARD_GROUP <= n < devices)
    return [0, *(smaller if trainer.shards_fully else ())]


_BYTES = Depends.KEPT | Depends.HELD
_ROWS = (
    PlanAxis(
        name="tp",
        words="tensor parallel",
        help="Tensor-parallel devices.",
        example="8",
        layout=AxisKind.DEGREE,
        depends=Depends.BLOCKS | _BYTES,
        mechanism="tensor parallelism",
        heading="tp",
        fits_rank=5,
        odds=6.0,
        inference=True,
    ),
    PlanAxis(
        name="pp",
        words="pipeline parallel",
        help="Pipeline-parallel stages.",
        example="4",
        layout=AxisKind.DEGREE,
        depends=Depends.BLOCKS,
        mechanism="pipeline stages",
        heading="pp",
        fits_rank=6,
        flat=True,
        odds=6.0,
        inference=True,
    ),
    PlanAxis(
        name="cp",
        words="context parallel",
        help="Context-parallel devices.",
        layout=AxisKind.DEGREE,
        depends=Depends.BLOCKS | _BYTES,
        mechanism="context parallelism",
        heading="cp",
        flat=True,
        odds=6.0,
    ),
    PlanAxis(
        name="dp",
        words="data parallel",
        help="Data-parallel replicas.",
        layout=AxisKind.DEGREE,
        depends=Depends.BLOCKS | Depends.HELD,
        heading="dp",
        common=(),
        derived=True,
    ),
    PlanAxis(
        name="ep",
        words="expert parallel",
        help="Expert-parallel groups; inference takes tp x ep devices.",
        example="8",
        layout=AxisKind.STRUCTURE,
        values=_experts,
        depends=Depends.BLOCKS | _BYTES,
        mechanism="expert parallelism",
        heading="ep",
        fits_rank=2,
        flat=True,
        inference=True,
    ),
    PlanAxis(
        name="virtual_stages",
        words="chunks per stage",
        help="Interleaved chunks per device.",
        layout=AxisKind.STRUCTURE,
        values=_chunks,
        depends=Depends.BLOCKS,
        mechanism="interleaved stages",
        heading="chunks",
        common=(1, 2),
        flat=True,
        odds=1.0,
    ),
    PlanAxis(
        name="microbatch_size",
        words="sequences per microbatch",
        help="Sequences per microbatch. [default: train searched, prefill 1, decode 8]",
        panel=Panel.QUESTION,
        unit=Unit.SEQUENCES,
        most=2**40,
        example="4",
        layout=AxisKind.STRUCTURE,
        values=lambda _, __, batch, ___: divisors(batch),
        depends=Depends.BLOCKS | Depends.KEPT,
        heading="batch",
        fits_rank=4,
        flat=True,
        inference=True,
    ),
    PlanAxis(
        name="sequence_parallel",
        words="sequence parallel",
        help="Split the sequence over the tensor-parallel devices between their products.",
        kind=bool,
        least=None,
        values=(0, 1),
        depends=Depends.BLOCKS | Depends.KEPT,
        heading="sp",
        common=(1, 0),
    ),
    PlanAxis(
        name="zero_stage",
        words="ZeRO",
        help="What replicas share: 1 optimizer states, 2 gradients too, 3 weights too.",
        metavar="0|1|2|3",
        least=0,
        most=3,
        values=(0, 1, 2, 3),
        depends=Depends.BLOCKS | Depends.PIPELINE | Depends.HELD,
        plain=(0, 1, 2),
        mechanism="sharded weights",
        heading="zero",
        common=(2, 3, 1, 0),
        fits_rank=1,
    ),
    PlanAxis(
        name="shard_group",
        words="devices per set of shards",
        help="Devices per set of shards; 0: all replicas.",
        least=0,
        values=_shard_groups,
        depends=Depends.BLOCKS | Depends.HELD,
        plain=(0,),
        mechanism="sets of shards",
        derived=True,
    ),
    PlanAxis(
        name="schedule",
        kind=str,
        words="pipeline schedule",
        help="Order of microbatches in a pipeline.",
        metavar="NAME",
        least=None,
        kinds=PipelineSchedule,
        values=lambda _, trainer, *__: sorted({*map(int, COMMON_SCHEDULES), *map(int, trainer.schedules)}),
        depends=Depends.BLOCKS | Depends.PIPELINE | Depends.KEPT,
        plain=(0,),
        mechanism="another pipeline schedule",
        flat=True,
        odds=4.0,
    ),
    PlanAxis(
        name="optimizer_offload",
        words="optimizer offload",
        help="Keep optimizer states in host memory.",
        kind=bool,
        least=None,
        values=(0,),
        depends=Depends.HELD,
        plain=(0,),
        mechanism="optimizer in host memory",
        derived=True,
    ),
    PlanAxis(
        name="recompute",
        kind=str,
        words="recomputation",
        help="What backward computes again.",
        metavar="none|selective|full",
        choices=("none", "selective", "full"),
        least=None,
        kinds=Recompute,
        values=tuple(map(int, Recompute)),
        depends=Depends.PIPELINE | Depends.KEPT,
        plain=(0,),
        mechanism="recomputation",
        heading="recompute",
        common=(0, 2),
        fits_rank=3,
    ),
    PlanAxis(
        name="recompute_layers",
        words="recomputed layers",
        help="Layers of each stage that are recomputed in full. [default: all]",
        layout=AxisKind.REFINED,
        depends=Depends.PIPELINE | Depends.KEPT,
        plain=(-1,),
        mechanism="recomputation of some layers",
    ),
)
AXES: Mapping[str, PlanAxis] = {row.name: row for row in _ROWS}
"""The axes of a plan by name, in the order in which a search lays them out."""


def _axes(*kinds: AxisKind) -> tuple[str, ...]:
    return tuple(name for name, row in AXES.items() if row.layout in kinds)


DIMS = _axes(AxisKind.DEGREE)
STRUCTURE = _axes(AxisKind.DEGREE, AxisKind.STRUCTURE)
SWITCHES = _axes(AxisKind.SWITCH)
SEARCHED = (*STRUCTURE, *SWITCHES)  # the axes of a search's grid


def axes_with(depends: Depends) -> tuple[str, ...]:
    """The axes on whose value a table of the step depends."""
    return tuple(name for name, row in AXES.items() if depends in row.depends)


def phrases(columns: Mapping[str, Ints]) -> list[str]:
    """What a sentence about one plan says of axes that it has no words of its own for, where they are not plain."""
    said = (row for row in AXES.values() if row.phrase and int(columns[row.name]) not in row.plain)
    return [row.phrase.format(row.shown(int(columns[row.name]))) for row in said]
