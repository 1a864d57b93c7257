"""``sartor diagnose`` of a log: measured beside predicted, the convention of its TFLOP/s, the fact that explains it."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import Ran
from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, LogFacts
from sartor.api.logs import measured_on
from sartor.errors import InputError
from sartor.model.counts import counted, flop_conventions
from sartor.model.workload import AttentionKernel
from sartor.plans.explain import explanations, nearest
from sartor.report.diagnose_words import diagnose_answer
from sartor.step.measured_run import MeasuredRun
from sartor.traces.read import is_trace
from traces.logs_made import CHECKPOINT_S, LOGS, SAMPLE_STEP_S, TIMES, dump, megatron, sample_log, torchtitan


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(dump() + megatron())
    return path


def diagnosed(path: Path, **asked: Any) -> LogDiagnosis:
    return api.diagnose_log(path, **{"gpu": "h100", **asked})


LAUNCH = (
    "torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 11008 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
    "--bf16 --swiglu --use-distributed-optimizer --sequence-parallel --overlap-grad-reduce --disable-bias-linear "
    "--position-embedding-type rope --normalization RMSNorm --untie-embeddings-and-output-weights "
    "--vocab-size 32000 --recompute-granularity selective"
)


@pytest.fixture
def launch(tmp_path: Path) -> Path:
    (tmp_path / "launch.sh").write_text(LAUNCH)
    return tmp_path / "launch.sh"


def test_the_prediction_is_that_of_the_launch_that_the_dump_describes(log: Path, launch: Path) -> None:
    linted = api.lint_launch(launch, "dgx-h100", search=False)
    found = diagnosed(log)
    assert found.predicted.step_s == linted.priced.step_s
    assert found.predicted.plan == linted.priced.plan
    assert diagnosed(log, launch=launch).predicted.step_s == linted.priced.step_s


@pytest.mark.parametrize("with_launch", [True, False])
def test_an_option_wins_over_launch_and_dump_and_both_are_named(log: Path, launch: Path, with_launch: bool) -> None:
    options = {"launch": launch} if with_launch else {}
    found = diagnosed(log, fix={"tp": 4}, dtype="fp8", best_plan=False, **options)
    assert (int(found.predicted.plan.dims.tp), found.job.recipe.value) == (4, "fp8_delayed")
    assert {"tp=4 as stated; the file says 2", "dtype=fp8_delayed as stated; the file says bf16"} <= set(
        found.assumptions
    )


def test_what_a_launch_leaves_open_is_an_error_until_it_is_stated(log: Path, launch: Path) -> None:
    launch.write_text(LAUNCH.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size $TP"))
    with pytest.raises(InputError, match=r"--tensor-model-parallel-size=\$TP"):
        diagnosed(log, launch=launch, best_plan=False)
    found = diagnosed(log, launch=launch, fix={"tp": 2}, best_plan=False)
    assert "tp=2 as stated; the file says $TP" in found.assumptions
    assert found.predicted.step_s == diagnosed(log, best_plan=False).predicted.step_s


def test_seconds_of_the_parts_sum_to_the_measured_step(log: Path, sartor: Callable[..., Ran]) -> None:
    done = sartor("diagnose", log, "--gpu", "h100", "--json")
    body = json.loads(done.out)
    assert done.code == 0
    assert body["schema"] == "sartor/diagnose/1"
    assert sum(part["seconds"] for part in body["parts"]) == pytest.approx(body["measured"]["step_s"])
    points = sum(part["points_of_mfu"] for part in body["parts"])
    assert points == pytest.approx(100 * (1 - body["measured"]["mfu"]))
    assert body["predicted"]["low_s"] < body["predicted"]["step_s"] < body["predicted"]["high_s"]


def test_the_terminal_says_the_answer_first(log: Path, sartor: Callable[..., Ran]) -> None:
    done = sartor("diagnose", log, "--gpu", "h100")
    assert done.code == 0
    lines = done.out.splitlines()
    assert any(line.startswith("Steady at 2 s a step") for line in lines[1:3])
    assert any(line.startswith("You reach ") for line in lines[4:7])
    assert re.search(r"Peak memory: .* GiB \w+ predicted, [\d.]+ GiB measured \([+-]?[\d.]+%\)", " ".join(lines))


def test_the_best_plan_for_the_same_job_stands_beside_it(log: Path, sartor: Callable[..., Ran]) -> None:
    found = diagnosed(log)
    assert found.best is not None
    assert found.best.plan.num_devices == found.predicted.plan.num_devices
    assert found.best.step_s <= found.predicted.step_s
    assert "for the best plan" in sartor("diagnose", log, "--gpu", "h100").out.replace("\n", " ")
    alone = sartor("diagnose", log, "--gpu", "h100", "--no-best-plan", "--json")
    assert alone.body["best_plan"] is None


def test_a_changed_fact_is_the_change_that_explains_it(log: Path) -> None:
    found = diagnosed(log)
    base = found.explanations[0]
    unfused = replace(found.job, attention_kernel=AttentionKernel.UNFUSED)
    truth = explanations(unfused, base.priced.plan, found.cluster, MeasuredRun(step_s=1.0))[0].priced
    run = MeasuredRun(step_s=truth.step_s, reserved_bytes=float(truth.footprint.reserved_bytes))
    assert nearest(explanations(found.job, base.priced.plan, found.cluster, run))[0].field == "attention"


def test_a_run_as_predicted_needs_no_explanation(log: Path) -> None:
    found = diagnosed(log)
    as_said = found.predicted
    run = MeasuredRun(step_s=as_said.step_s, reserved_bytes=float(as_said.footprint.reserved_bytes))
    assert nearest(explanations(found.job, as_said.plan, found.cluster, run)) == ()


def test_every_convention_finds_itself() -> None:
    shape = api.read("llama-3.1-8b").shape
    for each in flop_conventions(shape, 8192):
        found = counted(shape, each.flops_per_token, 8192)
        assert any(abs(other.flops_per_token / each.flops_per_token - 1) < 1e-12 for other in found)
        assert abs(found[0].rel_error) < 1e-12


def test_the_length_follows_from_the_rate_that_is_printed(tmp_path: Path) -> None:
    shape = api.read("llama-3.1-8b").shape
    full = next(each for each in flop_conventions(shape, 8192) if each.attention == "full")
    path = tmp_path / "train.log"
    text = torchtitan((9.0, *(2.0,) * 5))
    path.write_text(text.replace("tflops: 367.39", f"tflops: {full.flops_per_token * 4096 / 1e12:.2f}"))
    found = diagnosed(path, model="llama-3.1-8b")
    assert found.job.seq_len == 8192
    assert found.conventions[0].words == "full attention, recomputation not counted, embedding not counted"


def test_a_slow_step_does_not_hide_how_flops_are_counted(tmp_path: Path) -> None:
    shape = api.read("llama-3.1-8b").shape
    full = next(each for each in flop_conventions(shape, 8192) if each.attention == "full")
    path = tmp_path / "train.log"
    text = torchtitan((9.0, 2.0, 2.0, 2.4, 2.0, 2.0))
    path.write_text(text.replace("tflops: 367.39", f"tflops: {full.flops_per_token * 4096 / 1e12:.2f}"))
    assert diagnosed(path, model="llama-3.1-8b").conventions[0].words.startswith("full attention")


def test_a_length_that_nothing_tells_is_said_to_be_assumed(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan().replace("tflops: 367.39", "tflops: 1.00"))
    heading, _ = diagnose_answer(diagnosed(path, model="llama-3.1-8b"))
    assert heading.endswith("The length is assumed: state --seq-len")
    heading, _ = diagnose_answer(diagnosed(path, model="llama-3.1-8b", seq_len=4096))
    assert "assumed" not in heading


def test_the_convention_of_deepspeed_s_count_includes_recomputation() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473, eq. 3): 96 B s l h^2 (1 + s/6h + v/16lh), four forward passes."""
    shape = api.read("gpt3-175b").shape
    s, h, layers, v = 2048, 12288, 96, int(shape.vocab_size)
    flops = 96 * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    found = counted(shape, flops, s)
    assert found[0].recompute
    assert found[0].attention == "full"


@pytest.mark.slow
def test_the_dump_of_a_current_megatron_is_read(log: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.log"
    path.write_text(dump(attention_backend="AttnBackend.unfused", params_dtype="torch.bfloat16") + megatron())
    assert diagnosed(path).job.attention_kernel is AttentionKernel.UNFUSED
    path.write_text(dump(attention_backend="AttnBackend.auto", moe_token_dispatcher_type="allgather") + megatron())
    assert diagnosed(path).predicted.step_s == diagnosed(log).predicted.step_s
    path.write_text(dump(expert_model_parallel_size=1, moe_token_dispatcher_type="allgather") + megatron())
    assert not any("dispatcher" in line for line in diagnosed(path).assumptions)
    path.write_text(dump(attention_backend="AttnBackend.other") + megatron())
    shown = diagnosed(path)
    assert isinstance(shown, LogFacts)
    assert "attention_backend=other: in the log's dump of arguments, must be one of" in shown.warnings[0]


def test_sizes_that_the_log_s_own_tokens_deny_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan())  # 8 GPUs with 8192 tokens each
    sentence = (
        r"^global_batch_size=16: 16 sequences of 8,192 tokens on 8 GPUs are 131,072 .* makes 65,5\d\d;.*nearest: 8$"
    )
    with pytest.raises(InputError, match=sentence):
        diagnosed(path, model="llama-3.1-8b", seq_len=8192, global_batch_size=16)
    agreed = diagnosed(path, model="llama-3.1-8b", seq_len=8192, global_batch_size=8, num_devices=8)
    assert not agreed.warnings


def test_a_log_that_denies_itself_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("world_size: 8, sequence length 4096\n" + LOGS["nanotron"])  # whose 131,072 tokens are 64 x 2048
    found = diagnosed(path, model="llama-3.1-8b", best_plan=False)
    assert any("are 262,144 tokens per step, but the log's rate" in line for line in found.warnings)


def test_a_size_given_against_the_log_is_named(log: Path) -> None:
    assert "the log says num_devices=16; 32 is given, and counts" in diagnosed(log, num_devices=32).warnings


def test_an_mfu_above_100_percent_is_never_printed_alone(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path = tmp_path / "train.log"
    path.write_text(dump() + megatron(tuple(t / 10 for t in TIMES)))
    assert diagnosed(path).mfu > 1
    words = " ".join(sartor("diagnose", path, "--gpu", "h100", "--no-best-plan").out.split())
    assert "MFU (impossible: see the warnings)" in words
    assert "is impossible: the model, its batch or length, the number of GPUs or the GPU must be another" in words
    assert "Either its plan, model or GPUs are not those given, or the prediction is too slow here." in words


def test_steps_of_a_batch_below_the_dump_s_are_priced_at_theirs(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(dump(global_batch_size=128) + megatron())
    assert diagnosed(path).job.global_batch_size == 64


def test_a_change_that_explains_the_memory_alone_moves_no_seconds(log: Path) -> None:
    found = diagnosed(log)
    base = found.explanations[0]
    step_s, held = base.priced.step_s, base.priced.footprint
    slower = replace(base.priced, step=replace(base.priced.step, step_s=1.3 * step_s))
    other = replace(base, field="fused_kernels", value="false", priced=slower, misfit=0.0)
    run = MeasuredRun(step_s=1.01 * step_s, reserved_bytes=2 * float(held.reserved_bytes))
    body = replace(found, measured=run, explanations=(replace(base, misfit=50.0), other)).to_dict()
    assert body["explanations"][0]["field"] == "fused_kernels"
    assert "plan" not in [part["kind"] for part in body["parts"]]
    assert body["parts"][-1]["seconds"] == pytest.approx(0.01 * step_s)
    run = MeasuredRun(step_s=1.29 * step_s)
    body = replace(found, measured=run, explanations=(replace(base, misfit=50.0), other)).to_dict()
    assert [part["seconds"] for part in body["parts"] if part["kind"] == "plan"] == pytest.approx([0.3 * step_s])


def test_stalls_are_a_part_of_their_own_and_no_plan_explains_them(tmp_path: Path) -> None:
    path, even = tmp_path / "train.log", tmp_path / "even.log"
    path.write_text(dump() + megatron((9.0, *[4.0, 4.0, 4.0, 8.0] * 6)))
    even.write_text(dump() + megatron((9.0, *[4.0] * 24)))
    found, without = diagnosed(path), diagnosed(even)
    body = found.to_dict()
    parts = {part["kind"]: part["seconds"] for part in body["parts"]}
    assert sum(parts.values()) == pytest.approx(5.0)
    assert parts["stalls"] == body["measured"]["stall_s"] == pytest.approx(1.0)
    assert found.deviation == pytest.approx(without.deviation)
    assert found.mfu == pytest.approx(0.8 * without.mfu)
    assert [each.misfit for each in found.explanations] == pytest.approx([e.misfit for e in without.explanations])


def test_what_the_dump_says_is_not_tried_as_an_explanation(log: Path, tmp_path: Path) -> None:
    tried = {each.field for each in diagnosed(log).explanations[1:]}
    assert {"attention", "fused_kernels"} <= tried
    path = tmp_path / "more.log"
    path.write_text(dump(attention_backend="AttnBackend.flash", bias_swiglu_fusion=True) + megatron())
    assert not {each.field for each in diagnosed(path).explanations[1:]} & {"attention", "fused_kernels"}
    path.write_text(dump(attention_backend="AttnBackend.auto", transformer_impl="transformer_engine") + megatron())
    tried = {each.field for each in diagnosed(path).explanations[1:]}
    assert "attention" in tried
    assert "fused_kernels" not in tried


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a model that was not trained": ({"model": "llama-3.1-70b"}, "train.log says num_layers=32"),
    "a run that is not there": ({"run": 2}, "must be from 1 to 1: the log holds one run"),
    "a cluster of other size": ({"num_devices": 6}, "must be a multiple of tp x pp x cp = 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_contradicts_the_log_is_one_sentence(case: str, log: Path) -> None:
    asked, sentence = REFUSED[case]
    with pytest.raises(InputError, match=sentence) as caught:
        diagnosed(log, **asked)
    assert "\n" not in str(caught.value)


def test_the_file_that_says_another_size_than_the_model_is_named(log: Path, launch: Path) -> None:
    with pytest.raises(InputError, match=r"launch\.sh says num_layers=32, and this model has 80"):
        diagnosed(log, model="llama-3.1-70b", launch=launch)


def test_a_log_of_another_kind_is_exit_code_2(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    path = tmp_path / "other.log"
    path.write_text("epoch 1 loss 3.0\n" * 20)
    done = sartor("diagnose", path, "--gpu", "h100", "--json")
    assert done.code == 2
    assert "training log" in json.loads(done.out)["error"]["must"]


def test_without_a_model_or_sizes_the_missing_model_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan())
    shown = diagnosed(path)
    assert isinstance(shown, LogFacts)
    assert [fact.field for fact in shown.missing] == ["model"]
    with pytest.raises(InputError, match="model=no-such-model"):
        diagnosed(path, model="no-such-model", gpu=None)


def tqdm(seconds: list[float], head: str = "") -> str:
    """A progress bar of transformers, rewritten by carriage returns, with the losses between."""
    now, text = 0.0, head
    for step, passed in enumerate(seconds, start=1):
        now += passed
        text += f"\r  1%|#   | {step}/999 [{int(now) // 60:02d}:{int(now) % 60:02d}<1:00:00,  6.00s/it]"
        text += "\n{'loss': 1.1, 'grad_norm': 0.4}\n" if step % 10 == 0 else ""
        text += f"\nSaving model checkpoint to out/checkpoint-{step}\n" if step % 20 == 0 else ""
    return text


def clocked(seconds: list[float], saved: int, saved_s: float) -> str:
    """Megatron's steps behind srun's ranks; its step time leaves out the checkpoint after every ``saved``-th."""
    now, text = 1.7e9, ""
    for step, passed in enumerate(seconds, start=1):
        now += passed
        stamp = datetime.fromtimestamp(now, UTC)
        text += (
            f"63: [{stamp:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/ 100 | elapsed time per iteration (ms): "
            f"{1e3 * passed:.1f} | global batch size: 256 | lm loss: {2.4 + 4 * (step == 33):.6E} | number of skipped "
            "iterations:   0 |\n(min, max) time across ranks (ms):\n    forward-compute ......: (500.00, 620.00)\n"
        )
        if step % saved == 0:
            now += saved_s
            text += f" 0: saving checkpoint at iteration {step:7d} to /ckpt in torch_dist format\n"
    return text


LORA = (
    "trainable params: 39,976,960 || all params: 6,778,392,576 || trainable%: 0.5898\n"
    "  Instantaneous batch size per device = 4\n  Gradient Accumulation steps = 8\n"
    "  Total train batch size (w. parallel, distributed & accumulation) = 128\n"
)
ROWS = [(step, 40 + 18.7 * step + 45 * (step > 30)) for step in range(1, 60)]
SHOWN = {
    "megatron": (
        clocked([20.0, *[2.0] * 59], 20, 31.0),
        "Steady at 2 s a step (median of 59 printed steps, 90% within 2 s, 1 warm-up step left out); "
        "34.4% of 3.0 min goes to pauses: 2 of 31 s, after steps 20 and 40 (checkpoint). To do: asynchronous or rarer "
        "checkpoints.",
        "jumps at step 33; computes 24.0% longer than the fastest",
    ),
    "progress bar": (
        tqdm([9.0, *[6.0] * 19, 24.0, *[6.0] * 20], LORA),
        "The running mean is 6 s a step (median of 40 printed steps, 1 warm-up step left out); 7.0% of 4.3 min "
        "goes to pauses: one of 18 s, after step 20 (checkpoint). To do: asynchronous or rarer checkpoints.",
        "fine-tuning 0.6% of the weights on 4 devices, global batch 128; its launch file",
    ),
    "history": (
        "".join(f'{{"_step": {n}, "_runtime": {s:.13f}, "train/global_step": {10 * n}}}\n' for n, s in ROWS),
        "Steady at 1.87 s a step",
        "one of 45 s, after step 300",
    ),
    "torchtune": (
        "".join(
            f"Step {n} | loss:0.5 lr:2e-05 tokens_per_second_per_gpu:{4500 + n} peak_memory_reserved:33.42 \n"
            for n in range(1, 9)
        ),
        "The log gives 4.5k tokens/s per GPU, a peak of 33.4 GiB reserved",
        "its sequence length and its batch; this log prints no step times",
    ),
    "slowing": (
        megatron((9.0, *[2 + 0.002 * n for n in range(120)])),
        "Getting slower (7.8% from the first third to the last)",
        "no long pauses; Why it gets slower: work of a step stays the same: look at clock, heat and power cap",
    ),
    "not a number": (
        megatron((9.0, *[2.0] * 20)).replace("lm loss: 2.0E+00", "lm loss: nan"),
        "Steady at 2 s a step",
        "The loss is nan from step 1 to the end (21 steps)",
    ),
}


@pytest.mark.parametrize("form", SHOWN)
def test_a_log_alone_says_what_it_shows_and_what_a_prediction_needs(
    form: str, tmp_path: Path, sartor: Callable[..., Ran]
) -> None:
    text, first, others = SHOWN[form]
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    done = sartor("diagnose", path)
    said = " ".join(done.out.split())
    assert done.code == 0
    assert first in said
    assert all(words in said for words in others.split("; "))
    assert "To compare it with a prediction" in said
    body = sartor("diagnose", path, "--json").body
    assert body["status"] == "facts"
    if body["parts"]:
        run = body["measured"]
        parts = {part["kind"]: part["seconds"] for part in body["parts"]}
        paused_s = sum(pause["seconds"] for pause in run["pauses"]) / run["wall_steps"]
        assert parts["usual_steps"] == run["usual_s" if run["stall_s"] else "step_s"]  # as the first sentence has it
        assert parts.get("pauses", 0.0) == pytest.approx(paused_s)
        assert sum(parts.values()) == pytest.approx(run["wall_s"] / run["wall_steps"], rel=0.02)


def test_a_model_and_a_device_that_the_log_names_are_priced_without_a_question(
    tmp_path: Path, sartor: Callable[..., Ran]
) -> None:
    path = tmp_path / "train.log"
    head = (
        "[rank0]:[titan] 2025-06-04 11:00:00,000 - root - INFO - Building llama3 8B with TransformerModelArgs(dim=1)\n"
        "[rank0]:[titan] 2025-06-04 11:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB\n"
    )
    path.write_text(head + torchtitan((9.0, *(2.0,) * 6)))
    body = sartor("diagnose", path, "--no-best-plan", "--json").body
    assert body["predicted"]["step_s"] > 0
    assert body["assumptions"][0] == "the model is Llama 3 8B, as the log says"


def test_a_run_that_resumes_keeps_what_its_log_said_before(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    again = megatron().replace("iteration        1/", "iteration        3/")
    path.write_text("using world size: 64, data-parallel size: 64\n" + megatron() + "\n".join(again.splitlines()[3:]))
    shown = api.diagnose_log(path)
    assert isinstance(shown, LogFacts)
    assert shown.said["num_devices"] == 64
    assert "resumes after step 2 one that got to 6: 4 steps are computed twice" in " ".join(shown.measured.events)


def test_times_that_are_no_times_do_not_reach_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(dump() + megatron((9.0, 2.0, 0.0, 2.0, 2.0)))
    assert np.isfinite(diagnosed(path).measured.step_s)


@pytest.mark.parametrize("first", ["[rank0]:[titan] 2025-06-04", "[2025-03-01 10:00:00,000] [INFO]", "  [default0]:"])
def test_a_log_whose_lines_begin_with_a_bracket_is_no_trace(first: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{first} starting\n{torchtitan(tokens=16384)}")
    found = api.diagnose(path, model="llama-3.1-8b", gpu="h100", num_devices=8, global_batch_size=16, seq_len=8192)
    assert found.measured.num_steps


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '[\n {"ph": "X"}]', " [{", "{", '{\n  "schemaVersion": 1'])
def test_a_trace_is_known_by_its_beginning(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    assert is_trace(path)


def test_a_gpu_of_the_log_with_several_versions_is_answered_by_one_that_can_be_given() -> None:
    with pytest.raises(InputError, match=r"the log's v100 has several versions.*nearest: --gpu v100_sxm"):
        measured_on("v100", "the log", {})


def test_a_gpu_that_the_log_denies_is_refused(log: Path) -> None:
    log.write_text("NVIDIA H100 80GB HBM3\n" + log.read_text())
    with pytest.raises(InputError, match=r"^gpu=a100_sxm: the log is from h100_sxm, not from a100_sxm; .*--gpu h100_s"):
        diagnosed(log, gpu="a100")


def test_the_sample_log_is_the_one_that_is_made_and_its_answer_is_its_plan_and_its_checkpoints(repo_dir: Path) -> None:
    path = repo_dir / "examples" / "llama-3-8b" / "train.log"
    assert path.read_text() == sample_log()
    found = api.diagnose_log(path, model="llama-3.1-8b", fix={"zero_stage": 3}, best_plan=False)
    assert found.agrees
    assert found.predicted.step_s == pytest.approx(SAMPLE_STEP_S, rel=0.01)
    assert found.measured.stall_s == pytest.approx(CHECKPOINT_S / 60, rel=0.01)
    assert found.conventions[0].words == "full attention, recomputation not counted, embedding not counted"
    assert abs(found.conventions[0].rel_error) < 1e-3


def test_an_assumed_length_leaves_whole_sequences_to_every_replica_or_is_refused(tmp_path: Path) -> None:
    """The log has no length; the one that fits its TFLOP/s best would leave four sequences to eight GPUs."""
    path = tmp_path / "train.log"
    path.write_text(torchtitan())
    answer = api.diagnose(path, model="llama-3-8b", gpu="h100", best_plan=False)
    assert answer.job.global_batch_size * answer.job.seq_len == 65536
    assert answer.job.global_batch_size % 8 == 0
    with pytest.raises(InputError) as caught:
        api.diagnose(path, model="llama-3-8b", gpu="h100", best_plan=False, fix={"microbatch_size": 4})
    assert (caught.value.field, caught.value.nearest) == ("seq_len", "2048")
    assert "65,536 tokens per step are then 16 sequences" in str(caught.value)
    with pytest.raises(InputError) as caught:
        api.diagnose(path, model="llama-3-8b", gpu="h100", best_plan=False, global_batch_size=4)
    assert caught.value.field == "global_batch_size"


def test_a_memory_outside_its_interval_does_not_agree_and_the_bubble_is_the_first_advice(log: Path) -> None:
    found = diagnosed(log, best_plan=False)
    step_s, held = found.predicted.step_s, found.predicted.footprint
    peaks = {"allocated_bytes": float(held.allocated_bytes), "reserved_bytes": float(held.reserved_bytes)}
    near = replace(found, measured=replace(found.measured, step_s=step_s, stall_s=0.0, **peaks))
    far = replace(near, measured=replace(near.measured, reserved_bytes=1.4 * peaks["reserved_bytes"]))
    said = [" ".join(diagnose_answer(each)[1]) for each in (near, far)]
    assert (near.agrees, far.agrees) == (True, False)
    assert "step and memory agree with the plan" in said[0]
    assert "the memory is outside its own (-12.0% to +13.7%)" in said[1]
    assert far.advice is not None
    assert far.advice.kind == "pp_bubble"
    assert "The largest part with a remedy: pipeline bubble" in said[1]


def test_a_rarity_never_stands_beside_a_memory_that_is_far_off(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(dump() + megatron(tuple(t / 10 for t in TIMES)))
    found = diagnosed(path)
    predicted = float(found.predicted.footprint.reserved_bytes)
    near, far = (
        replace(found, measured=replace(found.measured, reserved_bytes=factor * predicted)) for factor in (1.0, 2.5)
    )
    said = [" ".join(diagnose_answer(each)[1]) for each in (near, far)]
    assert "runs of exactly this plan would be as far off" in said[0]
    assert "reserves 2.5 times the predicted memory: it is no run of exactly this plan" in said[1]
    assert "would be as far off" not in said[1]


def test_steps_of_a_log_chosen_by_number_are_read_alone_and_none_of_them_as_warm_up(repo_dir: Path) -> None:
    path = repo_dir / "examples" / "llama-3-8b" / "train.log"
    whole, some, first = (api.diagnose(path, steps=steps) for steps in (None, "100:200", "1"))
    assert isinstance(whole, LogFacts)
    assert isinstance(some, LogFacts)
    assert isinstance(first, LogFacts)
    assert some.measured.step_s == pytest.approx(whole.measured.step_s, rel=0.02)
    assert first.measured.step_s > 10 * whole.measured.step_s  # compilation
    with pytest.raises(InputError, match="the log has steps 1 to 300"):
        api.diagnose(path, steps="900:950")
