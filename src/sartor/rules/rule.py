"""The records of a lint: a rule's input, its ``Suspicion``, and candidate fixes near the current size.

A rule contains no cost formula. It says which size is wasteful and which nearby values are better; ``rules.lint``
asks the cost model what that costs, so advice cannot contradict prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as default
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from itertools import product
from pkgutil import iter_modules
from types import ModuleType
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Source
from sartor.cost.price import Estimate, price
from sartor.errors import InputError
from sartor.hardware.gpu import Alignment, Gpu, alignment_of
from sartor.model.layer import AttentionMixer, Mixer
from sartor.model.lower import feasible, lower
from sartor.model.lower.setting import Division, Kernels, kv_heads_for, near_sizes
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import DType, Role
from sartor.step.coefficients import InRun

Fix: TypeAlias = Mapping[str, int]
"""New values by field: an ``EDITABLE`` field of the shape, or one of ``WORKLOAD_FIELDS`` and ``DIMS_FIELDS``."""

MOST_TP = 2**14
"""Largest degree to try instead of one that does not work."""
COMMON_TILE = 128
"""Side of the output tile that GEMM kernels of every GPU generation have."""
WORKLOAD_FIELDS = ("microbatch_size", "seq_len")
DIMS_FIELDS = ("tp", "pp", "cp", "ep")


class Grade(Enum):
    """``ERROR``: cannot run, or off the fast path. ``WARN``: a measurable loss. ``INFO``: worth knowing, and less than
    `WORTH_CHANGING` of a step."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"

    @property
    def severity(self) -> int:
        """2, 1, 0: for sorting and for ``--fail-on``."""
        return {"error": 2, "warn": 1, "info": 0}[self.value]

    def of(self, share: float) -> Grade:
        """The grade of a finding whose fix saves that share of the step."""
        return Grade.WARN if self is Grade.INFO and share >= WORTH_CHANGING else self


WORTH_CHANGING = 0.05
"""Least share of the step for which a finding is a change to make first: shapes and plans whose steps are nearer are
ranked right too seldom for more, and `advise` may keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One model on one device: the input of every rule. Make it with ``Context.of``."""

    workload: Workload
    gpu: Gpu
    dims: ParallelDims
    baseline: Estimate
    calibration: Calibration | None = None
    """None: the catalogue's calibration of the device."""
    run: InRun | None = None
    """Of training: the run that the workload is a microbatch of."""
    kernels: Kernels | None = None
    """The kernels of the trainer or engine that runs the model."""
    runs_at: ParallelDims | None = None
    """The split of the baseline: ``dims``, or the nearest smaller split that the model can run with."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        gpu: Gpu,
        dims: ParallelDims | None = None,
        calibration: Calibration | None = None,
        *,
        run: InRun | None = None,
        kernels: Kernels | None = None,
        sigma_factor: float = 1.0,
        runs_at: ParallelDims | None = None,
    ) -> Context:
        """The context of a scalar workload, with its predicted baseline.

        A model that does not split over ``tp`` or ``ep`` is not refused: rules report it, and the other findings are
        priced at the largest smaller one that works, or at ``runs_at``.
        """
        stated = dims or ParallelDims()
        table = run.calibration if run else calibration or load_calibration(gpu)
        runs_at = runs_at or largest_split(workload.shape, stated)
        kernels = run.kernels if run else kernels
        graph = lower(workload, runs_at, kernels)
        baseline = price(graph, gpu, table, sigma_factor=sigma_factor)
        return cls(
            workload=workload,
            gpu=gpu,
            dims=stated,
            baseline=baseline,
            calibration=table,
            run=run,
            kernels=kernels,
            runs_at=runs_at,
        )

    @property
    def priced_dims(self) -> ParallelDims:
        """The split that the baseline and all fixes are priced at."""
        return self.runs_at or self.dims

    @property
    def shape(self) -> TransformerShape:
        return self.workload.shape

    @property
    def dtype(self) -> DType:
        return self.workload.dtype

    @property
    def alignment(self) -> Alignment:
        """The multiples this device prefers for this data type."""
        return alignment_of(self.gpu, self.dtype)

    @property
    def grain(self) -> int:
        """Rows or columns of the output that are computed together: a GPU's common tile, or the side of an array."""
        return self.gpu.matrix_tile or COMMON_TILE

    def operator(self, *roles: Role) -> str:
        """Name of the baseline's first operator of one of these roles; "" if none."""
        return next((op.name for op in self.baseline.graph.operators if op.role in roles), "")


def largest_split(shape: TransformerShape, dims: ParallelDims, *, of_plan: bool = False) -> ParallelDims:
    """The split asked for, or the largest smaller degrees at which the model can run: with ``of_plan`` of those that
    divide the ones asked for, since the other axes of a plan stay."""
    return next(smaller_splits(shape, dims, of_plan=of_plan))


def smaller_splits(shape: TransformerShape, dims: ParallelDims, *, of_plan: bool = False) -> Iterator[ParallelDims]:
    """The degrees asked for, where they divide the model, and all smaller ones that do: the largest tp first, then the
    largest ep (no model splits over more than ``MOST_TP``)."""
    tps, eps = (np.arange(min(int(degree), MOST_TP), 0, -1) for degree in (dims.tp, dims.ep))
    if of_plan:
        tps, eps = tps[dims.tp % tps == 0], eps[dims.ep % eps == 0]
    tps = tps[np.broadcast_to(feasible(shape, replace(dims, tp=tps, ep=1)), tps.shape)]
    eps = eps[np.broadcast_to(feasible(shape, replace(dims, tp=1, ep=eps)), eps.shape)]
    return (replace(dims, tp=int(tp), ep=int(ep)) for tp, ep in product(tps, eps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A rule's finding before it is priced.

    ``fixes`` are nearby values that satisfy the rule, nearest first; pricing chooses one. ``remedy`` is a shape to
    compare with if no field expresses the change (parallel layers). ``paced_by`` is the larger work that the device
    waits for, if any (the longest pipeline stage).
    """

    grade: Grade
    message: str
    field: str
    value: int
    operator: str = ""
    fixes: tuple[Fix, ...] = ()
    remedy: TransformerShape | None = None
    paced_by: Fix | None = None
    blocking: bool = False
    """The model cannot run like this, so there is no gain and the grade stays."""
    axis: str = ""
    """For a blocking one: the degree of parallelism that does not divide the shape. Changes for the same one go
    together."""
    required: bool = False
    """Some kernels refuse it: the grade and the nearest fix stay although others may lose nothing."""
    advisory: bool = False
    """An opportunity, not a fault: reported only if it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A suspicion with its price. ``gain_s`` is the time the fix saves of a training step, or of one pass of inference,
    at equal work, ``gain_fraction`` its share of that.

    Equal work: a fix that computes less gets no credit for that, and one that computes more is charged for it; a change
    of batch is compared per token, in training a change of tp per device. ``gain_s`` is None if the baseline
    cannot run.
    """

    rule: str
    code: str
    grade: Grade
    message: str
    operator: str
    field: str
    value: int
    gain_s: float | None
    gain_fraction: float | None
    fix: Fix = default(default_factory=dict)
    gain_low_s: float | None = None
    gain_high_s: float | None = None
    source: Source = Source.ANALYTIC
    remark: bool = False
    """An architecture choice to make before training, not a fault of the shape."""
    params_change: float = 0.0
    """Share of its parameters that the model gains with the fix."""
    device_seconds_spared: float = 0.0
    """Share of the device-seconds of a pass of inference that fewer devices spare; its time is no shorter."""
    axis: str = ""
    """For one that cannot run: the degree of parallelism that does not divide the shape."""
    doubt: str = ""
    """Why not to make the change, though it saves time: what speaks against the shape, or an interval with no gain."""
    others: tuple[Finding, ...] = ()
    """Findings of other rules that the same change fixes; its gain already includes theirs."""

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of all rules that it includes."""
        return (self.rule, *(finding.rule for finding in self.others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of waste. ``name`` is its function's name; ``page`` is its documentation, in Markdown."""

    code: str
    check: Callable[[Context], Iterable[Suspicion]]
    worst: Grade
    """The most severe grade it gives."""
    page: str
    remark: bool = False
    """Whether its findings are architecture choices."""
    turned_by: tuple[str, ...] = ()
    """Fields of a run whose other plausible values may turn its findings: a trainer pads the vocabulary."""

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def title(self) -> str:
        """The first line of the page."""
        return self.page.strip().splitlines()[0]

    @property
    def source(self) -> str:
        """The page's last section: references with dates."""
        return " ".join(self.page.partition("## Source")[2].split())


class _Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def code(self) -> str: ...


AnyRule = TypeVar("AnyRule", bound=_Named)


def rules_in(package: ModuleType, kind: type[AnyRule]) -> tuple[AnyRule, ...]:
    """The ``RULE`` of every file in a folder, by code; a file without one is no rule."""
    names = (f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__))
    rules = [module.RULE for module in map(import_module, names) if isinstance(getattr(module, "RULE", None), kind)]
    codes = [rule.code for rule in rules]
    assert len(set(codes)) == len(codes), f"two rules have one code: {sorted(codes)}"
    return tuple(sorted(rules, key=lambda rule: int(rule.code[1:])))


def rule_named(word: str, rules: Sequence[AnyRule], must: str) -> AnyRule:
    """The rule with a name (``ragged_vocab`` or ``ragged-vocab``) or code (``R1``); else ``InputError``."""
    spelling = word.strip().lower().replace("-", "_")
    by_word = {key: rule for rule in rules for key in (rule.name, rule.code.lower())}
    if spelling in by_word:
        return by_word[spelling]
    near = dict.fromkeys(
        f"{by_word[key].name} ({by_word[key].code})" for key in get_close_matches(spelling, by_word, n=2)
    )
    raise InputError("allow", word, must, ", ".join(near) or f"{rules[0].code} to {rules[-1].code}")


def without(rules: Sequence[AnyRule], allow: Iterable[str], must: str) -> tuple[AnyRule, ...]:
    """The rules that are not switched off by name or code."""
    allowed = {rule_named(word, rules, must).code for word in allow}
    return tuple(rule for rule in rules if rule.code not in allowed)


def worst_grade(findings: Iterable[Finding]) -> Grade | None:
    """The most severe grade among findings; None without any but remarks."""
    return max((f.grade for f in findings if not f.remark), key=lambda grade: grade.severity, default=None)


HEAD_DIMS = (64, 128, 192, 256)
"""Multiples of 64 that every flash attention kernel is compiled for."""


def ragged(value: int, alignment: Alignment) -> tuple[Grade, int] | None:
    """The grade of a length of ``value`` elements on this device and the multiple it misses; None if it is fine."""
    if value % alignment.minimum:
        hardest = Grade.ERROR if alignment.cliff else Grade.WARN
        return (hardest if alignment.cliff or alignment.graded else Grade.INFO), alignment.minimum
    if value % alignment.preferred:
        return (Grade.WARN if alignment.graded else Grade.INFO), alignment.preferred
    return None


def around(value: int, multiple: int) -> tuple[int, ...]:
    """The multiples on both sides of ``value`` (itself, where it is one), none below ``multiple``."""
    below = value // multiple * multiple
    return tuple(sorted({max(below, multiple), below + (multiple if value % multiple else 0) or multiple}))


def above(value: int, multiples: Iterable[int]) -> tuple[int, ...]:
    """The least multiple of each that is not below ``value``, ascending."""
    return tuple(sorted({-(-value // multiple) * multiple for multiple in multiples}))


def within(value: int, multiple: int, share: float = 0.03) -> tuple[int, ...]:
    """Every multiple within ``share`` of ``value``, and the two around it."""
    first, last = math.ceil(value * (1 - share) / multiple), math.floor(value * (1 + share) / multiple)
    return tuple(sorted({*around(value, multiple), *(i * multiple for i in range(max(first, 1), last + 1))}))


def fixes_of(field: str, values: Iterable[int], old: int) -> tuple[Fix, ...]:
    """One fix per value that is not the old one, the nearest first."""
    return tuple({field: value} for value in nearest_first(dict.fromkeys(values), old) if value != old)


def words(values: Iterable[int], old: int | None = None) -> str:
    """``(50264, 50304)`` -> ``'50264 or 50304'``; the first three of many."""
    shown = [str(value) for value in dict.fromkeys(values) if value != old][:3]
    return " or ".join(shown)


def misaligned(context: Context, size: str, multiple: int) -> str:
    """``vocab_size=50257 is not a multiple of 8 (bf16 tensor cores need it)``."""
    verb = "need" if multiple <= context.alignment.minimum else "prefer"
    return f"{size} is not a multiple of {multiple} ({context.dtype.value} {matrix_units(context.gpu)} {verb} it)"


def matrix_units(gpu: Gpu) -> str:
    """What the vendor calls the units that run GEMMs, plural."""
    if gpu.matrix_tile:
        return f"{gpu.matrix_tile}-wide systolic arrays"
    return {"NVIDIA": "tensor cores", "AMD": "matrix cores"}.get(gpu.vendor, "matrix units")


def steps(context: Context, tp: int = 1) -> tuple[int, ...]:
    """Multiples worth trying for a size split over ``tp``: the preferred one, twice and four times that."""
    return tuple(context.alignment.preferred * factor * tp for factor in (1, 2, 4))


def nearest_first(values: Iterable[int], old: int) -> list[int]:
    """Values by their distance from the old one."""
    return sorted(values, key=lambda value: (abs(value - old), value))


SLACK = 0.03
"""Share of all heads' width by which a fix may differ."""


def head_fixes(mixer: Mixer | None, tp: int, widths: Iterable[int] = HEAD_DIMS) -> tuple[Fix, ...]:
    """Heads at most twice or half as wide with the same ``num_heads * head_dim`` (within ``SLACK``), split over ``tp``.

    ``num_kv_heads * head_dim`` is kept too, as nearly as a divisor of the heads allows. An even number of heads stays
    even, since an odd one would rule out tensor parallelism. None for mixers other than plain attention.
    """
    return tuple(_head_fixes(mixer, tp, widths)) if isinstance(mixer, AttentionMixer) else ()


def split_fixes(shape: TransformerShape, division: Division) -> tuple[Fix, ...]:
    """Sizes that a degree divides, the nearest first, and for attention's heads other widths of them."""
    name, value = division.field, int(division.value)
    near = sorted(near_sizes(shape, division), key=lambda change: (abs(change[name] - value), change[name]))
    return (*near, *(head_fixes(shape.attention, int(division.degree)) if name == "num_heads" else ()))


def _head_fixes(mixer: AttentionMixer, tp: int, widths: Iterable[int]) -> Iterator[Fix]:
    inner, kv_inner = int(mixer.num_heads * mixer.head_dim), int(mixer.num_kv_heads * mixer.head_dim)
    grouped = mixer.num_kv_heads != mixer.num_heads
    old = int(mixer.head_dim)
    for width in nearest_first((w for w in widths if old <= 2 * w <= 4 * old), old):
        for heads in around(round(inner / width) or 1, tp):
            strays = abs(heads * width - inner) > SLACK * inner
            if strays or (heads % 2 and not mixer.num_heads % 2) or (heads, width) == (mixer.num_heads, old):
                continue
            fix = {"num_heads": heads, "head_dim": width}
            yield fix | ({"num_kv_heads": kv_heads_for(heads, kv_inner / width, tp)} if grouped else {})
