"""Search only the architecture: sampled by a tree-structured Parzen estimator, placements fixed to the experts'.

A search like Spotlight's (Sakhuja et al., HPCA 2023): a Bayesian optimizer, here Optuna (Akiba et al., KDD 2019),
proposes hardware, layers run one operator after another on it, and nothing is proved.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor.designs.baselines import NamedChip, expert_options, expert_point, fixed_outcome, searched
from sartor.designs.bounds import lower_models
from sartor.designs.candidates import Baseline, Candidates, Keep, afresh, candidates_of
from sartor.designs.parts import ModelPart, ModelParts
from sartor.designs.point import LayerTime, Point, ScheduleStore, parts_of
from sartor.designs.question import DesignQuestion
from sartor.designs.space import AcceleratorSpace, taken
from sartor.hardware.accelerator import ARRAY_FIELDS, Accelerator
from sartor.operators import OperatorGraph
from sartor.schedules.makespan import UNIT_S, fuse_graph, in_turn_s, whole_latencies

Array = npt.NDArray[Any]

TRIALS = 200
AT_A_TIME = 10
"""Proposals priced together before the sampler gets their results."""


ALONE = "architecture alone (Bayesian search, expert placement)"


def architecture_alone(
    question: DesignQuestion,
    space: AcceleratorSpace,
    store: ScheduleStore,
    *,
    trials: int = TRIALS,
    seed: int = 0,
    time_limit_s: float = 60.0,
    keep: Keep = afresh,
) -> Iterator[Baseline]:
    """Results of a search like Spotlight's: only the architecture, sampled by a Bayesian optimizer, with every model
    under its expert's placement and operators one after another; then the placement searched on the chip it found."""
    start = time.perf_counter()
    found = architecture_search(question, space, trials=trials, seed=seed, time_limit_s=time_limit_s, keep=keep)
    best = expert_point(question, found.accelerator, found.hbm_bytes, store) if found.accelerator else None
    yield Baseline(
        name=ALONE,
        ranked=best,
        evaluations=found.trials,
        seconds=time.perf_counter() - start,
        note=found.note if best else "no sampled architecture holds the experts' placements",
    )
    if found.accelerator is not None and best is not None:
        sizes = tuple(space.hbm_bytes) or (found.hbm_bytes,)
        chip = NamedChip(name="architecture alone, then its", accelerator=found.accelerator, hbm_bytes=sizes)
        then = searched(question, lower_models(question), chip, store, keep)
        yield replace(then, seconds=time.perf_counter() - start, evaluations=found.trials + then.evaluations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The best sampled architecture (None: the experts' placements fit on none) and the number of samples."""

    accelerator: Accelerator | None
    hbm_bytes: float
    trials: int
    note: str


def architecture_search(
    question: DesignQuestion,
    space: AcceleratorSpace,
    *,
    trials: int = TRIALS,
    seed: int = 0,
    time_limit_s: float = float("inf"),
    keep: Keep = afresh,
) -> Sampled:
    """The best of ``trials`` sampled candidates, each with its largest memory. A proposal that is not a candidate
    (beyond a budget, or left out of the space) counts as a trial with objective 0.

    Exits the program if optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise SystemExit("a Bayesian search of architectures needs optuna: pip install optuna") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    candidates, why = candidates_of(question, space)
    if why:
        return Sampled(accelerator=None, hbm_bytes=0.0, trials=0, note=why)
    axes, rows = _axes(space, candidates)
    places = {tuple(row): index for index, row in enumerate(rows.tolist())}
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    best, best_index, done, start = 0.0, -1, 0, time.perf_counter()
    known, trials = {-1: 0.0}, min(trials, 2 * len(candidates))
    while done < trials and time.perf_counter() - start < time_limit_s:
        asked = [study.ask() for _ in range(min(AT_A_TIME, trials - done))]
        keys = [tuple(trial.suggest_int(name, 0, size - 1) for name, size in axes.items()) for trial in asked]
        index = [places.get(key, -1) for key in keys]
        new = sorted(set(index) - known.keys())
        values = keep(f"sampled candidates {new}", partial(_values, question, candidates, new))
        known.update(zip(new, values, strict=True))
        for trial, i in zip(asked, index, strict=True):
            study.tell(trial, known[i])
            if known[i] > best:
                best, best_index = known[i], i
        done += len(asked)
    note = f"optuna {optuna.__version__}, TPE sampler, seed {seed}, layers' operators in turn"
    if best_index < 0:
        return Sampled(accelerator=None, hbm_bytes=0.0, trials=done, note=note)
    hbm = float(candidates.hbm_bytes[:, best_index].max())
    return Sampled(accelerator=candidates.accelerator(best_index), hbm_bytes=hbm, trials=done, note=note)


def _axes(space: AcceleratorSpace, candidates: Candidates) -> tuple[dict[str, int], Array]:
    """Fields in which candidates differ, with their numbers of values, and every candidate's position on these axes."""
    columns = {}
    if len(space.groups) > 1:
        columns["group"] = candidates.group
    columns |= {name: candidates.column(name) for name in ARRAY_FIELDS}
    axes: dict[str, int] = {}
    places: list[Array] = []
    for name, column in columns.items():
        values, at = np.unique(column, return_inverse=True)
        if len(values) > 1 and not any(np.array_equal(at, other) for other in places):
            axes[name] = len(values)
            places.append(at)
    keep = _independent(places)
    names = [name for name, kept in zip(axes, keep, strict=True) if kept]
    chosen = [place for place, kept in zip(places, keep, strict=True) if kept]
    rows = np.stack(chosen, axis=1) if chosen else np.zeros((len(candidates), 0), dtype=np.int64)
    return {name: axes[name] for name in names}, rows


def _independent(places: Sequence[Array]) -> list[bool]:
    """Which axes are needed to distinguish candidates; axes that follow from others (private buffers) are not."""
    keep = [True] * len(places)
    if not places:
        return keep
    whole = len(np.unique(np.stack(places, axis=1), axis=0))
    for i in reversed(range(len(places))):
        rest = [place for j, place in enumerate(places) if keep[j] and j != i]
        if rest and len(np.unique(np.stack(rest, axis=1), axis=0)) == whole:
            keep[i] = False
    return keep


def _values(question: DesignQuestion, candidates: Candidates, index: Sequence[int]) -> tuple[float, ...]:
    """The objective of each candidate under the experts' placements; 0 if they do not fit."""
    where = np.asarray(index, dtype=np.int64)
    rates = np.zeros((len(question.models), len(where)))
    for columns, some in candidates.of_groups(where):
        memory = candidates.hbm_bytes[:, where[columns]].max(axis=0)
        for m in range(len(question.models)):
            rates[m, columns] = _rates(question, m, some, memory)
    return tuple((np.asarray(question.together(rates)) / _divisor(candidates, where)).tolist())


def _divisor(candidates: Candidates, where: Array) -> Array:
    """The objective's divisor of each candidate with its largest memory."""
    return np.asarray(candidates.divisor[candidates.hbm_bytes[:, where].argmax(axis=0), where])


def _rates(question: DesignQuestion, m: int, some: Accelerator, hbm_bytes: Array) -> Array:
    """Sequences per second of one model on each of ``some`` accelerators."""
    best = np.zeros(len(hbm_bytes))
    for memory in np.unique(hbm_bytes):
        for option, expert in expert_options(question, m, float(memory)):
            parts = parts_of(question, m, option.split)
            if parts is None:
                continue
            times = list(_times(parts, some))
            for column in np.flatnonzero(hbm_bytes == memory):
                a = taken(some, int(column))
                point = Point(index=-1, accelerator=a, hbm_bytes=float(memory), options=())
                found = fixed_outcome(question, point, option, expert, (parts, _layers(times, int(column))))
                best[column] = max(best[column], found.sequences_per_s if found else 0.0)
    return best


def _times(parts: ModelParts, some: Accelerator) -> Iterator[tuple[ModelPart, Array, Array]]:
    for part in parts.parts:
        yield part, _serial_s(part, part.forward, some), _serial_s(part, part.backward, some)


def _serial_s(part: ModelPart, graph: OperatorGraph, some: Accelerator) -> Array:
    """Seconds of a part's operators one after another, each on one core or on all, whichever is faster."""
    if part.in_turn or not graph.operators:
        return in_turn_s(graph, some)
    single, split = whole_latencies(fuse_graph(graph), some)
    return np.asarray(np.minimum(single, split).sum(axis=0) * UNIT_S)


def _layers(times: Sequence[tuple[ModelPart, Array, Array]], column: int) -> tuple[LayerTime, ...]:
    return tuple(
        LayerTime(
            name=part.name,
            forward_s=float(forward[column]),
            backward_s=float(backward[column]),
            forward_least_s=float(forward[column]),
            backward_least_s=float(backward[column]),
        )
        for part, forward, backward in times
    )
