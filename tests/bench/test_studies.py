"""Case studies on a fake device: arms, baselines, and speedups that are the device's own when it is predicted right."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.fake_device import FACTS, FakeDevice
from sartor.bench.cases import BenchCase
from sartor.bench.journey import measure_cases
from sartor.bench.machine import Scale, stand_in
from sartor.bench.records_file import predict
from sartor.bench.studies import STUDIES, Size, _stack_of, study, study_body, study_results
from sartor.errors import InputError
from sartor.model.editing import edit
from sartor.model.shape import TransformerShape
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.report.accuracy_document import study_rows

LARGE = Scale(
    facts=replace(FACTS, num_sms=132, memory_bytes=80e9, l2_bytes=50e6),
    flops_per_s={DType.BF16: 2.0**49, DType.FP32: 2.0**45},
    bytes_per_s=2.0**41,
)
GPU = stand_in(LARGE)


def propose(name: str) -> TransformerShape:
    shape = load_model(name)
    heads = int(shape.num_heads)
    return edit(shape, num_heads=heads * 2) if name == "gpt3-2.7b" else shape


@pytest.mark.parametrize("name", list(STUDIES))
@pytest.mark.parametrize("size", list(Size))
def test_every_study_has_one_baseline_a_group_and_cases_of_its_own(name: str, size: Size) -> None:
    asked = study(name, LARGE, size, propose)
    groups = {arm.group for arm in asked.arms}
    for group in groups:
        assert sum(arm.is_baseline for arm in asked.arms if arm.group == group) == 1
    assert len(asked.cases) == len({case.key for case in asked.cases})
    if size is Size.TOY:
        assert all(float(case.work.flops) < 3e11 for case in asked.cases)


@pytest.mark.parametrize("name", ["vocabulary", "swiglu", "head_dim", "waves"])
def test_a_device_that_is_as_predicted_has_speedups_as_predicted(name: str, tmp_path: Path) -> None:
    def seconds(case: BenchCase) -> float:
        found = predict(case, GPU, None)
        return float(found.time_s) if found else 1e-3

    asked = study(name, LARGE, Size.FULL, propose)
    device = FakeDevice(facts=LARGE.facts, seconds=seconds)
    found = measure_cases(device, name, lambda _: asked.cases, tmp_path / "r.csv", budget_s=1e9, date="2026-11-21")
    body = study_body(asked, study_results(asked, found.rows, GPU, None), "full")
    assert body["not_timed"] == 0
    assert body["most_points_apart"] < 0.5
    assert body["within_5_points"] == body["compared"]
    assert len(study_rows(body)) == 2 * len(body["arms"])


def test_an_arm_that_was_not_timed_is_told_and_not_compared(tmp_path: Path) -> None:
    asked = study("vocabulary", LARGE, Size.FULL, propose)
    device = FakeDevice(facts=LARGE.facts, too_large=lambda case: getattr(case.work, "n", 0) == 50264)
    found = measure_cases(device, "v", lambda _: asked.cases, tmp_path / "r.csv", budget_s=1e9, date="2026-11-21")
    results = study_results(asked, found.rows, GPU, None)
    assert study_body(asked, results, "full")["not_timed"] == 2  # forward, and all three together
    assert any(math.isnan(each.measured_s) for each in results)


def test_studies_are_known_by_letter_too_and_others_refused() -> None:
    assert study("c", LARGE, Size.TOY, propose).name == "vocabulary"
    with pytest.raises(InputError, match=r"heads \(a\), swiglu \(b\)"):
        study("h", LARGE, Size.TOY, propose)


def test_models_with_experts_have_no_stack() -> None:
    with pytest.raises(InputError, match="dense feed-forward layers alone"):
        _stack_of(load_model("mixtral-8x7b"))
