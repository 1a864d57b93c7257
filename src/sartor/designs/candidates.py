"""The candidates of a space within all budgets as flat arrays, an evaluated one's price and objective, and the result.

The result of the joint search: the best point with its proof, the effort of the search, and baselines; and the
protocol of a store (`Keep`) for whatever else is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from sartor.cost.chip.area import die_area, published_area_mm2
from sartor.cost.chip.operator_latency import PACKAGE, SCALE_OUT
from sartor.cost.chip.ownership import dies_usd, electricity_usd, excess, faults, network_beyond, package_usd, power
from sartor.designs.point import Evaluation
from sartor.designs.question import EQUAL, AreaModel, DesignQuestion, Objective
from sartor.designs.space import AcceleratorSpace, column, taken
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.interrupts import point
from sartor.units import GIGA, MIB, Array, Floats, IntArray, format_bytes

T = TypeVar("T")


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
    """``usd`` plus package, switches and cables, and electricity of all over the years of use at peak power; no test,
    margin or host."""


def best_of(points: Iterable[tuple[float, float, int, T]]) -> T | None:
    """The best of points (objective, area, number, point) with an objective: of equals, the smallest die, then the
    first number. None if there are none."""
    known = [entry for entry in points if entry[0] > 0]
    top = max((objective for objective, *_ in known), default=0.0)
    equals = (entry for entry in known if entry[0] >= top * (1 - EQUAL))
    return min(equals, key=lambda entry: entry[1:3], default=(0, 0, 0, None))[-1]


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
    """All candidates of a space within all budgets: group and place of each, memories, divisors of the objective."""

    groups: tuple[Accelerator, ...]
    group: IntArray
    place: IntArray
    hbm_bytes: Array
    """[memories, candidates]; 0: no such memory within the budget."""
    divisor: Array
    """[memories, candidates]: divisor of the objective (area, power, price of all devices); 1 for throughput itself."""

    def least_divisor(self, index: Array | slice = slice(None)) -> Array:
        """[index], or [candidates]"""
        return np.asarray(self.divisor[:, index].min(axis=0))

    def __len__(self) -> int:
        return len(self.group)

    def accelerator(self, index: int) -> Accelerator:
        return taken(self.groups[self.group[index]], int(self.place[index]))

    def column(self, name: str) -> Array:
        """A field of every candidate."""
        values = np.zeros(len(self))
        for g, a in enumerate(self.groups):
            where = self.group == g
            values[where] = column(getattr(a, name), a.shape, self.place[where])
        return values

    def only(self, index: Array) -> Candidates:
        """Only these candidates, renumbered."""
        groups = tuple(self.of_groups(index))
        group, place = np.zeros((2, len(index)), dtype=np.int64)
        for g, (where, _) in enumerate(groups):
            group[where], place[where] = g, np.arange(len(where))
        columns = {name: getattr(self, name)[:, index] for name in ("hbm_bytes", "divisor")}
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

    def boxes(self, *, fine: bool = False) -> tuple[list[Array], Candidates]:
        """Boxes of candidates with the same arrays and clock (and lanes, if ``fine``): their positions, and chips (one
        per box) that are nowhere worse than any in it."""
        boxes, chips, fields = list[Array](), list[Accelerator](), (*_BOX, *_FINE) if fine else _BOX
        for g, a in enumerate(self.groups):
            if len(where := np.flatnonzero(self.group == g)):
                members, best = _boxes(where, a, self.place[where], fields)
                boxes += members
                chips.append(best)
        counts = [int(np.prod(best.shape)) for best in chips]
        return boxes, Candidates(
            groups=tuple(chips),
            group=np.repeat(np.arange(len(chips)), counts),
            place=np.concatenate([np.arange(count) for count in counts]),
            hbm_bytes=np.array([[self.hbm_bytes[:, box].max() for box in boxes]]),
            divisor=np.array([[self.divisor[:, box].min() for box in boxes]]),
        )


_BOX = (
    *("num_tensor_cores", "array_rows", "array_cols", "clock_hz", *SCALE_OUT, "link_latency_s", "stack_bytes_per_s"),
    *PACKAGE,
)
"""Fields equal within a box: those that decide most, and those of which more is not better."""
_FINE = ("num_vector_cores", "vector_lanes")
"""Fields equal within a fine box too: it differs in memories, buffers and links alone."""


def _boxes(where: Array, a: Accelerator, place: IntArray, fields: tuple[str, ...]) -> tuple[list[Array], Accelerator]:
    box = np.zeros(len(where), dtype=np.int64)
    for name in fields:
        values, number = np.unique(getattr(a, name), return_inverse=True)
        if len(values) > 1:
            box = box * len(values) + column(number.reshape(np.shape(getattr(a, name))), a.shape, place)
    order = np.argsort(box, kind="stable")
    starts = np.flatnonzero(np.diff(box[order], prepend=-1))
    fields_with_arrays = (name for name in ARRAY_FIELDS if np.ndim(getattr(a, name)))
    best = {
        name: np.maximum.reduceat(column(getattr(a, name), a.shape, place[order]), starts)
        for name in fields_with_arrays
    }
    return np.split(where[order], starts[1:]), replace(a, **best)  # type: ignore[arg-type]


def candidates_of(question: DesignQuestion, space: AcceleratorSpace) -> tuple[Candidates, str]:
    """The candidates within all budgets, and if there are none, a sentence on the tightest constraint."""
    parts = [_within_budgets(question, space, *chunk) for chunk in space.chunks()]
    columns = {name: np.concatenate([part.pop(name) for part in parts], axis=-1) for name in list(parts[0])}
    if question.objective not in PER:
        columns["divisor"] = np.broadcast_to(1.0, columns["hbm_bytes"].shape)
    candidates = Candidates(groups=space.groups, **columns)
    return candidates, "" if len(candidates) else _why_none(question, space)


def _within_budgets(
    question: DesignQuestion, space: AcceleratorSpace, group: int, places: IntArray, chips: Accelerator
) -> dict[str, Array]:
    """The columns of `Candidates` for those of a chunk that can be built and are within all budgets."""
    priced_columns = _priced_columns(question, space, chips)
    masks = _masks(_limits(question, space), priced_columns)
    keep = np.logical_and.reduce([priced_columns["excess"] <= 1, *masks.values()])
    hbm, area, watts = (priced_columns[name][..., keep] for name in ("hbm", "area", "power"))
    columns: dict[str, Array] = {
        "group": np.full(int(keep.sum()), group, dtype=np.int16),
        "place": places[keep].astype(np.int32),
        "hbm_bytes": np.where(hbm <= (question.budgets.hbm_bytes or np.inf), hbm, 0.0),
    }
    if question.objective in PER:
        usd = priced_columns["usd"][keep] + memory_usd(question, hbm)
        owned = _ownership_usd(question, area, watts, usd, chips, keep)
        columns["divisor"] = np.broadcast_to(_divisor_of(question, area, watts, usd, owned), hbm.shape)
    return columns


def _priced_columns(question: DesignQuestion, space: AcceleratorSpace, chips: Accelerator) -> dict[str, Array]:
    """Area, power, price, memories and `excess` of the chips of a chunk."""
    area, watts, usd = prices(question, chips)
    memories = space.hbm_bytes or (chips.hbm_bytes,)
    hbm = np.stack([np.broadcast_to(size, chips.shape or (1,)) for size in memories])
    excess_columns = np.broadcast_to(space_excess(question, space, chips), chips.shape or (1,))
    return {"area": area, "power": watts, "usd": usd, "excess": excess_columns, "hbm": hbm}


def all_prices(question: DesignQuestion, candidates: Candidates) -> Array:
    """`prices` of all candidates [3, candidates]."""
    columns = np.zeros((3, len(candidates)))
    for where, a in candidates.of_groups(np.arange(len(candidates))):
        columns[:, where] = prices(question, a)
    return columns


def prices(question: DesignQuestion, a: Accelerator) -> tuple[Array, Array, Array]:
    """Area [mm2] by the question's model, peak power [W] and price of the dies [USD] of every candidate."""
    published = question.costs.area is AreaModel.PUBLISHED
    area = np.broadcast_to(published_area_mm2(a) if published else die_area(a).total_mm2, a.shape or (1,))
    usd = dies_usd(a, area, question.costs.wafer_usd)
    return area, np.broadcast_to(power(a).tdp_w, area.shape), np.broadcast_to(usd, area.shape)


def space_excess(question: DesignQuestion, space: AcceleratorSpace, group: Accelerator) -> Array:
    """`excess` of a group's chips; 0 where those that cannot be built are not left out. A chip that is chosen among
    others must fit surely; one that is stated is as likely larger as smaller."""
    if not question.leaves_out_unbuildable:
        return np.zeros(group.shape)
    return np.asarray(excess(group, surely=space.num_kept > 1))


def priced(question: DesignQuestion, evaluation: Evaluation) -> Ranked:
    """An evaluation with its objective and its price."""
    point, evaluated = evaluation.point, evaluation.point.accelerator
    area, watts, die_usd = (float(column[0]) for column in prices(question, evaluated))
    usd = die_usd + float(memory_usd(question, point.hbm_bytes))
    owned = float(_ownership_usd(question, area, watts, usd, evaluated))
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


PER = (Objective.PER_MM2, Objective.PER_WATT, Objective.PER_DOLLAR, Objective.PER_OWNERSHIP_DOLLAR)
"""Objectives that are throughput over what all devices take; `_divisor_of` takes them in this order."""


def _divisor_of(question: DesignQuestion, *takes: Any) -> Any:
    """The divisor of the objective: of all devices, from the area, power, price or ownership of one."""
    return takes[PER.index(question.objective)] * question.num_devices if question.objective in PER else 1.0


def _ownership_usd(
    question: DesignQuestion, area_mm2: Floats, power_w: Floats, usd: Floats, a: Accelerator, keep: Any = ...
) -> Floats:
    """Price of die and memory ``usd`` with the package and the network beyond the links, and the electricity of the
    years of use, of those chips of ``a`` to ``keep``."""
    costs, shape = question.costs, np.shape(keep) or a.shape
    columns = (a.num_stacks, *network_beyond(a, question.num_devices))
    stacks, network_usd, network_w = (np.broadcast_to(column, shape)[keep] for column in columns)
    electricity = electricity_usd(power_w + network_w, costs.years, costs.usd_per_kwh)
    owned: Floats = usd + package_usd(area_mm2, stacks) + network_usd + electricity
    return owned


def memory_usd(question: DesignQuestion, hbm_bytes: Floats) -> Floats:
    """Price of the memory beside a die."""
    return question.costs.hbm_usd_per_gb * hbm_bytes / GIGA


def _why_none(question: DesignQuestion, space: AcceleratorSpace) -> str:
    """Why no candidate is left: none can be built, or the constraint that the fewest meet; with the nearest one."""
    limits, counts, buildable = _limits(question, space), dict.fromkeys(BUDGETS, 0), 0
    least = dict[str, tuple[float, dict[str, float], Accelerator]]()
    for _, _, chips in space.chunks():
        columns = _priced_columns(question, space, chips)
        can = columns["excess"] <= 1
        takes = dict(zip(BUDGETS, (columns["area"], columns["power"], columns["hbm"].min(axis=0)), strict=True))
        together = np.max([takes[name] / limits[name] for name in BUDGETS], axis=0)
        ranks = {name: np.where(can, column, np.inf) for name, column in {**takes, "together": together}.items()}
        for name, rank in {"excess": columns["excess"], **ranks}.items():
            i = int(rank.argmin())
            if rank[i] < least.get(name, (np.inf,))[0]:
                least[name] = (float(rank[i]), {key: float(take[i]) for key, take in takes.items()}, taken(chips, i))
        buildable += int(can.sum())
        for name, mask in _masks(limits, columns).items():
            counts[name] += int((mask & can).sum())
    if not buildable:
        chip = least["excess"][-1]
        why = "; ".join(faults(chip, surely=space.num_kept > 1))
        sentence = f"none of the {space.num_kept} candidates can be built; the nearest one: {why} ({_in_words(chip)})"
        return f"{sentence}; --no-plausibility prices them anyway"
    name = min(counts, key=lambda name: counts[name])
    limit = _amount(name, limits[name])
    if not counts[name]:
        smallest, _, chip = least[name]
        takes_least = f"the smallest of {buildable} candidates takes {_amount(name, smallest)} ({_in_words(chip)})"
        is_space_limit = name == "area_mm2" and limits[name] == space.area_limit_mm2
        return f"{'area_limit_mm2' if is_space_limit else name}={limit}: {takes_least}"
    limited = [name for name in BUDGETS if np.isfinite(limits[name])]
    _, nearest, chip = least["together"]
    return (
        f"{name}={limit}: no candidate is within all budgets at once (within each alone: "
        f"{', '.join(f'{name} {counts[name]}' for name in limited)}); the nearest takes "
        f"{' and '.join(f'{name}={_amount(name, nearest[name])}' for name in limited)} ({_in_words(chip)})"
    )


BUDGETS = ("area_mm2", "power_w", "hbm_bytes")
"""Budgets of one chip."""


def _limits(question: DesignQuestion, space: AcceleratorSpace) -> dict[str, float]:
    """The budgets, infinite where there is none. A space's own limit holds for areas of its own model."""
    limits = {name: getattr(question.budgets, name) or np.inf for name in BUDGETS}
    if space.area_limit_mm2 and question.costs.area is space.area_model:
        limits["area_mm2"] = min(limits["area_mm2"], space.area_limit_mm2)
    return limits


def _masks(limits: dict[str, float], columns: dict[str, Array]) -> dict[str, Array]:
    """By budget, which chips of a chunk are within it."""
    takes = (columns["area"], columns["power"], columns["hbm"].min(axis=0))
    return {name: np.asarray(column <= limits[name] * (1 + EQUAL)) for name, column in zip(BUDGETS, takes, strict=True)}


def _amount(name: str, value: float) -> str:
    """``225.242``, and bytes whole and in their unit too: ``32000000000 (29.8 GiB)``."""
    shown = f"{float(value):.0f}" if value >= 1e6 else f"{float(value):.6g}"
    return shown + (f" ({format_bytes(float(value))})" if name == "hbm_bytes" else "")


def _in_words(a: Accelerator) -> str:
    """A candidate's cores and buffer."""
    cores = f"num_tensor_cores={a.num_tensor_cores} of {a.array_rows} x {a.array_cols}"
    lanes = f"num_vector_cores={a.num_vector_cores} of {a.vector_lanes} lanes"
    return f"{cores}, {lanes}, global_buffer_mib={float(a.global_buffer_bytes) / MIB:g}"
