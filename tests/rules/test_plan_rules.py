"""Rules about plans: each has a bad sample it finds and a good one it leaves alone, and its fix is predicted to pay."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import PipelineSchedule, Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.space import broken, running
from sartor.report.plan_words import cannot_run_text, plan_gain_text, plan_words
from sartor.rules.plan import PLAN_RULES, lint_plan
from sartor.rules.plan.rule import PlanContext, PlanFinding, best_remedy, changed
from sartor.step.footprint import footprint, usable_bytes

CLUSTER = load_cluster("dgx-h100")
JOB = TrainingJob(shape=load_model("llama-3.1-70b"), seq_len=4096, global_batch_size=256)
GOOD = TrainingPlan(
    dims=ParallelDims(tp=8, pp=4, dp=4), microbatch_size=2, num_microbatches=32, virtual_stages=5, zero_stage=1
)


def found(plan: TrainingPlan, job: TrainingJob = JOB, **context: Any) -> dict[str, PlanFinding]:
    made = PlanContext(job=job, plan=plan, cluster=CLUSTER, **context)
    return {finding.rule: finding for finding in lint_plan(made)}


def dims(**changes: Any) -> ParallelDims:
    return replace(GOOD.dims, **changes)


BAD: dict[str, tuple[TrainingPlan, TrainingJob]] = {
    "does_not_fit": (replace(GOOD, dims=dims(tp=2, pp=1, dp=64), virtual_stages=1, num_microbatches=2), JOB),
    "tensor_parallel_beyond_links": (replace(GOOD, dims=dims(tp=16, pp=2)), JOB),
    "unneeded_recompute": (replace(GOOD, recompute=Recompute.FULL), JOB),
    "unsplit_sequence": (replace(GOOD, dims=dims(sequence_parallel=False)), JOB),
    "unsharded_optimizer": (replace(GOOD, dims=dims(tp=8, pp=4, dp=4), zero_stage=0), JOB),
    "short_microbatch": (replace(GOOD, microbatch_size=1, num_microbatches=64), JOB),
    "long_bubble": (
        replace(GOOD, dims=dims(tp=4, pp=8), virtual_stages=1, microbatch_size=4, num_microbatches=16, zero_stage=1),
        JOB,
    ),
    "unhidden_reduction": (GOOD, replace(JOB, global_batch_size=32, trainer=Trainer(dp_overlap=False))),
    "unbalanced_stages": (replace(GOOD, virtual_stages=1, stage_layers=(16, 20, 20, 24)), JOB),
}


def test_what_a_trainer_refuses_is_an_error_of_the_plan() -> None:
    job = replace(JOB, shape=load_model("mixtral-8x7b"))
    plan = replace(GOOD, dims=ParallelDims(tp=4, pp=4, dp=8, ep=8, sequence_parallel=False), num_microbatches=16)
    plan = replace(plan, virtual_stages=1)
    (reason,) = broken(job, plan)
    context = PlanContext(job=job, plan=plan, cluster=CLUSTER, best=best_remedy(GOOD, plan), broken=(reason,))
    finding = {f.rule: f for f in lint_plan(context)}["cannot_run"]
    assert reason == "experts and tp together need sequence parallelism"
    assert (finding.grade.value, finding.gain_s, finding.fix["tp"]) == ("error", None, 8)
    assert broken(job, replace(plan, dims=replace(plan.dims, sequence_parallel=True))) == ()
    assert broken(JOB, GOOD) == ()


def test_a_change_to_one_stage_drops_chunks_and_schedule_with_the_pipeline() -> None:
    plan = replace(GOOD, dims=dims(pp=2, dp=8), num_microbatches=16, virtual_stages=4)
    plan = plan.with_columns(schedule=PipelineSchedule.ZERO_BUBBLE)
    (remedy,) = changed(PlanContext(job=JOB, plan=plan, cluster=CLUSTER), pp=1)
    assert remedy.fix == {"pp": 1, "virtual_stages": 1, "schedule": "1f1b", "dp": 16}
    assert broken(JOB, remedy.plan) == ()


def test_no_change_is_proposed_that_cannot_run() -> None:
    plan = replace(GOOD, dims=dims(pp=1, dp=16), num_microbatches=1, microbatch_size=16, virtual_stages=2)
    reasons = broken(JOB, plan)
    context = PlanContext(job=JOB, plan=plan, cluster=CLUSTER, broken=reasons, runs=running(JOB, JOB, plan))
    findings = lint_plan(context)
    assert reasons == ("virtual stages need a pipeline",)
    assert not any(finding.fix for finding in findings)
    assert cannot_run_text(findings) == f"As stated it cannot run: {reasons[0]}. Priced as if it ran:"
    assert plan_words(plan).startswith("tp 8, 2 chunks per device, dp 16, ")
    assert plan_words(replace(plan, dims=ParallelDims())).startswith("2 chunks per device, ")


@pytest.mark.parametrize(
    ("fix", "words"),
    [
        ({"tp": 1, "dp": 8, "num_microbatches": 16}, "tp=1 dp=8"),
        ({"recompute": "none", "recompute_layers": -1, "dp_overlap": True}, "recompute=none dp_overlap=true"),
        ({"recompute": "full", "recompute_layers": 4}, "recompute=full recompute_layers=4"),
        ({"pp": 2, "stage_layers": [17, 15]}, "pp=2 with layers per pipeline chunk 17, 15"),
        ({"stage_layers": [2, 2, 2, 3, 1]}, "layers per pipeline chunk 3x2, 3, 1"),
    ],
)
def test_the_words_of_a_change_name_only_what_can_be_stated(fix: dict[str, Any], words: str) -> None:
    (finding, *_) = found(*BAD["short_microbatch"]).values()
    assert plan_gain_text(replace(finding, fix=fix)).startswith(f"{words}: ")


def test_a_sequence_beyond_the_learned_positions_is_an_error() -> None:
    job = TrainingJob(shape=load_model("gpt2-small"), seq_len=2048, global_batch_size=8)
    plan = TrainingPlan(dims=ParallelDims(dp=8))
    assert found(plan, job)["cannot_run"].message == "seq_len=2048 is beyond the model's 1024 learned positions"
    assert "cannot_run" not in found(plan, replace(job, seq_len=1024))


def test_memory_left_free_counts_as_full() -> None:
    need = float(footprint(JOB, GOOD, CLUSTER).device_bytes)
    free = 1 - 0.99 * need / usable_bytes(CLUSTER)
    assert "does_not_fit" not in found(GOOD)
    finding = found(GOOD, headroom=free)["does_not_fit"]
    assert "headroom" in finding.message
    assert finding.saves_bytes > 0.01 * need


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_plan_is_found_and_its_fix_pays(rule: str) -> None:
    plan, job = BAD[rule]
    if rule == "unhidden_reduction":
        plan = replace(plan, num_microbatches=4)
    made = found(plan, job)
    assert rule in made
    finding = made[rule]
    if finding.fix:
        assert finding.step_s is not None
        assert finding.gain_s is None or finding.gain_s > 0 or finding.saves_bytes > 2**30


@pytest.mark.parametrize("rule", [r for r in BAD if r not in ("short_microbatch", "unbalanced_stages", "long_bubble")])
def test_a_good_plan_is_left_alone(rule: str) -> None:
    assert rule not in found(GOOD)


def test_a_better_plan_is_said_with_what_it_saves() -> None:
    slow = replace(GOOD, recompute=Recompute.FULL)
    finding = found(slow, best=best_remedy(GOOD, slow))["slower_than_best"]
    assert finding.gain_fraction is not None
    assert finding.gain_fraction > 0.1
    assert finding.fix == {"recompute": "none"}
    assert "slower_than_best" not in found(GOOD, best=best_remedy(GOOD, GOOD))


def test_a_plan_that_does_not_fit_is_an_error_whose_fix_fits() -> None:
    plan, job = BAD["does_not_fit"]
    context = PlanContext(job=job, plan=plan, cluster=CLUSTER)
    finding = lint_plan(context)[0]
    assert (finding.rule, finding.grade.value, finding.gain_s) == ("does_not_fit", "error", None)
    assert float(footprint(job, plan, CLUSTER).device_bytes) > usable_bytes(CLUSTER)


def test_rules_are_left_out_by_name_or_code_and_unknown_ones_refused() -> None:
    plan, job = BAD["unneeded_recompute"]
    context = PlanContext(job=job, plan=plan, cluster=CLUSTER)
    for word in ("unneeded_recompute", "P3", "unneeded-recompute"):
        assert "unneeded_recompute" not in {f.rule for f in lint_plan(context, allow=[word])}
    with pytest.raises(InputError, match="is not a plan rule"):
        lint_plan(context, allow=["recompute"])


def test_every_rule_has_a_page_and_a_line_in_the_docs(repo_dir: Path) -> None:
    shown = (repo_dir / "docs" / "howto" / "lint-my-launch.md").read_text()
    assert [rule.code for rule in PLAN_RULES] == [f"P{k}" for k in range(1, len(PLAN_RULES) + 1)]
    for rule in PLAN_RULES:
        for section in ("## What it finds", "## Why it costs", "## Fix", "## Source"):
            assert section in rule.page, rule.name
        assert f"`{rule.name}`" in shown


FIRST = """
import sys
from importlib import import_module
from pkgutil import iter_modules

for package in ("sartor.rules.plan", "sartor.rules.shape"):
    names = [module.name for module in iter_modules(import_module(package).__path__)]
    for name in names:
        for loaded in [name for name in sys.modules if name.startswith("sartor.rules")]:
            del sys.modules[loaded]
        import_module(f"{package}.{name}")
        table = next(value for key, value in vars(sys.modules[package]).items() if key.endswith("RULES"))
        assert len(table) == len(names) - ("rule" in names), f"{package}.{name} loaded first loses rules"
"""


def test_no_rule_is_lost_when_its_own_file_is_loaded_first() -> None:
    subprocess.run([sys.executable, "-c", FIRST], check=True)
