"""A design's page and figures: what is drawn is what was found, offline, the same every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from design_samples import SMALL_CONFIG
from sartor import api
from sartor.answers.design import DesignAnswer
from sartor.designs.candidates import Baseline, DesignStatus
from sartor.designs.detail import area_parts, model_detail
from sartor.designs.space import space_from
from sartor.report.charts import draw
from sartor.report.chip_points import Convergence, FloorPlan, squarified
from sartor.report.design_document import design_page
from sartor.report.design_points import CoreBars, design_points
from sartor.report.design_words import headlines, memory_text, notes_of
from sartor.report.figures import export_pngs
from sartor.report.plan_points import PipelineBars, StepBars

AXES = {"num_tensor_cores": [1, 4], "num_vector_cores": [2], "array_rows": [16, 32], "array_cols": 32}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> DesignAnswer:
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(SMALL_CONFIG))
    found = api.design(
        folder,
        num_devices=8,
        global_batch_size=32,
        space=space_from({**AXES, "global_buffer_mib": 2, "hbm_gb": [0.02]}),
        microbatch_size=[1],
        tp=[1],
        baselines=False,
    )
    assert found.best is not None
    other = Baseline(name="chip, searched placement", ranked=found.best, evaluations=1, seconds=1.0, note="a; t1 p1 d8")
    return replace(found, result=replace(found.result, baselines=(other,)))


def test_the_page_answers_in_words_and_holds_every_section_and_figure(answer: DesignAnswer) -> None:
    page = design_page(answer)
    for anchor in ("search", "others", "plans", "chip", "layer", "pipeline", "reading"):
        assert f'id="{anchor}"' in page
    for name in design_points(answer):
        assert f'id="figure-{name}"' in page
    assert "default-src 'none'" in page
    assert len(page) < 1_600_000
    assert page == design_page(answer), "the same answer gives the same bytes"


def test_a_page_says_why_nothing_fits(answer: DesignAnswer) -> None:
    nothing = replace(
        answer.result, status=DesignStatus.INFEASIBLE, best=None, ranked=(), baselines=(), tightest="area_mm2=1: small"
    )
    page = design_page(replace(answer, result=nothing))
    assert "No point of the space fits. Tightest constraint: area_mm2=1: small." in page


def test_figures_hold_the_answers_numbers(answer: DesignAnswer) -> None:
    records, best = design_points(answer), answer.best
    assert best is not None
    step, plan, pipeline = records["step"], records["floor_plan"], records["pipeline"]
    assert isinstance(step, StepBars)
    assert isinstance(plan, FloorPlan)
    assert isinstance(pipeline, PipelineBars)
    detail = model_detail(answer.question, best.evaluation, 0)
    assert detail is not None
    assert step.time_s.sum() == pytest.approx(detail.outcome.step_s, rel=0.01)
    mine = np.array([die == "best" for die in plan.die])
    assert plan.area_mm2[mine].sum() == pytest.approx(best.area_mm2)
    boxes = (plan.right - plan.left) * (plan.bottom - plan.top)
    assert boxes[mine].sum() == pytest.approx(best.area_mm2)
    assert (pipeline.end_s > pipeline.start_s).all()
    assert pipeline.end_s.max() <= detail.outcome.step_s * (1 + 1e-9)
    for way in ("forward", "backward"):
        layer = records[f"layer_{way}"]
        assert isinstance(layer, CoreBars)
        scheduled = getattr(detail.outcome.layers[1], f"{way}_s")
        assert layer.end_s.max() == pytest.approx(scheduled)


def test_what_is_reached_never_exceeds_what_is_possible(answer: DesignAnswer) -> None:
    points = design_points(answer)["convergence"]
    assert isinstance(points, Convergence)
    assert (points.incumbent <= points.bound * (1 + 1e-9)).all()
    assert (np.diff(points.seconds) >= 0).all()


def test_parts_of_the_die_add_up_by_either_model(answer: DesignAnswer) -> None:
    assert answer.best is not None
    chip = answer.best.evaluation.point.accelerator
    assert sum(area_parts(answer.question, chip).values()) == pytest.approx(answer.best.area_mm2)


def test_every_figure_is_drawn_and_is_a_png(answer: DesignAnswer, tmp_path: Path) -> None:
    paths = export_pngs(design_points(answer), tmp_path)
    assert {path.stem for path in paths} == set(design_points(answer))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    for points in design_points(answer).values():
        assert draw(points).to_dict()


def test_an_unproved_answer_says_how_much_better_there_could_be(answer: DesignAnswer) -> None:
    open_ = replace(answer.result, status=DesignStatus.FEASIBLE, gap=0.0123, interrupted=True)
    assert "more than 1.2% better" in headlines(replace(answer, result=open_))[-1]
    assert "Proved" in headlines(answer)[-1]


def test_notes_of_other_ways_are_said_once(answer: DesignAnswer) -> None:
    assert notes_of(answer) == ["chip: a"]


@pytest.mark.parametrize(("size", "text"), [(64e9, "64 GB"), (0.02e9, "0.02 GB"), (2**35, "32 GiB")])
def test_memories_are_written_as_they_are_sold(size: float, text: str) -> None:
    assert memory_text(size) == text


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9))
def test_rectangles_have_their_areas_and_fill_the_die(areas: list[float]) -> None:
    areas = sorted(areas, reverse=True)
    side = sum(areas) ** 0.5
    boxes = squarified(areas, side)
    for area, (left, top, right, bottom) in zip(areas, boxes, strict=True):
        assert (right - left) * (bottom - top) == pytest.approx(area)
        assert -1e-6 <= left < right <= side * (1 + 1e-6)
        assert -1e-6 <= top < bottom <= side * (1 + 1e-6)
