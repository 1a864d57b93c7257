"""The Python API: found by completion, named as the command line names things, and clear about a bad call."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import sartor
from sartor import api
from sartor.api.questions import ask
from sartor.cli import GROUPS, app_with
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.price import operator_costs
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS
from sartor.operators import Gemm, Role
from sartor.run.fields import FIELDS, OF_ONE_PASS, Origin, TrainingOptions
from sartor.units import format_seconds

TRAIN = {"num_devices": 8, "global_batch_size": 8}

BAD_CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "a width of zero": (lambda: api.estimate("gpt2", tp=0), "tp=0: must be an integer from 1 to 2^40; nearest: 1"),
    "a batch in tokens": (
        lambda: api.estimate("gpt2", global_batch_size=2097152),
        "global_batch_size=2097152: counts sequences: with seq_len=1024 these are 2.15e+09 tokens per step",
    ),
    "a batch in tokens, of a plan": (
        lambda: api.plan("gpt2", num_devices=8, global_batch_size=2097152),
        "global_batch_size=2097152: counts sequences: with seq_len=1024 these are 2.15e+09 tokens per step",
    ),
    "a type of inference in training": (
        lambda: api.plan("gpt2", num_devices=8, dtype="int4"),
        "dtype=int4: is a type of inference (phase=decode, dtype=int4_wo), not of training; nearest: bf16",
    ),
    "a type that the GPU lacks": (
        lambda: api.estimate("gpt2", phase="decode", dtype="int4"),
        "dtype=int4: h100_sxm has no matrix rate for it",
    ),
    "a field of another name": (lambda: api.estimate("gpt2", zero=1), "zero=1: is not a field of a run"),  # type: ignore[call-arg]
    "experts over devices that they do not divide into": (
        lambda: ask("mixtral-8x7b", ep=7),
        "ep=7: does not split num_experts=8 (7 and 14 do); nearest: 4 or 8",
    ),
    "many rows at once": (
        lambda: api.gemm(np.arange(1, 3), 4096, 4096),  # type: ignore[arg-type]
        "m=array([1, 2]): must be an integer from 1 to 2^40; nearest: 4096",
    ),
    "no rows": (lambda: api.gemm(0, 4096, 4096), "m=0: must be an integer from 1 to 2^40; nearest: 1"),
    "rows that are not given": (
        lambda: api.gemm(None, 4096, 4096),  # type: ignore[arg-type]
        "m=null: must be an integer from 1 to 2^40; nearest: 4096",
    ),
    "a library that is no name": (
        lambda: api.gemm(8, 8, 8, kernels=3),  # type: ignore[arg-type]
        "kernels=3: must be the name of a framework or library; nearest: sglang",
    ),
    "bytes in words": (
        lambda: api.collective("all_reduce", "1e6", 8),  # type: ignore[arg-type]
        "message_bytes=1e6: must be a number of bytes above 0 and at most 2^50; nearest: 1048576",
    ),
    "a skew in words": (
        lambda: api.estimate("mixtral-8x7b", routing_skew="x"),  # type: ignore[arg-type]
        "routing_skew=x: is the largest expert's tokens over the mean: at least 1; nearest: 1",
    ),
    "experts of a dense model": (lambda: api.estimate("gpt2", ep=2), "ep=2: the model has no experts; nearest: 1"),
    "a placement that is no path": (lambda: api.place({}), "instance={}: must be the path of a JSON file"),  # type: ignore[arg-type]
    "a schedule that is no path": (lambda: api.schedule({}), "instance={}: must be the path of a JSON file"),  # type: ignore[arg-type]
    "a space that is none": (
        lambda: api.design("gpt2", num_devices=1, space={}),  # type: ignore[arg-type]
        "space={}: must be a name, the path of a TOML file or an AcceleratorSpace; nearest: modern",
    ),
    "a misspelt option": (
        lambda: api.design("gpt2", num_devices=1, microbatch=[1]),  # type: ignore[call-arg]
        "microbatch=[1]: is not an option; nearest: microbatch_size",
    ),
    "no load at all": (
        lambda: api.serving("llama-3.1-8b", "h100", concurrency=[]),
        "concurrency=[]: must hold at least one number of sequences in flight; nearest: 32",
    ),
    "an unknown phase": (
        lambda: api.lint("gpt2", phase="training"),
        "phase=training: must be one of train, prefill, decode",
    ),
    "a field that no shape has": (
        lambda: api.estimate("gpt2", set={"num_haeds": 8}),
        "set=num_haeds: is not a field of a shape; nearest: num_heads, num_kv_heads",
    ),
    "no devices": (
        lambda: api.plan("gpt2", num_devices=0, global_batch_size=8),
        "num_devices=0: must be an integer from 1 to 2^40; nearest: 1",
    ),
    "an axis held at what does not divide": (
        lambda: api.plan("gpt2", **TRAIN, fix={"tp": 3}),
        "fix tp=3: must divide num_devices=8; nearest: 2 or 4",
    ),
    "an axis that no plan has": (
        lambda: api.plan("gpt2", **TRAIN, fix={"tensor": 2}),
        "fix=tensor: is not an axis of a plan",
    ),
    "a clock of another name": (
        lambda: api.gemm(64, 64, 64, clock="max"),
        "clock=max: must be one of boost, sustained",
    ),
    "a library that has no GEMMs there": (
        lambda: api.gemm(64, 64, 64, "mi355x", kernels="aiter_csk"),
        "kernels=aiter_csk: must be a framework or library whose kernels were measured on mi355x: aiter_asm, aiter_ck, "
        "aiter_flydsl, aiter_opus, aiter_torch, aiter_triton; nearest: aiter_ck",
    ),
    "a framework for a product alone": (
        lambda: api.gemm(64, 64, 64, "a100", kernels="vllm"),
        "kernels=vllm: must be a framework or library whose kernels were measured on a100_sxm: there is none",
    ),
    "a message of no bytes": (
        lambda: api.collective("all_reduce", 0, 8),
        "message_bytes=0: must be a number of bytes above 0 and at most 2^50",
    ),
    "no models to design for": (
        lambda: api.design([], **TRAIN),
        "missing argument model: name the models to train; nearest: gpt3-175b",
    ),
    "no widths": (lambda: api.design("gpt2", **TRAIN, tp=[]), "tp=[]: must hold at least one tensor-parallel width"),
    "a microbatch of nothing": (
        lambda: api.design("gpt2", **TRAIN, microbatch_size=[0]),
        "microbatch_size=0: must be a whole number of at least 1",
    ),
    "memory below nothing": (
        lambda: api.design("gpt2", **TRAIN, hbm_gib=-1),
        "hbm_gib=-1: must be positive and finite; nearest: 96",
    ),
    "an objective of another name": (
        lambda: api.design("gpt2", **TRAIN, objective="speed"),
        "objective=speed: must be one of throughput,",
    ),
    "no time": (lambda: api.design("gpt2", **TRAIN, time_limit=0), "time_limit=0: must be a number of seconds above 0"),
    "a front over one axis that is none": (
        lambda: api.design("gpt2", **TRAIN, pareto=["speed"]),
        "pareto=speed: must be an axis that can be a budget",
    ),
    "workers that are none": (
        lambda: api.design("gpt2", **TRAIN, executor="local", workers=0),
        "workers=0: must be at least 1",
    ),
    "a launch that is not there": (lambda: api.lint_launch("absent.sh", "dgx-h100"), "launch=absent.sh: no such file"),
    "a solver of another name": (
        lambda: api.schedule("examples/schedule/decoder_backward.json", solver="cplex"),
        "solver=cplex: must be one of cp_sat, milp, greedy",
    ),
}


def test_an_image_has_the_tokens_its_config_says(tmp_path: Path) -> None:
    config = {"model_type": "vit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"intermediate_size": 128, "image_size": 224, "patch_size": 16}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    said = "seq_len=4096: each input of this model is 197 tokens, which its config sets; nearest: 197"
    for phase in ("train", "prefill"):
        with pytest.raises(InputError) as error:
            api.estimate(path, seq_len=4096, phase=phase)
        assert said in str(error.value)
        assert api.estimate(path, seq_len=197, phase=phase).question.workload.seq_len == 197


@pytest.mark.parametrize("case", BAD_CALLS)
def test_an_error_names_the_argument_as_the_caller_wrote_it(
    case: str, repo_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo_dir)
    call, sentence = BAD_CALLS[case]
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value).startswith(sentence)
    assert "--" not in str(caught.value)


JOURNEYS = ("estimate", "lint", "advise", "gemm", "collective", "plan", "design", "place", "schedule", "serving")
ONLY_IN_PYTHON = {"progress"}
"""A callback; the terminal's progress is a bar."""


@pytest.mark.parametrize("name", JOURNEYS)
def test_arguments_are_called_as_the_command_line_calls_them(name: str) -> None:
    command = typer.main.get_command(app_with(*GROUPS)).commands[name]
    words = {flag.lstrip("-").replace("-", "_") for each in command.params for flag in (*each.opts, each.name)}
    words |= {word.removesuffix("s") for word in words}  # lint takes several models in turn
    parameters = inspect.signature(getattr(api, name)).parameters.values()
    named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD}
    assert named - ONLY_IN_PYTHON <= words
    if len(named) < len(parameters):  # the fields of a run, or those that both phases of serving have
        passes = {row.name for row in FIELDS.values() if row.inference} - OF_ONE_PASS.keys()
        assert (passes if name == "serving" else TrainingOptions.__annotations__.keys()) <= words


@pytest.mark.parametrize("name", JOURNEYS)
def test_every_journey_is_found_on_the_package_by_its_name_and_arguments(name: str) -> None:
    assert name in dir(sartor)
    parameters = inspect.signature(getattr(sartor, name)).parameters.values()
    assert all(each.annotation != "Any" for each in parameters)
    options = [each.annotation for each in parameters if each.kind is each.VAR_KEYWORD]
    assert all(str(annotation).startswith("Unpack[") for annotation in options)


def test_an_odd_vocabulary_is_padded_as_the_trainer_pads_it() -> None:
    words = {"num_devices": 8, "global_batch_size": 64}
    padded, written = (
        api.estimate("gpt2", "a100_sxm", tp=1, framework=name, **words) for name in ("megatron", "torchtitan")
    )
    logits = [next(op for op in each.graph.operators if op.name == "logits") for each in (padded, written)]
    assert [int(op.n) for op in logits] == [50304, 50257]
    assert any("vocabulary of 50257 padded to 50304" in each for each in padded.question.assumptions)


@pytest.mark.parametrize("model", ["llama-3-8b", "llama3-70b", "gpt-oss-120b", "qwen3-235b-a22b"])
def test_a_run_without_a_plan_is_completed_by_one_that_fits_on_the_fewest_nodes(model: str) -> None:
    answer = api.estimate(model, "h100")
    run = answer.question.run
    assert answer.fits
    assert run.origin("num_devices") is run.origin("tp") is Origin.SEARCHED
    if (count := run.get("num_devices")) > 8:
        assert not api.estimate(model, "h100", num_devices=count // 2).fits
    plan = api.plan(model, num_devices=count, global_batch_size=run.get("global_batch_size")).best
    assert plan is not None
    assert plan.step_s == answer.time_s


def test_what_is_stated_is_held_and_the_rest_is_the_fastest_that_fits() -> None:
    words = {"num_devices": 16, "global_batch_size": 256}
    answer = api.estimate("llama-3-8b", "h100", tp=2, recompute="none", **words)
    best = api.plan("llama-3-8b", "dgx-h100", fix={"tp": 2, "recompute": "none"}, **words).best
    assert best is not None
    assert answer.time_s == best.step_s
    assert answer.question.run.states("tp")
    assert answer.question.run.origin("pp") is Origin.SEARCHED


def test_where_no_change_fits_the_hint_is_a_search_over_all_plans() -> None:
    from sartor.report.fit_words import does_not_fit

    words = does_not_fit(api.estimate("llama-3.1-405b", num_devices=8, global_batch_size=512))
    command = "plan llama-3.1-405b --cluster dgx-h100 --num-devices 8 --global-batch-size 512 --seq-len 4096"
    assert f"Nothing that was tried would fit: `sartor {command}` tries all plans" in words


def test_answers_can_be_pickled_and_copied() -> None:
    answers = (
        api.estimate("gpt2"),
        api.lint("gpt2"),
        api.advise("gpt2"),
        api.gemm(64, 64, 64),
        api.plan("gpt2", "dgx-h100", **TRAIN),
        api.serving("llama-3-8b"),
    )
    for answer in answers:
        for again in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
            assert sorted(repr(again)) == sorted(repr(answer))  # sets may come back in another order


def test_a_datasheet_without_links_trains_on_an_assumed_one(tmp_path: Path) -> None:
    sheet = tmp_path / "own.toml"
    kept = [
        line
        for line in (GPUS.folder / "h100_sxm.toml").read_text().splitlines()
        if "link" not in line and "pcie" not in line
    ]
    sheet.write_text("\n".join(kept).replace('name = "h100_sxm"', 'name = "own"'))
    found = api.estimate("gpt2", str(sheet))
    assert any(each.startswith("own states no link between devices: 16 GB/s") for each in found.question.assumptions)


def test_a_cache_is_not_of_training() -> None:
    with pytest.raises(InputError, match="context_len=512: counts tokens in the KV cache"):
        api.estimate("gpt2", context_len=512)


def test_numpy_s_integers_are_sizes() -> None:
    plain, other = api.gemm(4096, 4096, 4096), api.gemm(np.int64(4096), np.int32(4096), np.uint16(4096))  # type: ignore[arg-type]
    assert plain.cost.time_s == other.cost.time_s
    assert type(other.gemm.m) is int


def test_a_gemm_says_what_else_its_time_holds_and_whose_kernels_its_interval_holds() -> None:
    assert api.gemm(512, 4096, 4096, "h100", dtype="fp8").assumptions[-1] == (
        "the time includes the kernel that narrows the activation to fp8"
    )
    assert "eager PyTorch of 2023" in api.gemm(512, 4096, 4096, "mi250x", dtype="fp16").assumptions[-1]
    assert not api.gemm(512, 4096, 4096, "h100").assumptions


def test_a_gemm_says_where_its_weights_are_read_from_and_what_it_takes_in_a_model() -> None:
    """As a layer's GEMM alone: `estimate` prices it from memory."""
    found = api.gemm(64, 4096, 1024, "l40s")
    inside = operator_costs(
        [Gemm(name="up", m=64, n=4096, k=1024, role=Role.FFN_UP)],
        found.gpu,
        load_calibration(found.gpu),
        clock=Clock.BOOST,
    )[0]
    assert inside.time_s > 1.5 * found.cost.time_s
    assert found.assumptions == (
        "the weights (8 MiB) stay in L2 from one run to the next, as in a benchmark; in a model it reads them from "
        f"memory and takes {format_seconds(inside.time_s)}",
    )
    long = api.gemm(64, 4096, 1024, "l40s", clock="sustained")
    assert long.assumptions == ("the weights (8 MiB) are read from memory, as in a model, though they fit in L2",)
    assert not api.gemm(4096, 4096, 2048, "l40s").assumptions  # takes as long from memory
    assert not api.gemm(64, 16384, 8192, "l40s").assumptions  # larger than L2


def test_fp8_without_matrix_units_is_8_bit_weights_in_every_question() -> None:
    """As vLLM runs such checkpoints on Ampere; `validate` took it so and the others refused it."""
    said = "a100_sxm has no matrix units for fp8: 8-bit weights are widened to 16 (int8_wo), as in vLLM"
    one, other = (api.gemm(512, 4096, 4096, "a100", dtype=dtype) for dtype in ("fp8", "int8_wo"))
    assert one.cost == other.cost
    assert one.assumptions == (said, *other.assumptions)
    words = {"phase": "decode", "microbatch_size": 8, "context_len": 1024}
    passes = [api.estimate("llama-3.1-8b", "a100", dtype=dtype, **words) for dtype in ("fp8", "int8_wo")]  # type: ignore[arg-type]
    assert passes[0].microbatch.time_s == passes[1].microbatch.time_s
    assert said in passes[0].question.assumptions
    served = api.serving("llama-3.1-8b", "a100", dtype="fp8")
    assert said in served.assumptions
    with pytest.raises(InputError):
        api.gemm(512, 4096, 4096, "a100", dtype="nvfp4")
    with pytest.raises(InputError, match="fp8"):  # nothing trains with 8-bit weights alone
        api.estimate("llama-3.1-8b", "a100", dtype="fp8")


def test_gemms_of_tuning_runs_say_whose_time_they_take() -> None:
    (said,) = api.gemm(4096, 4096, 4096, "mi355x", dtype="mxfp4").assumptions
    assert said.startswith(
        "mxfp4 GEMMs take the time of the fastest library of a tuning run; kernels=aiter_asm|aiter_ck"
    )
    assert not api.gemm(4096, 4096, 4096, "mi355x", dtype="mxfp4", kernels="aiter_ck").assumptions
    assert api.gemm(4096, 4096, 4096, "mi355x", dtype="fp8", kernels="aiter_ck").assumptions == (
        "aiter_ck's own fp8 GEMMs are not known: this is the time of the fastest library",
    )


def test_a_cluster_that_nobody_stated_is_never_called_stated() -> None:
    assumed = api.plan("gpt2", num_devices=8, global_batch_size=64)
    stated = api.plan("gpt2", "dgx-h100", num_devices=8, global_batch_size=64)
    assert assumed.run.origin("cluster") is Origin.USUAL
    assert stated.run.states("cluster")
    notes = {note for note in assumed.assumptions if "--cluster" in note}
    assert notes
    assert not notes & set(stated.assumptions)
    assert assumed.searches[0].best == stated.searches[0].best


def test_a_size_that_is_not_read_stands_in_the_first_lines_of_an_estimate(tmp_path: Path) -> None:
    from sartor.report.fit_words import headline
    from sartor.report.plan_words import plan_lines

    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "vocab_size": 32000, "adapter_inner_size": 512}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    lines = list(headline(api.estimate(path, "h100")))
    assert lines[2].startswith("adapter_inner_size=512 is not read")
    assert "without it" in lines[2]
    planned = list(plan_lines(api.plan(path, num_devices=8, global_batch_size=64)))
    assert planned[2].startswith("adapter_inner_size=512 is not read")
