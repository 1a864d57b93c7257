"""A run that does not say its plan is compared with the plans that would give its figures, never called in agreement;
a device that the trace denies is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Ran
from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, TraceDiagnosis
from sartor.errors import InputError
from sartor.model.training import Recompute
from sartor.plans.explain import explanations, open_plan
from sartor.report.diagnose_document import diagnose_page
from sartor.report.diagnose_words import diagnose_answer
from sartor.step.measured_run import MeasuredRun
from sartor.traces.logs.read import gpu_named
from traces.kineto_made import Made, strength_for, write
from traces.logs_made import dump, megatron, torchtitan

MOE = "\n".join(
    f"[rank0]:[titan] 2026-01-05 09:00:{clock} - root - INFO - step: {step}  loss: {loss}  grad_norm:  2.5  memory: "
    f"{memory}  tps: {tps}  tflops: {tflops}  mfu: {mfu}%"
    for clock, step, loss, memory, tps, tflops, mfu in (
        ("00,000", " 1", "12.0", "58.28GiB(73.68%)", "217", "3.79", "0.38"),
        ("12,673", "10", "11.0", "73.32GiB(92.70%)", "11,636", "202.78", "20.50"),
        ("26,607", "20", " 9.5", "73.32GiB(92.70%)", "11,758", "204.90", "20.72"),
        ("40,814", "30", " 8.5", "73.32GiB(92.70%)", "11,533", "200.98", "20.32"),
        ("55,373", "40", " 7.8", "73.32GiB(92.70%)", "11,254", "196.11", "19.83"),
    )
)
"""A torchtitan run of a 16B mixture that was launched with ep 8; its lines do not say so."""
ASKED: dict[str, Any] = {
    "model": "deepseek-v2-lite",
    "gpu": "h100",
    "num_devices": 8,
    "framework": "torchtitan",
    "seq_len": 4096,
}
WHOLE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "microbatch_size": 2, "zero_stage": 3, "recompute": "none"}


@pytest.fixture(scope="module")
def moe_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("open") / "moe.log"
    path.write_text(MOE + "\n")
    return path


@pytest.fixture(scope="module")
def of_moe(moe_log: Path) -> LogDiagnosis:
    return api.diagnose_log(moe_log, **ASKED, best_plan=False)


def test_a_log_without_its_plan_is_not_called_in_agreement(moe_log: Path, sartor: Callable[..., Ran]) -> None:
    options = [str(word) for name, value in ASKED.items() for word in (f"--{name.replace('_', '-')}", value)]
    done = sartor("diagnose", moe_log, *options, "--no-best-plan")
    words = " ".join(done.out.split())
    assert done.code == 0
    assert "agree" not in words
    assert "Nothing has to change" not in words
    assert "The log does not say tp, pp, cp, ep, virtual_stages, microbatch_size, " in words
    assert "plans would give this step and memory within their 80% intervals, the simplest: dp 8, " in words
    assert re.search(r"the simplest: dp 8, [^;]* \(step [+-]?\d", words)
    assert "To compare the run with its own plan, give it with --launch or --fix." in words


def test_the_plans_that_explain_a_log_are_several_and_each_would_give_its_figures(of_moe: LogDiagnosis) -> None:
    body = of_moe.to_dict()
    assert body["status"] == "open"
    assert {"ep", "microbatch_size", "recompute"} <= set(body["open_fields"])
    explained = body["explained_by"]
    assert 3 <= len(explained) <= body["num_explaining"]
    assert any(each["plan"]["ep"] == 8 for each in explained)
    for name in ("ep", "microbatch_size", "recompute", "tp"):
        assert len({each["plan"][name] for each in explained}) > 1
    for each in explained:
        assert each["low_s"] <= body["measured"]["step_s"] <= each["high_s"]
        assert abs(body["measured"]["reserved_bytes"] / each["reserved_bytes"] - 1) <= 0.25
        assert each["plan"]["num_devices"] == 8


def test_the_time_is_divided_as_in_the_likeliest_plan_that_explains_the_run(of_moe: LogDiagnosis) -> None:
    assert of_moe.explanations[0].priced == of_moe.open_plan.explaining[0]


@pytest.mark.parametrize("ep", [2, 4])
def test_an_explaining_plan_is_priced_as_if_it_had_been_stated(of_moe: LogDiagnosis, moe_log: Path, ep: int) -> None:
    first = next(each for each in of_moe.open_plan.explaining if int(each.plan.dims.ep) == ep)
    fix = {name: int(getattr(first.plan.dims, name)) for name in ("tp", "pp", "cp", "ep", "sequence_parallel")}
    fix |= {name: int(getattr(first.plan, name)) for name in ("microbatch_size", "zero_stage", "virtual_stages")}
    fixed = {**fix, "recompute": first.plan.recompute.word, "schedule": first.plan.schedule.word}  # type: ignore[attr-defined]
    stated = api.diagnose_log(moe_log, **ASKED, fix=fixed, best_plan=False)
    assert not stated.open_plan.fields
    assert stated.predicted.step_s == pytest.approx(first.step_s)
    assert float(stated.predicted.footprint.reserved_bytes) == pytest.approx(float(first.footprint.reserved_bytes))


def test_what_is_stated_is_not_open(moe_log: Path) -> None:
    found = api.diagnose_log(moe_log, **ASKED, fix={"ep": 2, "tp": 1, "cp": 1, "pp": 1}, best_plan=False)
    assert found.open_plan.fields == ("microbatch_size", "zero_stage", "recompute")
    assert {int(each.plan.dims.ep) for each in found.open_plan.explaining} == {2}


def test_what_all_explaining_plans_have_is_said(of_moe: LogDiagnosis) -> None:
    open_plan = replace(of_moe.open_plan, agreed={"cp": "1", "recompute": "full"})
    said = " ".join(diagnose_answer(replace(of_moe, open_plan=open_plan))[1])
    assert "All of these have cp=1, recompute=full." in said


def test_a_size_that_is_open_refuses_no_log(tmp_path: Path) -> None:
    """384 devices do not divide 2,048 sequences, but pipelines of three stages have 128 replicas."""
    path = tmp_path / "train.log"
    path.write_text("iteration 7/ 9 | elapsed time per iteration (ms): 104200.0 | global batch size:  2048 |\n" * 2)
    asked: dict[str, Any] = {"model": "gpt3-175b", "gpu": "a100", "num_devices": 384, "seq_len": 2048}
    found = api.diagnose_log(path, **asked, best_plan=False)
    assert found.open_plan.num_explaining > 0


def test_a_plan_stated_axis_by_axis_has_its_own_verdict(moe_log: Path) -> None:
    found = api.diagnose_log(moe_log, **ASKED, fix=WHOLE, best_plan=False)
    assert not found.open_plan.fields
    assert found.to_dict()["status"] == "inside"
    assert "inside the 80% interval: step and memory agree with the plan." in " ".join(diagnose_answer(found)[1])


def test_a_run_whose_dump_states_the_plan_is_worded_as_before(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(dump() + megatron())
    found = api.diagnose_log(path, gpu="h100", best_plan=False)
    body, lines = found.to_dict(), diagnose_answer(found)[1]
    assert not found.open_plan.fields
    assert (body["open_fields"], body["explained_by"], body["num_explaining"]) == ([], [], None)
    assert lines[0].startswith("Steady at 2 s a step")
    assert "is predicted for this plan" in lines[2]
    assert "than predicted" in lines[3]
    assert "does not say" not in " ".join(lines[:4])


def test_a_run_that_no_plan_explains_is_told_so(of_moe: LogDiagnosis) -> None:
    found, slow = of_moe, replace(of_moe.measured, step_s=60.0)
    nothing = open_plan(found.job, found.predicted.plan, found.cluster, slow, stated={*found.said})
    assert (nothing.num_explaining, nothing.explaining) == (0, ())
    words = " ".join(diagnose_answer(replace(found, measured=slow, open_plan=nothing))[1])
    assert f"none of the {nothing.num_plans:,} plans that it could have gives this step and memory." in words


def test_without_memory_a_plan_that_does_not_fit_explains_nothing(of_moe: LogDiagnosis) -> None:
    run = MeasuredRun(step_s=of_moe.measured.step_s)
    found = open_plan(of_moe.job, of_moe.predicted.plan, of_moe.cluster, run, stated={*of_moe.said})
    assert found.num_explaining > of_moe.open_plan.num_explaining
    assert max(each.peak_bytes for each in found.explaining) <= 80 * 2**30


def test_the_old_mesh_of_torchtitan_states_the_degrees_that_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan())
    found = api.diagnose_log(path, model="llama-3.1-8b", gpu="h100", seq_len=8192, best_plan=False)
    assert not {"tp", "pp", "cp"} & {*found.open_plan.fields}


def test_the_page_lists_the_plans(of_moe: LogDiagnosis) -> None:
    page = diagnose_page(of_moe)
    assert "Plans that would explain the run" in page
    assert "agree" not in page.split("Where the time goes")[0].split("<main")[1]


def traced(folder: Path, device: str) -> Path:
    path = write(Made(fault="host_gaps", strength=strength_for("host_gaps"), seed=1, steps=3), folder / "rank0.json")
    path.write_text(path.read_text().replace("NVIDIA H100 80GB HBM3", device))
    return path


def test_a_gpu_that_the_trace_denies_is_refused_with_both_named(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path = traced(tmp_path, "Tesla V100-SXM2-16GB")
    with pytest.raises(
        InputError, match=r"^gpu=a100_sxm: the trace is from v100, not from a100_sxm; .*nearest: --gpu v100_sxm$"
    ):
        api.diagnose(path, gpu="a100")
    with pytest.raises(InputError, match=r"^cluster=dgx-h100: the trace is from v100, not from h100_sxm"):
        api.diagnose(path, cluster="dgx-h100")
    done = sartor("diagnose", path, "--gpu", "a100", "--json")
    assert done.code == 2
    assert json.loads(done.out)["error"]["field"] == "--gpu"
    same = api.diagnose(path, gpu="v100_sxm_32gb")
    assert isinstance(same, TraceDiagnosis)
    assert same.device == "v100_sxm_32gb"


def test_the_heading_of_a_trace_says_that_weights_are_frozen_as_that_of_a_log_does(tmp_path: Path) -> None:
    path = traced(tmp_path, "NVIDIA H100 80GB HBM3")
    sizes = {"model": "gpt2", "num_devices": 8, "global_batch_size": 64, "seq_len": 1024, "best_plan": False}
    frozen = api.diagnose(path, **sizes, fix={"train_weights": "off"})
    assert "steady steps, fine-tuning with frozen weights" in diagnose_answer(frozen)[0]
    assert "frozen" not in diagnose_answer(api.diagnose(path, **sizes))[0]


def test_a_trace_with_a_model_but_no_plan_names_what_is_open(tmp_path: Path) -> None:
    path = traced(tmp_path, "NVIDIA H100 80GB HBM3")
    found = api.diagnose(path, model="gpt2", num_devices=8, global_batch_size=64, seq_len=1024, best_plan=False)
    assert isinstance(found, TraceDiagnosis)
    assert "microbatch_size" in found.to_dict()["open_fields"]
    assert "The trace does not say" in diagnose_page(found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100_sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("AMD Instinct MI325X", "mi325x"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA A10G", "a10g"),
        ("", None),
    ],
)
def test_a_device_is_read_from_its_driver_s_name(text: str, name: str | None) -> None:
    assert gpu_named(text) == name


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize(("microbatch", "zero"), [(1, 3), (2, 2), (4, 2)])
def test_the_plan_of_a_run_is_among_those_that_would_give_it(
    of_moe: LogDiagnosis, recompute: Recompute, microbatch: int, zero: int
) -> None:
    plan = replace(
        of_moe.predicted.plan,
        microbatch_size=microbatch,
        num_microbatches=4 // microbatch,
        zero_stage=zero,
        recompute=recompute,
    )
    truth = explanations(of_moe.job, plan, of_moe.cluster, MeasuredRun(step_s=1.0), alone=True)[0].priced
    run = MeasuredRun(step_s=truth.step_s, reserved_bytes=float(truth.footprint.reserved_bytes))
    stated = {"tp", "pp", "cp", "ep", "virtual_stages", "schedule", "sequence_parallel"}
    found = open_plan(of_moe.job, plan, of_moe.cluster, run, stated=stated)
    assert set(found.fields) == {"microbatch_size", "zero_stage", "recompute"}
    assert any(each.plan == plan and each.step_s == pytest.approx(truth.step_s) for each in found.explaining)
    assert all(str(value) for value in found.agreed.values())
