"""Whether a run fits is no stronger than the prediction of its peak: within its error the answer says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.test_open_fields import REST, script
from sartor import api
from sartor.report.diagnose_words import launch_view
from sartor.report.fit_words import headline
from sartor.step.results import PEAK_ERROR, near_limit

PLAN: dict[str, Any] = {"tp": 2, "dp": 4, "pp": 1, "cp": 1, "zero_stage": 1, "microbatch_size": 1, "recompute": "none"}
CASES = [(1.3, "feasible"), (1.05, "unknown"), (0.95, "unknown"), (0.8, "infeasible")]
"""Room for a run's peak, as a share of it, and whether it fits."""


def test_the_error_of_a_peak_reaches_to_both_sides_of_a_limit() -> None:
    assert near_limit(95, 100)
    assert near_limit(105, 100)
    assert not near_limit(100 * (1 - PEAK_ERROR), 100)
    assert not near_limit(100 * (1 + PEAK_ERROR), 100)


@pytest.mark.parametrize(("room", "status"), CASES)
def test_a_launch_near_the_limit_is_not_judged(room: float, status: str, tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 4")
    first = api.lint_launch(file, "dgx-h100", search=False, headroom=0)
    headroom = 1 - room * first.priced.peak_bytes / first.usable_bytes
    answer = api.lint_launch(file, "dgx-h100", search=False, headroom=headroom)
    assert (answer.status, answer.fits) == (status, room >= 1)
    grades = [finding.grade.value for finding in answer.findings if finding.rule == "does_not_fit"]
    assert grades == {1.3: [], 1.05: [], 0.95: ["warn"], 0.8: ["error"]}[room]
    heading = str(launch_view(answer).renderables[0])  # type: ignore[attr-defined]
    assert ("too much; a predicted peak is 10% off, so it may fit" in heading) is (room == 0.95)
    assert ("it may run out of memory" in heading) is (room == 1.05)


@pytest.mark.parametrize(("room", "status"), CASES)
def test_an_estimate_near_the_limit_says_so(room: float, status: str) -> None:
    run = {"cluster": "dgx-h100", "num_devices": 8, "global_batch_size": 64, **PLAN}
    first = api.estimate("llama-3.1-8b", headroom=0.0, **run)
    headroom = 1 - room * first.peak_bytes / first.usable_bytes
    answer = api.estimate("llama-3.1-8b", headroom=headroom, **run)
    assert (answer.fits, answer.near_limit) == (room >= 1, status == "unknown")
    assert answer.to_dict()["totals"]["near_limit"] is answer.near_limit
    assert ("so it may fit" in next(headline(answer))) is (room == 0.95)
