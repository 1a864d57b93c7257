"""A diagnosed run's page and figures: what is drawn adds up to what was measured, offline, the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, TraceDiagnosis
from sartor.report.charts import FILE, PAGE, draw
from sartor.report.diagnose_document import diagnose_page
from sartor.report.run_points import IDEAL, fall_points, operator_points, run_points
from traces.kineto_made import Made, strength_for, write
from traces.logs_made import torchtitan


@pytest.fixture(scope="module")
def of_trace(tmp_path_factory: pytest.TempPathFactory) -> TraceDiagnosis:
    path = write(
        Made(fault="host_gaps", strength=strength_for("host_gaps"), seed=1, steps=3),
        tmp_path_factory.mktemp("run") / "rank0.json",
    )
    found = api.diagnose(path, gpu="h100")
    assert isinstance(found, TraceDiagnosis)
    return found


@pytest.fixture(scope="module")
def of_log(tmp_path_factory: pytest.TempPathFactory) -> LogDiagnosis:
    path = tmp_path_factory.mktemp("run") / "train.log"
    path.write_text(torchtitan())
    found = api.diagnose(path, model="llama-3-8b", gpu="h100", num_devices=8, global_batch_size=8, seq_len=8192)
    assert isinstance(found, LogDiagnosis)
    return found


def test_the_waterfall_goes_from_the_ideal_step_to_the_measured_one(
    of_trace: TraceDiagnosis, of_log: LogDiagnosis
) -> None:
    for answer in (of_trace, of_log):
        measured = answer.to_dict()["measured"]
        fall = fall_points(measured["step_s"], answer.run_parts)
        assert fall.parts[0] == IDEAL
        assert fall.seconds[0] == pytest.approx(measured["mfu"] * measured["step_s"], rel=1e-6)
        assert fall.seconds.sum() == pytest.approx(measured["step_s"])


def test_the_waterfall_of_a_trace_names_the_loss_that_comes_first(of_trace: TraceDiagnosis) -> None:
    title = run_points(of_trace)["fall"].title
    assert title.endswith("the first to mend is idle after calls that wait for the device")


def test_the_operators_that_lose_most_come_first(of_trace: TraceDiagnosis) -> None:
    drawn = operator_points(of_trace.priced)
    assert drawn is not None
    count = {each.name: each.count for each in of_trace.priced}
    lost = [(a - b) * count[name] for name, a, b in zip(drawn.names, drawn.measured_s, drawn.predicted_s, strict=True)]
    assert lost == sorted(lost, reverse=True)
    assert (drawn.low_s <= drawn.predicted_s).all()


def test_stretches_of_a_lane_lie_inside_the_step_and_hold_its_kernels_time(of_trace: TraceDiagnosis) -> None:
    step_s = of_trace.step_s
    begin, end = (np.array([getattr(s, name) for s in of_trace.stretches]) for name in ("begin_s", "end_s"))
    assert (begin >= 0).all()
    assert (end > begin).all()
    assert end.max() == pytest.approx(step_s, rel=0.05)
    assert {s.lane for s in of_trace.stretches} == {"compute", "communication"}


def test_the_page_holds_the_answer_and_its_figures_and_asks_nobody(
    of_trace: TraceDiagnosis, of_log: LogDiagnosis
) -> None:
    for answer, figures in ((of_trace, ("fall", "operators", "timeline")), (of_log, ("fall",))):
        page = diagnose_page(answer)
        assert all(f'id="figure-{name}"' in page for name in figures)
        assert "default-src 'none'" in page
        assert "You reach" in page
        assert page == diagnose_page(answer), "the same answer gives the same bytes"


@pytest.mark.parametrize("frame", [PAGE, FILE], ids=["page", "file"])
def test_every_figure_of_a_run_has_titles_and_tooltips(of_trace: TraceDiagnosis, frame: object) -> None:
    for points in run_points(of_trace).values():
        spec = json.dumps(draw(points, frame).to_dict())  # type: ignore[arg-type]
        assert '"tooltip"' in spec
        assert points.title


def test_a_hostile_name_cannot_leave_its_place_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "<script>alert(1)<" / "train.log"
    path.parent.mkdir()
    path.write_text(torchtitan())
    found = api.diagnose(path, model="llama-3-8b", gpu="h100", num_devices=8, global_batch_size=8, seq_len=8192)
    assert "<script>alert" not in diagnose_page(found)
