"""A plan's page, figures and trace: what is drawn is what was predicted, offline, the same every time."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.answers.plan import PlanAnswer
from sartor.model.training import TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.report.figures import export_pngs
from sartor.report.plan_document import plan_page
from sartor.report.plan_points import MemoryFall, PipelineBars, StepBars, drawable, plan_points
from sartor.report.trace import plan_trace


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return api.plan(
        "llama-3.1-8b", "dgx-h100", num_devices=[16], global_batch_size=32, fix={"tp": 2, "pp": 4, "virtual_stages": 2}
    )


def test_the_page_answers_in_words_and_holds_every_section_and_figure(answer: PlanAnswer) -> None:
    page = plan_page(answer)
    for anchor in ("time", "memory", "pipeline", "plans", "why-not", "cost", "reading"):
        assert f'id="{anchor}"' in page
    for name in plan_points(answer):
        assert f'id="figure-{name}"' in page
    assert "default-src 'none'" in page
    assert len(page) < 1_600_000
    assert page == plan_page(answer), "the same answer gives the same bytes"


def test_a_page_says_why_nothing_fits(answer: PlanAnswer) -> None:
    found = api.plan("llama-3.1-405b", "dgx-h100", num_devices=[8], global_batch_size=8)
    assert found.best is None
    page = plan_page(found)
    assert "What would fit" in page
    assert 'id="why-not"' in page


def test_figures_hold_the_predictions_numbers(answer: PlanAnswer) -> None:
    records = plan_points(answer)
    step, fall, pipeline = records["step"], records["memory_fall"], records["pipeline"]
    assert answer.best is not None
    assert isinstance(step, StepBars)
    assert isinstance(fall, MemoryFall)
    assert isinstance(pipeline, PipelineBars)
    assert step.time_s[0].sum() == pytest.approx(answer.best.step_s, rel=0.05)
    assert fall.bytes.sum() == pytest.approx(answer.best.peak_bytes)
    assert np.all(pipeline.end_s > pipeline.start_s)
    assert set(pipeline.stage.tolist()) == set(range(4))


def test_every_figure_is_a_png(answer: PlanAnswer, tmp_path: Path) -> None:
    paths = export_pngs(plan_points(answer), tmp_path)
    assert {path.stem for path in paths} == set(plan_points(answer))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_trace_has_a_process_a_stage_no_overlap_on_a_track_and_memory(answer: PlanAnswer) -> None:
    assert answer.best is not None
    plan = answer.best.plan
    events = json.loads(plan_trace(answer))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.partition(",")[0] for name in sorted(names.values())] == [f"stage {k}" for k in range(4)]
    assert all(name.partition(", rank")[2] for name in names.values())
    tracks = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            tracks[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"], e["cat"]))
    for spans in tracks.values():
        if all(cat.startswith("send") for *_, cat in spans):
            continue
        spans.sort()
        assert all(b[0] >= a[1] - 1e-3 for a, b in pairwise(spans))
    forward = [e for e in events if e.get("cat") == "forward"]
    assert len(forward) == 4 * 2 * int(plan.num_microbatches), "every microbatch through every chunk"
    held = [e["args"]["GiB"] for e in events if e["ph"] == "C"]
    assert len({e["pid"] for e in events if e["ph"] == "C"}) == 4
    assert min(held) > 0
    assert max(held) * 2**30 <= answer.best.peak_bytes


@pytest.mark.parametrize(("pp", "virtual", "count"), [(1, 1, 5000), (8, 6, 256), (64, 2, 512), (4, 1, 8)])
def test_as_many_microbatches_are_drawn_as_can_be_read(pp: int, virtual: int, count: int) -> None:
    plan = TrainingPlan(dims=ParallelDims(pp=pp), virtual_stages=virtual, num_microbatches=count)
    drawn = drawable(plan)
    assert 1 <= drawn <= count
    assert pp == 1 or drawn == count or drawn % pp == 0
    assert drawable(replace(plan, num_microbatches=drawn)) == drawn
