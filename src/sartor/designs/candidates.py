"""The candidates of a space within all budgets as flat arrays, an evaluated one's price and objective, and the result.

The result of the joint search: the best point with its proof, the effort of the search, and baselines; and the
protocol of a store (`Keep`) for whatever else is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from sartor.cost.chip.area import die_area, published_area_mm2
from sartor.cost.chip.operator_latency import PACKAGE, SCALE_OUT, distinct_rows
from sartor.cost.chip.ownership import dies_usd, electricity_usd, excess, faults, package_usd, power
from sartor.designs.point import Evaluation
from sartor.designs.question import EQUAL, AreaModel, DesignQuestion, Objective
from sartor.designs.space import AcceleratorSpace, taken
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.interrupts import point
from sartor.units import GIGA, MIB, Array, Floats, Ints, format_bytes


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
    scouted: bool = False
    """Whether the best was only looked at ahead of the search, which no study holds yet."""
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


@dataclass(frozen=True, slots=True)
class Candidates:
    """All candidates of a space as flat arrays: group and place of each, area, power and price."""

    groups: tuple[Accelerator, ...]
    group: Array
    place: Array
    area_mm2: Array
    power_w: Array
    die_usd: Array
    hbm_bytes: Array
    """[memories, candidates]; 0: no such memory within the budget."""
    divisor: Array
    """[memories, candidates]: divisor of the objective (area, power, price of all devices); 1 for throughput itself."""

    @property
    def least_divisor(self) -> Array:
        """[candidates]"""
        return np.asarray(self.divisor.min(axis=0))

    def __len__(self) -> int:
        return len(self.group)

    def accelerator(self, index: int) -> Accelerator:
        return taken(self.groups[self.group[index]], int(self.place[index]))

    def only(self, index: Array) -> Candidates:
        """Only these candidates, renumbered."""
        groups = tuple(self.of_groups(index))
        group, place = np.zeros((2, len(index)), dtype=np.int64)
        for g, (where, _) in enumerate(groups):
            group[where], place[where] = g, np.arange(len(where))
        columns = {
            name: getattr(self, name)[..., index] for name in ("area_mm2", "power_w", "die_usd", "hbm_bytes", "divisor")
        }
        return Candidates(groups=tuple(accelerator for _, accelerator in groups), group=group, place=place, **columns)

    def memories(self, c: int) -> Iterator[int]:
        """Memories of a candidate, without those for which a larger one costs no more."""
        hbm, divisor = self.hbm_bytes[:, c], self.divisor[:, c]
        for h in np.flatnonzero(hbm > 0).tolist():
            better = (hbm >= hbm[h]) & (divisor <= divisor[h]) & ((hbm > hbm[h]) | (np.arange(len(hbm)) < h))
            if not better.any():
                yield h

    def of_groups(self, index: Array) -> Iterator[tuple[Array, Accelerator]]:
        """For each group, positions within ``index`` of its candidates, and the candidates."""
        for g in np.unique(self.group[index]):
            where = np.flatnonzero(self.group[index] == g)
            yield where, taken(self.groups[g], self.place[index][where])

    def boxes(self) -> tuple[tuple[tuple[Array, ...], Accelerator], ...]:
        """For each group, boxes of candidates with the same arrays and clock: their positions, and chips (one per box)
        that are nowhere worse than any in it."""
        return tuple(_boxes(where, a) for where, a in self.of_groups(np.arange(len(self))))


_BOX = (
    *("num_tensor_cores", "array_rows", "array_cols", "clock_hz", *SCALE_OUT, "link_latency_s", "stack_bytes_per_s"),
    *PACKAGE,
)
"""Fields equal within a box: those that decide most, and those of which more is not better."""


def _boxes(where: Array, a: Accelerator) -> tuple[tuple[Array, ...], Accelerator]:
    columns = {name: np.broadcast_to(getattr(a, name), a.shape) for name in ARRAY_FIELDS if np.ndim(getattr(a, name))}
    if not columns:
        return (where,), a
    _, box = distinct_rows([columns[name] for name in _BOX if name in columns] or [np.zeros(a.shape)])
    order = np.argsort(box, kind="stable")
    starts = np.flatnonzero(np.diff(box[order], prepend=-1))
    best = {name: np.maximum.reduceat(column[order], starts) for name, column in columns.items()}
    return tuple(np.split(where[order], starts[1:])), replace(a, **best)  # type: ignore[arg-type]


def candidates_of(question: DesignQuestion, space: AcceleratorSpace) -> tuple[Candidates, str]:
    """The candidates within all budgets, and if there are none, a sentence on the tightest constraint."""
    columns: dict[str, list[Array]] = {}
    for g, group in enumerate(space.groups):
        count = int(np.prod(group.shape, dtype=np.int64))
        memories = space.hbm_bytes or (np.nan,)
        area, watts = _area_of(question, group), np.broadcast_to(power(group).tdp_w, group.shape)
        hbm = np.stack([np.broadcast_to(group.hbm_bytes if np.isnan(h) else h, group.shape) for h in memories])
        usd = np.broadcast_to(dies_usd(group, area, question.costs.wafer_usd), group.shape)
        group_columns = {
            "group": np.full(count, g),
            "place": np.arange(count),
            "area": area,
            "power": watts,
            "usd": usd,
        }
        group_columns["stacks"] = np.broadcast_to(group.num_stacks, group.shape)
        group_columns["excess"] = space_excess(question, space, group)
        for name, value in {**group_columns, "hbm": hbm}.items():
            columns.setdefault(name, []).append(np.asarray(value))
    all_ = {name: np.concatenate(parts, axis=-1) for name, parts in columns.items()}
    unbuildable = _nearest_unbuildable(space, all_)
    all_ = {name: column[..., all_["excess"] <= 1] for name, column in all_.items()}
    masks = _masks(question, space, all_)
    keep = np.logical_and.reduce([mask for _, mask in masks])
    hbm = np.where(all_["hbm"] <= (question.budgets.hbm_bytes or np.inf), all_["hbm"], 0.0)
    usd = all_["usd"] + memory_usd(question, all_["hbm"])
    owned = _ownership_usd(question, all_["area"], all_["power"], usd, all_["stacks"])
    divisor = _divisor_of(question, all_["area"], all_["power"], usd, owned)
    divisor = np.broadcast_to(divisor, all_["hbm"].shape)
    candidates = Candidates(
        groups=space.groups,
        group=all_["group"][keep],
        place=all_["place"][keep],
        area_mm2=all_["area"][keep],
        power_w=all_["power"][keep],
        die_usd=all_["usd"][keep],
        hbm_bytes=hbm[:, keep],
        divisor=divisor[:, keep],
    )
    return candidates, "" if keep.any() else unbuildable or _tightest(masks, question, space, all_)


def space_excess(question: DesignQuestion, space: AcceleratorSpace, group: Accelerator) -> Array:
    """`excess` of a group's chips; 0 where those that cannot be built are not left out. A chip that is chosen among
    others must fit surely; one that is stated is as likely larger as smaller."""
    if not question.leaves_out_unbuildable:
        return np.zeros(group.shape)
    return np.asarray(excess(group, surely=space.num_kept > 1))


def priced(question: DesignQuestion, candidates: Candidates, evaluation: Evaluation) -> Ranked:
    """An evaluation of a candidate with its objective and its price."""
    i = evaluation.point.index
    area, watts, die_usd = (float(x[i]) for x in (candidates.area_mm2, candidates.power_w, candidates.die_usd))
    return _ranked(question, evaluation, area, watts, die_usd)


def alone(question: DesignQuestion, evaluation: Evaluation) -> Ranked:
    """The same for an accelerator that belongs to no space."""
    a = evaluation.point.accelerator
    area = float(_area_of(question, a))
    die_usd = float(dies_usd(a, area, question.costs.wafer_usd))
    return _ranked(question, evaluation, area, float(power(a).tdp_w), die_usd)


def _ranked(question: DesignQuestion, evaluation: Evaluation, area: float, watts: float, die_usd: float) -> Ranked:
    point = evaluation.point
    usd = die_usd + float(memory_usd(question, point.hbm_bytes))
    owned = float(_ownership_usd(question, area, watts, usd, point.accelerator.num_stacks))
    divisor = float(_divisor_of(question, area, watts, usd, owned))
    return Ranked(
        evaluation=evaluation,
        objective=float(question.together(np.array(evaluation.rates))) / divisor,
        bound=float(question.together(np.array(evaluation.bounds))) / divisor,
        area_mm2=area,
        power_w=watts,
        die_usd=die_usd,
        usd=usd,
        ownership_usd=owned,
    )


def _divisor_of(question: DesignQuestion, area_mm2: Any, power_w: Any, usd: Any, owned_usd: Any) -> Any:
    """The divisor of the objective: of all devices, from the area, power or price of one."""
    per = {
        Objective.PER_MM2: area_mm2,
        Objective.PER_WATT: power_w,
        Objective.PER_DOLLAR: usd,
        Objective.PER_OWNERSHIP_DOLLAR: owned_usd,
    }
    return per[question.objective] * question.num_devices if question.objective in per else 1.0


def _ownership_usd(
    question: DesignQuestion, area_mm2: Floats, power_w: Floats, usd: Floats, num_stacks: Ints
) -> Floats:
    """Price of die and memory ``usd`` with the package, and the electricity of the years of use."""
    costs = question.costs
    return usd + package_usd(area_mm2, num_stacks) + electricity_usd(power_w, costs.years, costs.usd_per_kwh)


def memory_usd(question: DesignQuestion, hbm_bytes: Floats) -> Floats:
    """Price of the memory beside a die."""
    return question.costs.hbm_usd_per_gb * hbm_bytes / GIGA


def _area_of(question: DesignQuestion, accelerator: Accelerator) -> Array:
    """Area [mm2] of every candidate by the question's model."""
    published = question.costs.area is AreaModel.PUBLISHED
    area = published_area_mm2(accelerator) if published else die_area(accelerator).total_mm2
    return np.broadcast_to(area, accelerator.shape)


def _nearest_unbuildable(space: AcceleratorSpace, all_: dict[str, Array]) -> str:
    """Why no candidate can be built, for the one that exceeds the limits least; empty if some can be built."""
    if (all_["excess"] <= 1).any():
        return ""
    nearest = int(all_["excess"].argmin())
    chip = taken(space.groups[all_["group"][nearest]], int(all_["place"][nearest]))
    why = faults(chip, surely=space.num_kept > 1)
    sentence = f"none of the {all_['excess'].size} candidates can be built; the nearest one: {'; '.join(why)}"
    return f"{sentence} ({_in_words(space, all_, nearest)}); --no-plausibility prices them anyway"


def _masks(question: DesignQuestion, space: AcceleratorSpace, all_: dict[str, Array]) -> list[tuple[str, Array]]:
    limits, area = question.budgets, question.budgets.area_mm2 or np.inf
    hbm = np.less_equal(all_["hbm"], (limits.hbm_bytes or np.inf) * (1 + EQUAL)).any(axis=0)
    watts = np.less_equal(all_["power"], (limits.power_w or np.inf) * (1 + EQUAL))
    inside = np.less_equal(all_["area"], min(area, _space_limit_mm2(question, space)) * (1 + EQUAL))
    return [("area_mm2", np.asarray(inside)), ("power_w", np.asarray(watts)), ("hbm_bytes", np.asarray(hbm))]


def _space_limit_mm2(question: DesignQuestion, space: AcceleratorSpace) -> float:
    """The space's own limit, which holds for areas of its own model."""
    return (space.area_limit_mm2 if question.costs.area is space.area_model else 0.0) or np.inf


def _tightest(
    masks: list[tuple[str, Array]], question: DesignQuestion, space: AcceleratorSpace, all_: dict[str, Array]
) -> str:
    """The constraint that the fewest candidates meet, and the point nearest to it."""
    name, mask = min(masks, key=lambda named_mask: int(named_mask[1].sum()))
    columns = {"area_mm2": all_["area"], "power_w": all_["power"], "hbm_bytes": all_["hbm"].min(axis=0)}
    limits = {key: getattr(question.budgets, key) or np.inf for key in columns}
    limits["area_mm2"] = min(limits["area_mm2"], _space_limit_mm2(question, space))
    limit = _amount(name, limits[name])
    if not mask.any():
        smallest = int(columns[name].argmin())
        takes = f"the smallest of {mask.size} candidates takes {_amount(name, columns[name][smallest])}"
        is_space_limit = name == "area_mm2" and limits[name] == space.area_limit_mm2
        return f"{'area_limit_mm2' if is_space_limit else name}={limit}: {takes} ({_in_words(space, all_, smallest)})"
    inside = ", ".join(
        f"{budget} {int(budget_mask.sum())}" for budget, budget_mask in masks if np.isfinite(limits[budget])
    )
    excess = np.max([columns[key] / limits[key] for key in columns], axis=0)
    near = int(excess.argmin())
    needs = " and ".join(f"{key}={_amount(key, columns[key][near])}" for key in columns if np.isfinite(limits[key]))
    return (
        f"{name}={limit}: no candidate is within all budgets at once (within each alone: {inside}); "
        f"the nearest takes {needs} ({_in_words(space, all_, near)})"
    )


def _amount(name: str, value: float) -> str:
    """``225.242``, and bytes whole and in their unit too: ``32000000000 (29.8 GiB)``."""
    shown = f"{float(value):.0f}" if value >= 1e6 else f"{float(value):.6g}"
    return shown + (f" ({format_bytes(float(value))})" if name == "hbm_bytes" else "")


def _in_words(space: AcceleratorSpace, all_: dict[str, Array], index: int) -> str:
    """A candidate's cores and buffer."""
    a = taken(space.groups[all_["group"][index]], int(all_["place"][index]))
    cores = f"num_tensor_cores={a.num_tensor_cores} of {a.array_rows} x {a.array_cols}"
    lanes = f"num_vector_cores={a.num_vector_cores} of {a.vector_lanes} lanes"
    return f"{cores}, {lanes}, global_buffer_mib={float(a.global_buffer_bytes) / MIB:g}"
