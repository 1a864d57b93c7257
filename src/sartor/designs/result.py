"""The result of the joint search: the best point with its proof, the effort of the search, and baselines; and the
protocol of a store (`Keep`) for whatever else is computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from sartor.designs.point import Evaluation
from sartor.interrupts import point


class DesignStatus(StrEnum):
    """``OPTIMAL``: no point of the space is better; ``FEASIBLE``: none is better by more than the gap; ``UNKNOWN``: the
    search ended before it found a point or proved that there is none."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    @property
    def proved(self) -> bool:
        """Whether nothing is left to search."""
        return self in (DesignStatus.OPTIMAL, DesignStatus.INFEASIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An evaluated point with its price, its objective and an upper bound on it."""

    evaluation: Evaluation
    objective: float
    bound: float
    area_mm2: float
    power_w: float
    die_usd: float
    usd: float = 0.0
    """Price of die and memory, the divisor of throughput per dollar; no package, test, margin, host or power supply."""
    ownership_usd: float = 0.0
    """``usd`` plus package and electricity over the years of use at peak power; no test, margin, host or network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of the search at one moment."""

    seconds: float
    evaluated: int
    bound: float
    incumbent: float
    waiting: int = 0
    """Bounded points with a bound that still exceeds the incumbent."""
    phase: str = "search"
    pruned: int = 0
    """Points ruled out by a bound so far."""
    left_s: float | None = None
    """Remaining seconds if no better point is found; None before anything is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A baseline with the same cost model; ``ranked`` is None if nothing fits or it could not be run."""

    name: str
    ranked: Ranked | None
    evaluations: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult:
    """The best point of the space. ``upper_bound`` holds for all points; ``gap`` = (upper_bound - best) / best.

    ``num_candidates``: chips of the space, each counted once; ``space_size``: these times memories, microbatches and
    recomputations. A point is a chip with a memory: of ``num_points``, ``evaluated`` were scheduled and placed,
    ``pruned`` ruled out by a bound, ``left_out`` by budgets or because they cannot be built; ``waiting`` are open.
    """

    status: DesignStatus
    best: Ranked | None
    upper_bound: float
    gap: float
    space_size: int
    num_candidates: int
    evaluated: int
    pruned: int
    seconds: float
    num_points: int
    left_out: int
    trajectory: tuple[Progress, ...]
    ranked: tuple[Ranked, ...] = ()
    """Every point that was evaluated, best first."""
    pareto: tuple[Any, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    reasons: tuple[Any, ...] = ()
    """By model, why the best beats the TPUv4-like point (`designs.why.Reason`), if baselines were requested."""
    tightest: str = ""
    interrupted: bool = False
    assumptions: tuple[str, ...] = field(default=())

    @property
    def waiting(self) -> int:
        """Points that were neither evaluated nor ruled out."""
        return max(self.num_points - self.left_out - self.evaluated - self.pruned, 0)


T = TypeVar("T")


class Keep(Protocol):
    """Returns ``make()``, or the value that was stored under ``key`` before.

    Within one question a key has one value: None, a number, a text, one of the records a design answers with
    (`designs.result`, `designs.point`), or a tuple of these.
    """

    def __call__(self, key: str, make: Callable[[], T]) -> T: ...


def afresh(key: str, make: Callable[[], T]) -> T:
    """A `Keep` that stores nothing."""
    point()
    return make()
