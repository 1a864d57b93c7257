"""A launch file as the question of estimate, lint and advise: at the price that ``plan --launch`` gives it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sartor import api
from sartor.cli import run
from sartor.errors import InputError
from sartor.run.fields import Origin

CLUSTER = "dgx-h100"
MEGATRON = """torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --ffn-hidden-size 8192 --seq-length 4096 --max-position-embeddings 4096 \\
  --micro-batch-size 1 --global-batch-size 64 --bf16 --vocab-size 50304 --use-flash-attn \\
  --use-distributed-optimizer {plan}
"""
PLANS = {
    "data parallel": "",
    "tensor parallel": "--tensor-model-parallel-size 4 --sequence-parallel",
    "interleaved": "--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3",
    "uneven stages": "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 3",
    "recomputed": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
}


def launch_file(folder: Path, plan: str) -> Path:
    path = folder / "train.sh"
    path.write_text(MEGATRON.format(plan=plan))
    return path


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_estimate_lint_and_advise_price_a_launch_as_plan_does(tmp_path: Path, plan: str) -> None:
    launch = launch_file(tmp_path, plan)
    linted = api.lint_launch(launch, CLUSTER, search=False)
    answers = [api.estimate(cluster=CLUSTER, launch=launch), api.lint(cluster=CLUSTER, launch=launch).base]
    for answer in answers:
        assert answer.time_s == linted.priced.step_s
        assert answer.priced is not None
        assert float(answer.priced.footprint.device_bytes) == float(linted.priced.footprint.device_bytes)
        assert answer.fits == linted.fits
        assert answer.question.plan_findings == linted.findings


def test_what_would_change_a_launch_is_said_by_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = launch_file(tmp_path, "").as_posix()
    first = "Change first: dp_overlap=true"
    for command in ("estimate", "lint", "advise", "plan"):
        run([command, "--launch", launch, "--cluster", CLUSTER])
        assert first in " ".join(capsys.readouterr().out.split()), command


TRAINER = """deepspeed --num_gpus 8 train.py --per_device_train_batch_size {batch} --gradient_accumulation_steps 2 \\
    --max_seq_length {seq_len} --gradient_checkpointing {again} --bf16 {bf16} --deepspeed ds.json
"""
ZERO_3 = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}


def trainer_script(
    folder: Path, *, again: str = "True", bf16: str = "True", batch: int = 1, seq_len: int = 4096
) -> str:
    """The launch of a Hugging Face Trainer under DeepSpeed."""
    (folder / "ds.json").write_text(json.dumps(ZERO_3))
    (folder / "train.sh").write_text(TRAINER.format(again=again, bf16=bf16, batch=batch, seq_len=seq_len))
    return (folder / "train.sh").as_posix()


SINGLE = "the most of any single change"


def test_a_change_says_whether_it_is_the_best_plan_or_the_best_single_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seq_len, end in ((4096, "as the best plan on these devices"), (5632, SINGLE)):
        words = ["llama-3-8b", "--launch", trainer_script(tmp_path, seq_len=seq_len), "--cluster", CLUSTER]
        run(["plan", *words])
        assert f"of the step, {end}." in " ".join(capsys.readouterr().out.split())
    run(["estimate", *words])
    assert f"of the step, {SINGLE} (`sartor plan" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("flag", ["bf16", "again"])
def test_arguments_behind_a_boolean_of_hugging_face_are_named_and_leave_the_verdict_open(
    tmp_path: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["llama-3-8b", "--launch", trainer_script(tmp_path, **{flag: "$EXTRA"}), "--cluster", CLUSTER]
    assert run(["plan", *words, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["status"], body["job"]["dtype"], body["plan"]["recompute"]) == ("unknown", "bf16", "full")
    assert run(["plan", *words]) == 0
    assert "$EXTRA holds arguments that are not in the file" in " ".join(capsys.readouterr().out.split())


def test_a_variable_that_is_the_value_of_a_boolean_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["llama-3-8b", "--launch", trainer_script(tmp_path, bf16="$USE_BF16"), "--cluster", CLUSTER]
    assert run(["plan", *words]) == 2
    assert "--bf16=$USE_BF16: the file does not say its value" in capsys.readouterr().err


def test_advice_about_a_launch_starts_from_its_step(tmp_path: Path) -> None:
    launch = launch_file(tmp_path, PLANS["uneven stages"])
    advice = api.advise(cluster=CLUSTER, launch=launch)
    assert advice.base.time_s == api.lint_launch(launch, CLUSTER, search=False).priced.step_s


def test_what_a_launch_says_is_stated_by_the_file_and_nothing_else(tmp_path: Path) -> None:
    launch = launch_file(tmp_path, PLANS["tensor parallel"])
    run = api.ask(cluster=CLUSTER, launch=launch).run
    for name, value in {"tp": 4, "global_batch_size": 64, "seq_len": 4096, "framework": "megatron"}.items():
        assert (run.get(name), run.origin(name), run.facts[name].source) == (value, Origin.STATED, "train.sh")
    for name, value in {"dp": 4, "virtual_stages": 1}.items():
        assert (run.get(name), run.origin(name)) == (value, Origin.IMPLIED)
    for name, value in {"cp": 1, "recompute": "none", "optimizer": "adam"}.items():
        assert (run.get(name), run.origin(name)) == (value, Origin.USUAL)
        assert run.facts[name].source == "Megatron-LM's default"
    assert api.lint_launch(launch, CLUSTER, search=False).run.facts.items() <= run.facts.items()


def test_an_option_wins_over_the_launch_and_says_so(tmp_path: Path) -> None:
    answer = api.estimate(cluster=CLUSTER, launch=launch_file(tmp_path, ""), tp=2, global_batch_size=128)
    run = answer.question.run
    assert (run.get("tp"), run.get("dp"), run.get("global_batch_size")) == (2, 8, 128)
    assert "tp=2 as stated; the file says nothing (1 by default)" in answer.question.assumptions
    assert "global_batch_size=128 as stated; the file says 64" in answer.question.assumptions


@pytest.mark.parametrize("name", ["torchtitan", "accelerate", "maxtext"])
def test_a_trainer_whose_files_have_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"framework={name}: a file for Megatron-LM does not start it"):
        api.lint(cluster=CLUSTER, launch=launch_file(tmp_path, ""), framework=name)


@pytest.mark.parametrize("name", ["nemo", "megatron-bridge", "megatron-deepspeed", "megatron@2021", "internevo"])
def test_a_fork_of_the_launchs_trainer_prices_its_file(tmp_path: Path, name: str) -> None:
    assert api.lint(cluster=CLUSTER, launch=launch_file(tmp_path, ""), framework=name).base.time_s > 0


def test_a_model_beside_a_launch_replaces_its_sizes(tmp_path: Path) -> None:
    answer = api.estimate("gpt2", cluster=CLUSTER, launch=launch_file(tmp_path, ""))
    assert answer.question.reading.shape.hidden_size == 768
    (note,) = (note for note in answer.question.assumptions if "not the file's sizes" in note)
    assert ", the file says " in note


def test_a_changed_size_of_a_launch_is_priced(tmp_path: Path) -> None:
    launch = launch_file(tmp_path, "")
    changed = api.estimate(cluster=CLUSTER, launch=launch, set={"num_layers": 12})
    assert changed.time_s < api.estimate(cluster=CLUSTER, launch=launch).time_s


def test_inference_takes_no_launch_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="applies only to training"):
        api.estimate(cluster=CLUSTER, launch=launch_file(tmp_path, ""), phase="prefill")


@pytest.mark.parametrize("call", [api.estimate, api.lint, api.advise])
def test_neither_a_model_nor_a_launch_is_refused(call: object) -> None:
    with pytest.raises(InputError, match="name the model, or a --launch file"):
        call()  # type: ignore[operator]


def test_a_switch_without_a_price_weakens_the_verdict_as_plan_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = "--tensor-model-parallel-size 2 --distribute-saved-activations"
    launch = tmp_path / "train.sh"
    text = MEGATRON.format(plan=plan).replace("layers 24", "layers 48")
    launch.write_text(text.replace("micro-batch-size 1 ", "micro-batch-size 8 "))
    words = ["--cluster", CLUSTER, "--launch", str(launch), "--headroom", "0.05"]
    assert (linted := api.lint_launch(launch, CLUSTER, search=False, headroom=0.05)).depends_on
    assert not linted.fits
    for command in ("estimate", "lint"):
        run([command, *words])
        shown = " ".join(capsys.readouterr().out.split())
        assert "does not fit, as priced" in shown
        assert "--distribute-saved-activations has no price here: the run fits if it saves" in shown
