"""Why not another plan: it is slower, does not fit, or cannot be; and the nearest that can."""

from __future__ import annotations

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.report.plan_words import why_not_text


def asked(**axes: int | str) -> api.PlanAnswer:
    return api.plan("llama-3.1-8b", "dgx-h100", num_devices=16, global_batch_size=64, why_not=axes, top=1)


def test_a_plan_that_runs_is_slower_and_no_more() -> None:
    found = asked(tp=8, pp=2)
    assert found.why_not is not None
    assert found.why_not.reason is None
    assert found.why_not.plan is not None
    assert (int(found.why_not.plan.plan.dims.tp), int(found.why_not.plan.plan.dims.pp)) == (8, 2)
    assert "slower than the best, and fits" in why_not_text(found.why_not)
    body = found.to_dict()["why_not"]
    assert body["reason"] is None
    assert body["terms"]["step_s"] == [found.to_dict()["best"]["step_s"], body["step_s"]]
    parts = [name for name in body["terms"] if name.endswith("_s") and name != "step_s"]
    for k in (0, 1):
        assert sum(body["terms"][name][k] for name in parts) == pytest.approx(body["terms"]["step_s"][k])


def test_it_costs_what_the_search_says_of_the_same_plan() -> None:
    held = api.plan("llama-3.1-8b", "dgx-h100", num_devices=16, global_batch_size=64, fix={"tp": 8, "pp": 2}, top=1)
    found = asked(tp=8, pp=2)
    assert found.why_not is not None
    assert held.best is not None
    assert found.why_not.plan is not None
    assert found.why_not.plan.step_s == held.best.step_s


def test_a_plan_that_does_not_fit_is_the_leanest_of_its_kind() -> None:
    found = asked(tp=1, pp=1, zero_stage=0, recompute="none")
    assert found.why_not is not None
    assert "does not fit" in (found.why_not.reason or "")
    assert found.why_not.plan is not None
    assert int(found.why_not.plan.plan.zero_stage) == 0


@pytest.mark.parametrize(("axes", "near"), [({"tp": 3}, {"tp": 4}), ({"tp": 8, "pp": 3}, {"tp": 8, "pp": 2})])
def test_a_plan_that_cannot_be_stands_for_the_nearest_that_can(axes: dict[str, int], near: dict[str, int]) -> None:
    found = asked(**axes)
    assert found.why_not is not None
    assert found.why_not.reason
    assert found.why_not.plan is not None
    dims = found.why_not.plan.plan.dims
    assert {name: int(getattr(dims, name)) for name in near} == near


@pytest.mark.parametrize(
    ("axes", "sentence"), [({"tq": 2}, "why_not=tq"), ({"recompute": "some"}, "why_not recompute")]
)
def test_an_axis_or_a_word_that_there_is_none_of_is_refused(axes: dict[str, int | str], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(**axes)
    assert str(caught.value).startswith(sentence)


def test_a_simple_plan_has_data_and_tensor_parallelism_alone() -> None:
    found = api.plan("mixtral-8x7b", "dgx-h100", num_devices=64, global_batch_size=64, simple=True, top=1)
    assert found.best is not None
    dims = found.best.plan.dims
    assert (int(dims.pp), int(dims.cp), int(dims.ep)) == (1, 1, 1)
    with pytest.raises(InputError, match="fix pp=2: simple allows only data and tensor parallelism"):
        api.plan("llama-3.1-8b", "dgx-h100", num_devices=16, global_batch_size=64, fix={"pp": 2}, simple=True)
