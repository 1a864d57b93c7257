"""What a run leaves open: its interval holds every alternative, and a verdict is no stronger than its question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sartor import api
from sartor.api.questions import ask
from sartor.ask.alternatives import Weighed, weighed
from sartor.cli import run as sartor_command
from sartor.errors import InputError
from sartor.model.plan import AXES
from sartor.model.workload import AttentionKernel
from sartor.plans.fixed import SWITCHED
from sartor.rules.rule import Context
from sartor.rules.shape import RULES
from sartor.step.footprint import usable_bytes
from sartor.step.trainers import TRAINERS

LAW = settings(
    max_examples=6,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow,),
)
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.sampled_from((1, 2)),
        "cp": st.just(2),
        "framework": st.sampled_from(("megatron", "torchtitan", "deepspeed")),
        "dtype": st.sampled_from(("bf16", "fp8")),
    },
)
SIZES = {"num_devices": 8, "global_batch_size": 64, "seq_len": 1024}


def opened(model: str, gpu: str, **words: Any) -> tuple[Any, Weighed]:
    """A question, and what it leaves open."""
    question = ask(model, gpu, **words)
    held = question.held
    assert held is not None
    plan, limit = held.price().plan, held.limit_bytes
    run = question.run
    return question, weighed(run, question.reading.shape, held.job, plan, held.cluster, limit_bytes=limit)


@LAW
@given(model=st.sampled_from(("gpt2", "pythia-410m", "qwen3-30b-a3b")), words=WORDS)
def test_the_interval_holds_the_price_of_every_alternative(model: str, words: dict[str, Any]) -> None:
    try:
        answer = api.estimate(model, "h100", **SIZES, **words)
    except InputError:
        return
    question, open_run = opened(model, "h100", **SIZES, **words)
    for other in open_run.alternatives:
        assert answer.low_s <= other.step_s * (1 + 1e-9), other
        assert answer.high_s >= other.step_s * (1 - 1e-9), other
    stated = {name for name in words if question.run.states(name)}
    assert not stated & {name for other in open_run.alternatives for name in other.values}


@LAW
@given(limit=st.floats(0.8, 1.2), words=WORDS)
def test_every_value_that_turns_the_fit_is_said_and_no_other(limit: float, words: dict[str, Any]) -> None:
    try:
        question, open_run = opened("pythia-410m", "h100", **SIZES, **words)
    except InputError:
        return
    held = question.held
    peak = held.price().peak_bytes
    of_plan = (question.reading.shape, held.job, held.price().plan, held.cluster)
    turns = [turn for turn in weighed(question.run, *of_plan, limit_bytes=limit * peak).turns if turn.of_memory]
    alone = [other for other in open_run.alternatives if len(other.values) == 1]
    if limit >= 1:
        turned = [other for other in alone if other.peak_bytes > limit * peak]
        assert [turn.figures["peak_bytes"] for turn in turns] == [other.peak_bytes for other in turned] or not turned
        assert all(turn.verdict.startswith("does not fit") for turn in turns)
    else:
        assert all(turn.verdict.startswith(("fits", "may fit")) for turn in turns)
    assert all(turn.usual and turn.settled_by for turn in turns)


def test_a_trainer_that_was_not_stated_is_named_in_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    assert sartor_command(["estimate", "llama-3.1-70b", "--gpu", "h100", "--tp", "8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "fits with framework=megatron (7" in text
    assert "not with torchtitan (" in text
    assert "GiB) on the same plan: it was not stated." in text
    assert "What would settle it: --framework megatron|nemo|torchtitan" in text


def test_the_trainer_of_a_tpu_is_not_open_and_no_launch_of_another_is_written() -> None:
    framework = api.estimate("gpt2", "tpu_v5e").question.run.facts["framework"]
    assert (framework.value, framework.origin.value, framework.alternatives) == ("maxtext", "usual", ())
    planned = api.plan("gpt2", "tpu-v5e", num_devices=8, global_batch_size=64)
    with pytest.raises(InputError, match="trainer=megatron: does not run on tpu_v5e"):
        api.launch(planned, "megatron")


def test_what_is_stated_turns_nothing() -> None:
    answer = api.estimate("llama-3.1-70b", "h100", tp=8, framework="megatron")
    assert "framework" not in {turn.field for turn in answer.question.depends_on}
    assert answer.question.run.states("framework")
    assert answer.to_dict()["run"]["tp_overlap"]["alternatives"] == ["on"]


def test_a_switch_that_is_fixed_is_not_open() -> None:
    words = {"num_devices": 8, "global_batch_size": 64, "seq_len": 1024}
    found = api.plan("pythia-410m", "dgx-h100", fix={"tp": 2, "tp_overlap": "on"}, **words)
    assert found.run.states("tp_overlap")
    assert "grad_dtype" in found.run


def test_that_no_plan_fits_is_a_finding_only_if_it_holds_for_every_value() -> None:
    words = {"num_devices": 1, "global_batch_size": 8, "seq_len": 1024, "framework": "megatron"}
    none = api.plan("pythia-410m", "dgx-h100", headroom=0.99, **words)
    assert none.best is None
    assert none.search.tightest is not None
    assert none.search.tightest.leanest is not None
    assert none.status == "infeasible"
    over = none.search.tightest.leanest.peak_bytes * 0.98
    headroom = 1 - over / usable_bytes(none.search.cluster)
    some = api.plan("pythia-410m", "dgx-h100", headroom=headroom, **words)
    (turn,) = [turn for turn in some.depends_on if turn.field == "grad_dtype"]
    assert (turn.usual, turn.value, turn.settled_by) == ("fp32", "bf16", "--fix grad_dtype=fp32|bf16")
    assert some.best is None
    assert some.status == "unknown"
    fixed = api.plan("pythia-410m", "dgx-h100", headroom=headroom, fix={"grad_dtype": "bf16"}, **words)
    assert fixed.best is not None
    flags = [word for name, value in words.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ["plan", "pythia-410m", "--cluster", "dgx-h100", *flags, "--json", "--headroom"]
    assert sartor_command([*command, "0.99"]) == 3
    assert sartor_command([*command, str(headroom)]) == 0


@pytest.mark.parametrize("name", ["zero3_hf.sh"])
def test_a_launch_that_several_people_train_may_fit(name: str, shared_dir: Path) -> None:
    folder = shared_dir / "cases"
    if not (folder / name).exists():
        pytest.skip("the shared reference has no such case here")
    answer = api.lint_launch(folder / name, "dgx-h100", model=folder / "dense34.json", search=False)
    assert answer.near_limit
    assert answer.status == "unknown"


def test_a_gpu_without_flash_kernels_runs_megatrons_attention_unfused(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(
        "torchrun --nproc_per_node=1 pretrain_gpt.py --fp16 --micro-batch-size 8 --num-layers 12 --hidden-size 768"
        " --num-attention-heads 8 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257\n"
    )
    unfused, flash = (
        api.lint_launch(tmp_path / "launch.sh", gpu, search=False) for gpu in ("v100_pcie_32gb", "a100_sxm")
    )
    assert (unfused.job.attention_kernel, flash.job.attention_kernel) == tuple(AttentionKernel)[::-1]
    assert any("no kernels for GPUs of the generation volta" in words for words in unfused.assumptions)
    stated = api.lint_launch(tmp_path / "launch.sh", "v100_pcie_32gb", search=False, attention="flash")
    assert unfused.priced.step_s > 1.4 * stated.priced.step_s


def test_pytorchs_own_attention_on_such_a_gpu_is_open() -> None:
    answer = api.estimate("gpt2", "v100_sxm_32gb", num_devices=1, global_batch_size=8, framework="fsdp")
    (turn,) = [turn for turn in answer.to_dict()["depends_on"] if turn["field"] == "attention"]
    assert turn["ratio"] > 1.2


def test_the_files_of_megatron_leave_no_switch_open(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "main_grads.sh"
    if not path.exists():
        pytest.skip("the shared reference has no such case here")
    assert not api.lint_launch(path, "dgx-h100", search=False).depends_on


@pytest.mark.parametrize("name", TRAINERS)
def test_what_a_trainer_leaves_open_is_in_the_table_of_switches(name: str) -> None:
    assert set(TRAINERS[name].varies) <= SWITCHED.keys()


@pytest.mark.parametrize(("stage", "possible"), [(0, True), (1, False)])
def test_a_trainer_that_has_no_such_zero_stage_is_no_alternative_to_a_stated_one(stage: int, possible: bool) -> None:
    words = {"tp": 1, "pp": 1, "microbatch_size": 1, "zero_stage": stage}
    _, open_run = opened("llama-3.2-1b", "h100", **SIZES, **words)
    assert any(other.values.get("framework") == "torchtitan" for other in open_run.alternatives) is possible


def test_an_impossible_plan_is_refused_for_what_it_states() -> None:
    words = {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 1, "framework": "torchtitan"}
    with pytest.raises(InputError, match=r"torchtitan shards gradients with the optimizer \(ZeRO 2, 3\) or nothing"):
        api.estimate("llama-3.2-1b", "h100", **words)


STATED = {"num_devices": 8, "global_batch_size": 64, "tp": 2, "microbatch_size": 1}


@pytest.mark.parametrize("fix", [{"tp_overlap": "on"}, {"tp-overlap": True, "grad_dtype": "bf16"}])
def test_a_stated_switch_has_one_price_and_is_not_open(fix: dict[str, str]) -> None:
    found = api.plan("pythia-410m", "dgx-h100", fix=fix, **STATED)
    answer = api.estimate("pythia-410m", "h100", fix=fix, **STATED)
    assert found.best is not None
    assert answer.time_s == found.best.step_s
    assert answer.to_dict()["run"]["tp_overlap"] == {"value": "on", "origin": "stated", "from": "option"}
    assert api.lint("pythia-410m", "h100", fix=fix, **STATED).base.time_s == answer.time_s
    assert not [turn for turn in answer.question.depends_on if turn.field in ("tp_overlap", "grad_dtype")]


def test_another_trainer_has_the_switches_that_are_stated() -> None:
    """The interval holds the step under another trainer, as a question that names it has it."""
    fix = {"tp_overlap": "on", "grad_dtype": "bf16"}
    answer = api.estimate("pythia-410m", "h100", fix=fix, **STATED)
    plan = {name: value for name, value in answer.to_dict()["run"].items() if name in AXES}
    words = STATED | {name: fact["value"] for name, fact in plan.items()}
    other = api.estimate("pythia-410m", "h100", framework="nemo", fix=fix, **words)
    assert "nemo" in answer.question.run.facts["framework"].alternatives
    assert answer.low_s <= other.time_s <= answer.high_s


@pytest.mark.parametrize("command", ["estimate", "lint", "advise", "plan"])
def test_the_first_line_says_that_the_weights_are_frozen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = ("--cluster", "dgx-h100") if command == "plan" else ("--gpu", "h100")
    words = ("--num-devices", "8", "--global-batch-size", "64", "--fix", "train_weights=off")
    sartor_command([command, "pythia-410m", *device, *words])
    assert capsys.readouterr().out.startswith("Fine-tuning of Pythia 410M with frozen weights on 8 h100_sxm")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["--phase", "decode", "--dtype", "fp8"], "advise pythia-410m --dtype fp8 --objective decode"),
        (["--fix", "train_weights=off,fused_loss=on"], "--fix train_weights=off,fused_loss=on"),
    ],
)
def test_the_command_that_looks_further_can_be_run(
    words: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Switches are repeated as ``--fix``; the phase is the objective."""
    sartor_command(["estimate", "pythia-410m", "--num-devices", "8"][: 2 if "--phase" in words else 4] + words)
    printed = " ".join(capsys.readouterr().out.split())
    assert "--fix objective" not in printed
    for word in command.split():
        assert word in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fix", "tp_overlap=maybe"], "--fix tp_overlap=maybe: must be one of on, off"),
        (["--fix", "tp_overlap=any"], "is tried value by value by `sartor plan`; must be one value here"),
        (["--fix", "tp_overlap=on", "--phase", "decode"], "--fix tp_overlap=on: applies only to training"),
        (["--fix", "tp=2", "--tp", "4"], "--tp=4: fix says tp=2: must be stated once"),
        (["--fix", "deepep=on"], "--fix deepep=on: the model has no experts"),
        (["--framework", "vllm", "--phase", "decode"], "nearest: kernels, for the serving framework"),
        (["--framework", "llama"], "pytorch, torchtitan, torchtune\n"),  # a trainer of one publication is no suggestion
    ],
)
def test_what_a_run_cannot_have_is_refused_by_its_name(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sartor_command(["estimate", "pythia-410m", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_finding_that_a_trainer_turns_is_no_error_of_the_run() -> None:
    """A vocabulary that Megatron pads is a finding with torchtitan alone: named with its gain, and no exit code."""
    lint = api.lint("gpt2-xl", "h100", num_devices=8, tp=1, microbatch_size=8)
    (turn,) = [turn for turn in lint.base.question.depends_on if "gain_fraction" in turn.figures]
    assert (turn.field, turn.usual, turn.value) == ("framework", "megatron", "torchtitan")
    assert turn.settled_by == "--framework megatron|nemo|torchtitan"
    assert turn.figures["gain_fraction"] > 0.05
    assert not [finding for finding in lint.findings if finding.field == "vocab_size"]
    assert "ragged_vocab" in {finding.rule for finding in lint.on_other_trainers["torchtitan"]}
    turned = replace(lint, findings=lint.on_other_trainers["torchtitan"], on_other_trainers={"megatron": ()})
    assert (turned.worst_grade, turned.agreed_grade) == ("error", None)


@pytest.mark.parametrize("model", ["gpt2-xl", "pythia-2.8b", "bloom-7.1b", "mixtral-8x7b", "gemma-2-2b"])
def test_only_rules_that_say_so_are_turned_by_a_trainer(model: str) -> None:
    """Rules that no trainer turns suspect the same of a vocabulary as it is written and as it is padded."""
    question = ask(model, "h100", num_devices=8)
    shapes = [replace(question.workload.shape, vocab_size=size) for size in (50257, 50304)]
    contexts = [Context.of(replace(question.workload, shape=shape), question.gpu, question.dims) for shape in shapes]
    for rule in (rule for rule in RULES if "framework" not in rule.turned_by):
        written, padded = ([(s.field, s.value, s.grade) for s in rule.check(context)] for context in contexts)
        assert written == padded, rule.name


def test_what_another_trainer_finds_is_what_it_finds_when_it_is_stated(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "vocab_50281.json"
    if not path.exists():
        pytest.skip("the shared reference has no such case here")
    roomy: dict[str, Any] = {"fit_probability": 0.6}  # both trainers then have one best plan
    lint = api.lint(path, "h100", **roomy)
    (turn,) = [turn for turn in lint.base.question.depends_on if "gain_fraction" in turn.figures]
    stated = api.lint(path, "h100", framework="torchtitan", **roomy)
    (finding,) = [finding for finding in stated.findings if finding.field == "vocab_size"]
    assert turn.figures["gain_fraction"] == finding.gain_fraction
    allow = ["ragged_head_dim", "flash_misfit", "ragged_hidden"]
    only = api.lint(path, "h100", framework="torchtitan", allow=allow, **roomy)
    assert finding in only.findings


def test_a_size_that_fix_states_is_a_number_of_the_run() -> None:
    fixed = api.estimate("llama-3.2-1b", "b200", num_devices=8, fix={"train_weights": "off", "frozen_bits": 4})
    words = {"num_devices": 8, "fix": {"train_weights": "off"}, "frozen_bits": fixed.question.run.get("frozen_bits")}
    assert api.estimate("llama-3.2-1b", "b200", **words).peak_bytes == fixed.peak_bytes
