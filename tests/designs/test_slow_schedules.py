"""A search without a time limit goes on until schedules that are slow to prove are proved."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Callable

import pytest

from design_samples import question, small_shape, small_space
from designs.test_shapes_proved import random_axes
from sartor.designs import tasks
from sartor.designs.candidates import DesignStatus, JointResult
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.shape_family import search_with_family
from sartor.designs.shapes_proved import JointShapes, search_with_shapes
from sartor.designs.space import AcceleratorSpace
from sartor.model.training import Recompute
from sartor.schedules.split import BlockAnswer, OpBlock

NEEDED_S = 100.0
"""Seconds of work without which no schedule is proved here."""

SEED = 4
"""Shapes of which another than the first is best."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules are known up to a fifth, and proved only with much work."""
    module = importlib.import_module("sartor.schedules.solve")
    by_lists, prove = module._without_solver, module._by_work

    def loose(block: OpBlock) -> BlockAnswer:
        found: BlockAnswer = by_lists(block)
        return BlockAnswer(timetable=found.timetable, lower_bound=found.lower_bound * 4 // 5)

    def patient(block: OpBlock, answer: BlockAnswer, work: float) -> BlockAnswer:
        found: BlockAnswer = prove(block, answer, 3.2) if work >= NEEDED_S else answer
        return found

    monkeypatch.setattr(module, "_without_solver", loose)
    monkeypatch.setattr(module, "_by_work", patient)
    tasks._proved.cache_clear()


def asked_of(name: str) -> DesignQuestion:
    model = DesignModel(name=name, shape=small_shape(2, 128, name), seq_len=64, widths=(1,))
    return question(models=(model,), microbatch_sizes=(1,), recomputes=(Recompute.NONE,))


def space() -> AcceleratorSpace:
    return small_space(num_tensor_cores=[2, 4], num_vector_cores=[2], hbm_gb=[0.2])


def chip(deadline: float) -> JointResult:
    return search_design(asked_of("a"), space(), time_limit_s=deadline - time.perf_counter())


def shape(deadline: float) -> JointResult:
    found = search_with_shapes(asked_of("small"), space(), random_axes(random.Random(SEED)), deadline=deadline)
    assert isinstance(found, JointShapes)
    return found.result


def family(deadline: float) -> JointResult:
    found = search_with_family(asked_of("small"), space(), [random_axes(random.Random(SEED))], deadline=deadline)
    assert isinstance(found, JointShapes)
    return found.result


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("search", [chip, shape, family])
def test_it_ends_with_the_proof_or_when_time_is_too_short(search: Callable[[float], JointResult]) -> None:
    short = search(time.perf_counter() + NEEDED_S / 2)
    assert short.status is DesignStatus.FEASIBLE
    assert 0 < short.gap < 0.25 * (1 + 1e-9)
    proved = search(float("inf"))
    assert proved.status is DesignStatus.OPTIMAL
    assert proved.best is not None
    assert proved.best.objective <= short.upper_bound * (1 + 1e-9)
