"""Whether a run fits is no stronger than the prediction of its peak: where it is in doubt the answer says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.test_open_fields import REST, script
from sartor import api
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.report.diagnose_words import launch_view
from sartor.report.fit_words import headline
from sartor.step.footprint import (
    FIT_PROBABILITY,
    fit_probability,
    in_doubt,
    likely_text,
    margin,
    peak_quantile,
    usable_bytes,
)

PLAN: dict[str, Any] = {"tp": 2, "dp": 4, "pp": 1, "cp": 1, "zero_stage": 1, "microbatch_size": 1, "recompute": "none"}
SURE, DOUBTED = 1.2 * peak_quantile(FIT_PROBABILITY), peak_quantile(0.7)
CASES = [(SURE, "feasible"), (DOUBTED, "unknown"), (1 / DOUBTED, "unknown"), (1 / SURE, "infeasible")]
"""Memory of a device over a run's peak, and whether it fits."""
CLUSTER = load_cluster("dgx-h100")


def with_room(peak_bytes: float, ratio: float) -> Cluster:
    """The cluster with devices of which a process can fill ``ratio`` times the peak."""
    share = ratio * peak_bytes / usable_bytes(CLUSTER)
    return replace(CLUSTER, gpu=replace(CLUSTER.gpu, hbm_bytes=round(CLUSTER.gpu.hbm_bytes * share)))


@given(st.floats(0.01, 0.99))
def test_a_peak_at_a_quantile_fits_with_its_probability(probability: float) -> None:
    peak = usable_bytes(CLUSTER) / peak_quantile(probability)
    assert float(fit_probability(peak, CLUSTER)) == pytest.approx(probability)
    assert peak == pytest.approx((1 - margin(probability)) * usable_bytes(CLUSTER))


def test_a_peak_at_the_limit_has_even_odds() -> None:
    assert float(fit_probability(usable_bytes(CLUSTER), CLUSTER)) == 0.5
    assert likely_text(usable_bytes(CLUSTER), CLUSTER) == "50% likely to fit"
    assert in_doubt(usable_bytes(CLUSTER), CLUSTER)
    assert not in_doubt(usable_bytes(CLUSTER) / 2, CLUSTER)


@pytest.mark.parametrize(("room", "status"), CASES)
def test_a_launch_in_doubt_is_not_judged(room: float, status: str, tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 4")
    cluster = with_room(api.lint_launch(file, "dgx-h100", search=False).priced.peak_bytes, room)
    answer = api.lint_launch(file, cluster, search=False)
    assert (answer.status, answer.fits) == (status, room == SURE)
    grades = [finding.grade.value for finding in answer.findings if finding.rule == "does_not_fit"]
    assert grades == {"feasible": [], "unknown": ["warn"], "infeasible": ["error"]}[status]
    heading = str(launch_view(answer).renderables[0])  # type: ignore[attr-defined]
    assert ("IT MAY NOT FIT" in heading) is (status == "unknown")
    assert (likely_text(answer.priced.peak_bytes, cluster) in heading) is (status != "infeasible")


def test_the_share_that_must_stay_free_leaves_no_doubt(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 4")
    peak = api.lint_launch(file, "dgx-h100", search=False).priced.peak_bytes
    cluster = with_room(peak, DOUBTED)
    assert api.lint_launch(file, cluster, search=False, headroom=1 - 0.99 / DOUBTED).status == "infeasible"
    assert api.lint_launch(file, cluster, search=False, headroom=0).status == "unknown"


@pytest.mark.parametrize(("room", "status"), CASES)
def test_an_estimate_in_doubt_says_so(room: float, status: str) -> None:
    run = {"num_devices": 8, "global_batch_size": 64, "framework": "megatron", "fix": {"grad_dtype": "fp32"}, **PLAN}
    cluster = with_room(api.estimate("llama-3.1-8b", cluster="dgx-h100", **run).peak_bytes, room)
    answer = api.estimate("llama-3.1-8b", cluster=cluster, **run)
    assert (answer.fits, answer.near_limit) == (room == SURE, status == "unknown")
    totals = answer.to_dict()["totals"]
    assert (totals["near_limit"], totals["fit_probability"]) == (answer.near_limit, answer.fit_probability)
    assert ("may not fit" in next(headline(answer))) is (status == "unknown")
