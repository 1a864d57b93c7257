"""The nouns of advice: what a rule looks at (``Context``), what it suspects, and what it found once priced.

A rule holds no formula. It says where a shape is ragged and which values nearby would not be; what that costs in
seconds is asked of ``lower`` and ``price`` (``rules.pricing``), so advice cannot contradict prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as default
from enum import Enum
from typing import Any, TypeAlias

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Source
from sartor.cost.price import Estimate, price
from sartor.hardware.alignment import Alignment, alignment_of
from sartor.hardware.gpu import Gpu
from sartor.model.lower import feasible, lower
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import Workload
from sartor.operators import DType

Fix: TypeAlias = Mapping[str, int]
"""New values by field: an ``EDITABLE`` field of the shape, or one of ``WORKLOAD_FIELDS`` and ``DIMS_FIELDS``."""

MOST_TP = 2**14
"""Largest split that is tried in place of one that does not work."""
WORKLOAD_FIELDS = ("microbatch_size", "seq_len")
DIMS_FIELDS = ("tp",)


class Grade(Enum):
    """``ERROR``: cannot run as asked, or off the fast path. ``WARN``: a measurable loss. ``INFO``: worth knowing."""

    ERROR = "error"
    WARN = "warn"
    INFO = "info"

    @property
    def severity(self) -> int:
        """2, 1, 0: for sorting and for ``--fail-on``."""
        return {"error": 2, "warn": 1, "info": 0}[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One model at work on one device: what rules look at. Make it with ``Context.of``."""

    workload: Workload
    gpu: Gpu
    dims: ParallelDims
    baseline: Estimate
    calibration: Calibration | None = None
    """None: what the catalogue knows of the device."""
    runs_at: ParallelDims | None = None
    """The nearest smaller split the model can run at, where it cannot run at ``dims``: the baseline's."""

    @classmethod
    def of(
        cls,
        workload: Workload,
        gpu: Gpu,
        dims: ParallelDims | None = None,
        calibration: Calibration | None = None,
        *,
        sigma_factor: float = 1.0,
    ) -> Context:
        """The context of a scalar workload, with its baseline predicted.

        A model that does not split over ``tp`` or ``ep`` is not refused: rules say so, and price the rest of their
        findings at the largest split that works.
        """
        asked, known = dims or ParallelDims(), calibration or load_calibration(gpu)
        runs_at = next((split for split in _relaxed(asked) if feasible(workload.shape, split)), ParallelDims())
        baseline = price(lower(workload, runs_at), gpu, known, sigma_factor=sigma_factor)
        return cls(workload=workload, gpu=gpu, dims=asked, baseline=baseline, calibration=known, runs_at=runs_at)

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
        """What this device prefers for this data type."""
        return alignment_of(self.gpu, self.dtype)

    def operator(self, *stems: str) -> str:
        """The first operator of the baseline of one of these names, whatever kind of layer it is in; "" if none."""
        names = (op.name for op in self.baseline.graph.operators)
        return next((name for name in names if name.rpartition(".")[2] in stems), "")


def _relaxed(asked: ParallelDims) -> Iterator[ParallelDims]:
    """What was asked, then ever smaller splits that divide it (no model splits over more than ``MOST_TP``)."""
    yield asked
    for tp in range(min(int(asked.tp), MOST_TP), 0, -1):
        if asked.tp % tp == 0:
            yield replace(asked, tp=tp)
            yield replace(asked, tp=tp, ep=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """What a rule noticed, before anything is priced.

    ``fixes`` are the values near by that would hold, nearest first: pricing chooses. ``remedy`` is a shape to compare
    with where no field expresses the change (parallel layers). ``paced_by`` is what the device has to wait for where
    that is more than its own work (the longest pipeline stage).
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
    """It cannot run at all as asked: keeps its grade whatever the gain, which has no meaning then."""
    advisory: bool = False
    """An opportunity, not a fault: said only where it gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A suspicion with its price. ``gain_s`` is what the fix saves of one execution of the workload, at equal work.

    Equal work: a fix that computes less gets no credit for that, one that computes more is charged for it; a change
    of batch is compared per token, a change of tp per device. ``gain_s`` is None where the baseline cannot run.
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

    def to_dict(self) -> dict[str, Any]:
        """The contract's keys, and beside them ``code`` (R1..R22), the gain's interval and its source."""
        return {
            "rule": self.rule,
            "grade": self.grade.value,
            "message": self.message,
            "operator": self.operator,
            "field": self.field,
            "value": self.value,
            "gain_s": self.gain_s,
            "gain_fraction": self.gain_fraction,
            "fix": dict(self.fix),
            "code": self.code,
            "low_s": self.gain_low_s,
            "high_s": self.gain_high_s,
            "source": self.source.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of waste. ``name`` (its function's) reads after "allow"; ``page`` is its documentation, in Markdown."""

    code: str
    check: Callable[[Context], Iterable[Suspicion]]
    worst: Grade
    """The hardest grade it gives."""
    page: str

    @property
    def name(self) -> str:
        return self.check.__name__

    @property
    def title(self) -> str:
        """The first line of the page."""
        return self.page.strip().splitlines()[0]

    @property
    def source(self) -> str:
        """Where the rule comes from, with dates: the page's last section."""
        return " ".join(self.page.partition("## Source")[2].split())


def worst_grade(findings: Iterable[Finding]) -> Grade | None:
    """The hardest grade among findings; None where there are none."""
    return max((f.grade for f in findings), key=lambda grade: grade.severity, default=None)
