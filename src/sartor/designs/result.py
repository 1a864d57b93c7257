"""What the joint search answers: the best point with its proof, what it cost to find, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sartor.designs.point import Evaluation


class DesignStatus(StrEnum):
    """``OPTIMAL``: no point of the space is better; ``FEASIBLE``: none is better than by the gap."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An evaluated point with its price and its objective, reached and at most."""

    evaluation: Evaluation
    objective: float
    bound: float
    area_mm2: float
    power_w: float
    die_usd: float
    usd: float = 0.0
    """Die and memory: what throughput per dollar is per; no packaging, test, margin, host or power supply."""
    ownership_usd: float = 0.0
    """These with the package and the electricity of its years at peak power; no test, margin, host or network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The search at one moment."""

    seconds: float
    evaluated: int
    bound: float
    incumbent: float
    waiting: int = 0
    """Points whose bound still exceeds the incumbent, among those bounded so far."""
    phase: str = "search"
    pruned: int = 0
    """Points that a bound alone has ruled out so far."""
    left_s: float | None = None
    """Seconds that what is left would take if no better point were found; None before anything is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Another way to choose, by the same cost model; ``ranked`` is None where nothing fits or it could not be run."""

    name: str
    ranked: Ranked | None
    evaluations: int
    seconds: float
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointResult:
    """The best point of the space. ``upper_bound`` is what no point exceeds; ``gap`` = (upper_bound - best) / best.

    ``num_candidates``: chips of the space, each counted once; ``space_size``: these times memories, microbatches and
    recomputations. A point is a chip with a memory: of ``num_points``, ``evaluated`` were scheduled and placed, a bound
    alone ruled out ``pruned``, budgets and what can be built ``left_out``, and ``waiting`` nobody has looked at.
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
    """By model, why the best beats the TPUv4-like point (`joint_why.Reason`), where baselines were asked for."""
    tightest: str = ""
    interrupted: bool = False
    assumptions: tuple[str, ...] = field(default=())

    @property
    def waiting(self) -> int:
        """Points that were neither evaluated nor ruled out."""
        return max(self.num_points - self.left_out - self.evaluated - self.pruned, 0)
