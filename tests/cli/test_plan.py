"""``sartor plan`` as people script against it: keys, exit codes, sentences, bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sartor import api, cli
from sartor.cli.plan import parse_counts

BEST_KEYS = [
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "virtual_stages",
    "microbatch_size",
    "num_microbatches",
    "sequence_parallel",
    "zero_stage",
    "recompute",
    "step_s",
    "low_s",
    "high_s",
    "source",
    "tokens_per_s_per_device",
    "mfu",
    "peak_bytes",
    "memory",
    "time",
]
MEMORY_KEYS = ["param_bytes", "grad_bytes", "optimizer_bytes", "stash_bytes", "workspace_bytes", "reserved_bytes"]
TIME_KEYS = ["compute_s", "tp_s", "pp_bubble_s", "dp_exposed_s", "ep_s", "cp_s", "optimizer_s"]

Call = Callable[..., Any]


@pytest.fixture
def small(repo_dir: Path) -> list[object]:
    """A question that takes no time."""
    config = repo_dir / "examples" / "llama-3-8b" / "config.json"
    words = ["--cluster", "dgx-h100", "--num-devices", "16", "--global-batch-size", "32", "--seq-len", "4096"]
    return ["plan", config, *words]


def test_the_answer_has_the_contracts_keys(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--json")
    assert ran.code == 0, ran.err
    body = ran.body
    assert list(body)[:2] == ["schema", "version"]
    assert body["schema"] == "sartor/plan/1"
    assert body["status"] == "optimal"
    for plan in (body["best"], *body["top"], *body["front"]):
        assert set(BEST_KEYS) <= set(plan)
        assert set(MEMORY_KEYS) == set(plan["memory"])
        assert set(TIME_KEYS) <= set(plan["time"])
        assert 0 < plan["low_s"] < plan["step_s"] < plan["high_s"]
        assert plan["source"] in ("measured", "calibrated", "analytic")
        assert 0 < plan["mfu"] < 1
        assert plan["recompute"] in ("none", "selective", "full")
        assert plan["tp"] * plan["pp"] * plan["dp"] * plan["cp"] == 16
        assert plan["dp"] * plan["microbatch_size"] * plan["num_microbatches"] == 32
        assert sum(plan["memory"].values()) == pytest.approx(plan["peak_bytes"], rel=1e-6)
        assert sum(plan["time"].values()) == pytest.approx(plan["step_s"], rel=1e-6)
    assert len(body["best"]["stages"]) == body["best"]["pp"]
    assert body["evaluated"] > 100
    assert body["evaluated_per_s"] > 0
    assert body["fitting"] + sum(body["rejected"].values()) == body["space_size"]


def test_one_answer_is_the_fastest_and_fits(sartor: Call, small: list[object]) -> None:
    body = sartor(*small, "--json").body
    steps = [plan["step_s"] for plan in body["top"]]
    assert steps == sorted(steps)
    assert body["best"]["step_s"] == steps[0] == body["front"][0]["step_s"]
    assert body["best"]["peak_bytes"] <= body["cluster"]["hbm_bytes"]
    front = [(plan["step_s"], -plan["peak_bytes"]) for plan in body["front"]]
    assert front == sorted(front)


def test_the_terminal_fits_100_columns_and_says_plan_reason_and_cost(sartor: Call, small: list[object]) -> None:
    ran = sartor(*small, "--tokens", "2T", "--verbose")
    assert ran.code == 0
    assert max(len(line) for line in ran.out.splitlines()) <= 100
    for words in (
        "the fastest of",
        "Where the time goes",
        "Memory by stage",
        "Rejected",
        "2T tokens take",
        "device-hours",
    ):
        assert words in ran.out
    assert ran.err == ""


def test_fixed_axes_hold(sartor: Call, small: list[object]) -> None:
    body = sartor(
        *small, "--fix", "tp=4,recompute=full", "--fix", "zero_stage=1", "--microbatch-size", "2", "--json"
    ).body
    best = body["best"]
    assert (best["tp"], best["recompute"], best["zero_stage"], best["microbatch_size"]) == (4, "full", 1, 2)
    assert body["fixed"] == {"microbatch_size": 2, "tp": 4, "recompute": 2, "zero_stage": 1}


def test_several_numbers_of_devices_are_searched_each(sartor: Call, small: list[object]) -> None:
    words = ["8,16" if word == "16" else word for word in small]
    body = sartor(*words, "--json").body
    assert [each["num_devices"] for each in body["searches"]] == [8, 16]
    assert body["searches"][1]["step_s"] < body["searches"][0]["step_s"]
    assert {plan["num_devices"] for plan in body["front"]} == {8, 16}
    assert "By number of devices" in sartor(*words).out


def test_nothing_fits_is_an_answer_with_exit_code_3(sartor: Call, repo_dir: Path) -> None:
    config = repo_dir / "examples" / "llama-3-8b" / "config.json"
    words = ["plan", config, "--num-devices", "1", "--global-batch-size", "8"]
    ran = sartor(*words, "--json")
    assert ran.code == 3
    body = ran.body
    assert (body["status"], body["best"], body["top"]) == ("infeasible", None, [])
    tightest = body["tightest"]
    assert tightest["over_bytes"] > 0
    assert tightest["stage"] == 0
    assert "GiB" in tightest["message"]
    changes = {each["field"]: each["value"] for each in tightest["relaxations"]}
    assert {"num_devices", "hbm_bytes"} <= set(changes)
    more = ["plan", config, "--num-devices", changes["num_devices"], "--global-batch-size", "8"]
    assert sartor(*more, "--json").code == 0
    text = sartor(*words)
    assert text.code == 3
    assert "Does not fit" in text.out
    assert f"use {changes['num_devices']} devices" in text.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--fix schedule=zero_bubble", "schedule=zero_bubble: Megatron-LM has no such schedule; nearest: 1f1b"),
        (
            "--recompute selective",
            "--recompute=selective: selective recomputation saves nothing with flash attention; nearest: full or none",
        ),
        (
            "--fix zero_stage=3,pp=4",
            "plan=pp=4,zero_stage=3: ZeRO 2 and 3 do not work with a pipeline; nearest: zero_stage=1 or pp=1",
        ),
    ],
)
def test_values_that_no_plan_has_are_refused_by_every_command_in_one_sentence(
    sartor: Call, words: str, message: str
) -> None:
    run = ("pythia-160m", "--cluster", "dgx-h100", "--num-devices", 8, "--global-batch-size", 64, *words.split())
    refusals = {(ran.code, ran.err) for ran in (sartor(name, *run) for name in ("estimate", "lint", "advise", "plan"))}
    assert refusals == {(2, f"sartor: {message}\n")}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("llama-3-8b --num-devices 8 --global-batch-size 512 --tp 1 --pp 1 --zero-stage 0", 3),
        ("llama-3-70b --num-devices 8 --global-batch-size 64", 3),
        ("gpt2 --num-devices 8 --global-batch-size 64", 0),
    ],
)
def test_what_does_not_fit_ends_with_the_same_code_in_every_command_that_prices_it(
    sartor: Call, words: str, code: int
) -> None:
    run = (*words.split(), "--cluster", "dgx-h100")
    assert {name: sartor(name, *run).code for name in ("estimate", "advise", "plan")} == dict.fromkeys(
        ("estimate", "advise", "plan"), code
    )
    assert sartor("lint", *run).code == 0  # its code is that of its findings


@pytest.mark.parametrize(("words", "code"), [("--tp 1", 3), ("--tp 1 --dtype fp8", 0), ("--tp 4", 0)])
def test_a_pass_is_infeasible_only_if_not_even_one_sequence_fits(sartor: Call, words: str, code: int) -> None:
    assert sartor("estimate", "llama-3-70b", "--gpu", "h100", "--phase", "decode", *words.split()).code == code


def test_the_change_that_would_make_a_plan_fit_is_said(sartor: Call) -> None:
    words = "llama-3-8b --num-devices 8 --global-batch-size 512 --tp 1 --pp 1 --zero-stage 0"
    ran = sartor("estimate", *words.split(), "--json")
    assert ran.body["totals"]["would_fit"] == [{"zero_stage": 1}]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--fix", "tpp=8"], "--fix=tpp: is not an axis of a plan"),
        (["--fix", "optimizer=muon"], "is a setting of the job, not of the plan; nearest: --optimizer"),
        (["--fix", "rails=true"], "nearest: a tier of a cluster's file: rails = ..."),
        (["--fix", "tp"], "must read KEY=VALUE"),
        (["--fix", "tp=2,tp=4"], "tp is already 2"),
        (["--fix", "tp=3"], "--fix tp=3: must divide --num-devices=16; nearest: 2 or 4"),
        (["--fix", "dp=8,microbatch_size=3"], "--global-batch-size=32: must be a multiple of dp=8 x microbatch_size=3"),
        (["--num-devices", "sixteen"], "--num-devices=sixteen: must be a whole number"),
        (["--num-devices", "0"], "--num-devices=0: must be an integer from 1"),
        (["--num-devices", "509"], "--num-devices=509: no tp x pp x dp x cp split works"),
        (["--cluster", "dgx-h10"], "--cluster=dgx-h10: not in the catalogue"),
        (["--dtype", "fp7"], "--dtype=fp7: must be one of"),
        (["--framework", "megatrn"], "nearest: megatron"),
        (["--global-batch-size", "1.5"], "--global-batch-size=1.5: must be a whole number; nearest: 2"),
        (["--dtype", "fp8", "--cluster", "dgx-a100"], "a100_sxm has no matrix units for it; nearest: bf16"),
        (["--tokens", "100"], "one step, 131,072 tokens; nearest: 100B, if billions were meant"),
        (["--tokens", "many"], "--tokens=many: must be a number"),
        (["--routing-skew", "0.5"], "--routing-skew=0.5"),
        (["--seq-len", "0"], "--seq-len=0: must be an integer from 1"),
        (["--top", "0"], "--top=0"),
        (["--tp", "3"], "--tp=3: must divide --num-devices=16; nearest: 2 or 4"),
        (["--tp", "2", "--fix", "tp=4"], "--tp=2: fix says tp=4: must be stated once; nearest: tp=4 or tp=2"),
        (["--gpu", "h100"], "No such option: --gpu; nearest: --cluster"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    sartor: Call, small: list[object], words: list[str], sentence: str
) -> None:
    if "--cluster" in words:  # two are two questions
        at = small.index("--cluster")
        small = small[:at] + small[at + 2 :]
    ran = sartor(*small, *words, "--json")
    assert sentence in ran.refusal()


def test_a_plan_that_contradicts_itself_names_the_one_change_that_mends_it(sartor: Call) -> None:
    asked = ("estimate", "llama-3-8b", "--gpu", "h100", "--num-devices", 64, "--global-batch-size", 256, "--json")
    said = sartor(*asked, "--pp", 4, "--zero-stage", 3).refusal()
    assert "ZeRO 2 and 3 do not work with a pipeline; nearest: zero_stage=1 or pp=1" in said
    for change in (("--pp", 1, "--zero-stage", 3), ("--pp", 4, "--zero-stage", 1)):
        assert sartor(*asked, *change).body["totals"]["time_s"] > 0
    said = sartor(*asked, "--recompute", "selective").refusal()
    assert "--recompute=selective: selective recomputation saves nothing with flash attention" in said
    assert "nearest: full or none" in said


MIXED = """
gpu = "h100"
devices_per_node = 8
num_devices = 8
[[tiers]]
kind = "nvswitch"
span = 8
[[tiers]]
kind = "infiniband"
span = "all"
gbit_per_s = 400

[[others]]
gpu = "a100"
devices_per_node = 8
num_devices = 16
[[others.tiers]]
kind = "nvswitch"
span = 8
[[others.tiers]]
kind = "infiniband"
span = "all"
gbit_per_s = 200
"""


@pytest.mark.slow
def test_two_kinds_of_devices_share_a_model_by_their_pace(sartor: Call, repo_dir: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "two.toml"
    cluster.write_text(MIXED)
    config = repo_dir / "examples" / "llama-3-8b" / "config.json"
    words = ["plan", config, "--cluster", cluster, "--global-batch-size", "48"]
    body = sartor(*words, "--fix", "pp=3,virtual_stages=1", "--json").body
    best = body["best"]
    assert body["cluster"]["num_devices"] == best["num_devices"] == 24
    assert [pool["num_devices"] for pool in body["cluster"]["others"]] == [16]
    assert best["stage_layers"][0] > max(best["stage_layers"][1:])
    assert best["mfu"] < 1
    assert sartor(*words, "--num-devices", "25").err.startswith("sartor: --num-devices=25: two has 24 devices")
    text = sartor(*words)
    assert "8 h100_sxm and 16 a100_sxm" in text.out
    alone = sartor(*words, "--num-devices", "8", "--json").body
    assert "others" not in alone["cluster"]
    same = sartor("plan", config, "--cluster", _first_pool(tmp_path), *words[4:], "--json").body
    assert alone["best"] == same["best"]


def _first_pool(folder: Path) -> Path:
    path = folder / "one.toml"
    path.write_text(MIXED.partition("[[others]]")[0])
    return path


def test_a_launch_of_more_devices_than_a_cluster_has_is_refused(sartor: Call, tmp_path: Path) -> None:
    launch = tmp_path / "launch.sh"
    launch.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 "
        "--num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
        "--global-batch-size 16 --vocab-size 32000 --bf16\n"
    )
    ran = sartor("plan", "--launch", launch, "--cluster", _first_pool(tmp_path))
    assert (ran.code, ran.err.strip()) == (2, "sartor: num_devices=16: one has 8 devices; nearest: 8")


def test_devices_and_batch_that_are_not_given_are_completed_as_in_estimate(sartor: Call, repo_dir: Path) -> None:
    words = (repo_dir / "examples" / "gpt2" / "config.json", "--cluster", "dgx-h100", "--tp", 1, "--json")
    planned, estimated = (sartor(command, *words).body for command in ("plan", "estimate"))
    assert planned["best"]["step_s"] == estimated["totals"]["step_s"]
    assert planned["best"]["peak_bytes"] == estimated["totals"]["peak_bytes"]
    for name in ("num_devices", "global_batch_size", "tp", "pp", "microbatch_size", "recompute"):
        assert planned["run"][name] == estimated["run"][name], name
    assert planned["run"]["tp"]["origin"] == "stated"
    assert planned["run"]["num_devices"]["origin"] == "searched"


def test_a_break_leaves_with_130(sartor: Call, small: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "plan", broken)
    ran = sartor(*small)
    assert ran.code == 130
    assert "Traceback" not in ran.err


def test_a_library_call_answers_the_same(sartor: Call, small: list[object]) -> None:
    body = sartor(*small, "--json").body
    found = api.plan(small[1], "dgx-h100", num_devices=16, global_batch_size=32, seq_len=4096)
    assert found.best is not None
    assert found.best.step_s == body["best"]["step_s"]
    assert cli.run(["plan", "--help"]) == 0


def test_a_number_of_devices_may_be_written_as_a_size() -> None:
    assert parse_counts("1k,8..32") == [1024, 8, 16, 32]
