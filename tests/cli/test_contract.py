"""The JSON and the exit codes that people script against (the contract), command by command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

EXAMPLES = ("pythia-2.8b", "llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2")
OPERATOR_KEYS = [
    "name",
    "kind",
    "pass",
    "count",
    "batch",
    "m",
    "n",
    "k",
    "flops",
    "bytes_moved",
    "time_s",
    "low_s",
    "high_s",
    "compute_s",
    "memory_s",
    "overhead_s",
    "network_s",
    "bound_by",
    "tile_m",
    "tile_n",
    "waves",
    "tile_efficiency",
    "wave_efficiency",
    "source",
]
CANDIDATE_KEYS = [
    "shape",
    "changed",
    "num_fields",
    "num_params",
    "params_change",
    "flops_change",
    "time_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "efficiency_gain",
    "efficiency_low",
    "efficiency_high",
    "confidence",
    "per_gpu",
    "quality",
]
FINDING_KEYS = ["rule", "grade", "message", "operator", "field", "value", "gain_s", "gain_fraction", "fix"]


@pytest.fixture
def config(repo_dir: Path) -> Path:
    return repo_dir / "examples" / "llama-3-8b" / "config.json"


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_printed_text_is_as_wide_as_columns_says_where_it_is_piped(
    sartor, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("advise", "lint"):
        widest = max(len(line.rstrip()) for line in sartor(command, "gpt2", "--gpu", "a100").out.splitlines())
        assert columns - 12 < widest <= columns


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_estimate_answers_for_every_example_in_every_phase(sartor, repo_dir: Path, name: str, phase: str) -> None:
    ran = sartor("estimate", repo_dir / "examples" / name / "config.json", "--gpu", "h100", "--phase", phase, "--json")
    assert ran.code == 0, ran.err
    body = ran.body
    assert list(body)[:2] == ["schema", "version"]
    assert body["schema"] == "sartor/estimate/1"
    for key in ("num_params", "num_active_params", "text_params", "assumptions", "hidden_size"):
        assert key in body["model"]
    for operator in body["operators"]:
        assert set(OPERATOR_KEYS) <= set(operator)
        assert 0 <= operator["low_s"] <= operator["time_s"] <= operator["high_s"]
        assert operator["low_s"] > 0 or operator["bytes_moved"] == 0  # one expert on a device needs no sorting
        assert operator["source"] in ("measured", "calibrated", "analytic", "assumed")
        assert operator["pass"] in ("forward", "dgrad", "wgrad", "backward")
    totals = body["totals"]
    assert totals["low_s"] < totals["time_s"] < totals["high_s"]
    assert 0 < totals["mfu"] <= 1
    operators_s = sum(op["time_s"] * op["count"] for op in body["operators"])
    assert totals["microbatch_s"] == pytest.approx(operators_s, rel=1e-9)
    assert totals["layer_time_s"] <= totals["microbatch_s"] <= totals["time_s"]
    assert totals["time_s"] == totals.get("step_s", totals["microbatch_s"])


def test_experts_of_a_pass_are_on_tp_times_ep_devices_and_of_a_server_within_its_own(sartor) -> None:
    words = ("deepseek-v3", "--gpu", "h100", "--dtype", "fp8_block", "--tp", 8, "--ep", 8)
    asked = ("estimate", *words, "--phase", "decode", "--microbatch-size", 8)
    assert sartor(*asked, "--json").body["workload"]["num_devices"] == 64
    assert "on 64 devices (tp 8 x ep 8)" in " ".join(sartor(*asked).out.split())
    assert sartor("serving", *words, "--concurrency", 1, "--json").body["server"]["num_devices"] == 8


def test_the_same_question_gets_the_same_bytes(sartor, config: Path) -> None:
    words = ("advise", config, "--gpu", "h100", "--json")
    assert sartor(*words).out == sartor(*words).out


def test_out_writes_the_json_that_json_prints(sartor, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    ran = sartor("lint", config, "--gpu", "h100", "--json", "--out", file)
    assert json.loads(file.read_text()) == ran.body


def test_advise_says_what_the_contract_promises(sartor, repo_dir: Path) -> None:
    config = repo_dir / "examples" / "pythia-2.8b" / "config.json"
    body = sartor("advise", config, "--gpu", "a100", "--gpu", "h100", "--top", 5, "--json").body
    assert {"baseline", "findings", "candidates", "evaluated"} <= set(body)
    assert 0 < len(body["candidates"]) <= 5
    speedups = [candidate["speedup"] for candidate in body["candidates"]]
    assert speedups == sorted(speedups, reverse=True)
    for candidate in body["candidates"]:
        assert set(CANDIDATE_KEYS) <= set(candidate)
        assert candidate["speedup_low"] <= candidate["speedup"] <= candidate["speedup_high"]
        assert 0 <= candidate["confidence"] <= 1
        assert abs(candidate["params_change"]) <= 0.01
        assert set(candidate["per_gpu"]) == {"a100_sxm", "h100_sxm"}
        for check in candidate["quality"]["checks"]:
            assert {"name", "baseline", "value", "within_evidence", "source"} <= set(check)
        for old, new in candidate["changed"].values():
            assert old != new


def test_lint_findings_have_the_contracts_keys_and_the_exit_code_follows_the_grade(sartor, repo_dir: Path) -> None:
    config = repo_dir / "examples" / "gpt2" / "config.json"
    ran = sartor("lint", config, "--gpu", "a100", "--json", "--fail-on", "info")
    assert ran.code == 1
    assert ran.body["findings"]
    for finding in ran.body["findings"]:
        assert set(FINDING_KEYS) <= set(finding)
        assert finding["grade"] in ("error", "warn", "info")
    assert sartor("lint", config, "--gpu", "a100", "--fail-on", "never").code == 0


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github"])
def test_lint_prints_in_every_format(sartor, repo_dir: Path, format: str) -> None:
    config = repo_dir / "examples" / "gpt2" / "config.json"
    ran = sartor("lint", config, "--gpu", "a100", "--format", format, "--fail-on", "never")
    assert ran.code == 0
    assert ran.out.strip()
    if format in ("json", "sarif"):
        json.loads(ran.out)


def test_what_measurements_moved_is_said_beside_the_formulas_terms(sartor) -> None:
    words = ("gemm", 4096, 4096, 4096, "--gpu", "h200")
    body = sartor(*words, "--json").body
    assert body["residual"] != 1
    assert body["time_s"] / body["residual"] == pytest.approx(body["tiles"][0]["time_s"], rel=1e-6)
    assert "Changes to the analytic" in sartor(*words).out
    plain = sartor("gemm", 4096, 4096, 4096, "--gpu", "a100", "--dtype", "fp16", "--json").body
    assert plain["residual"] is None
    found = sartor("estimate", "llama-3-8b", "--gpu", "h200", "--json").body
    moved = sum(o["count"] * o["time_s"] / (o["residual"] or 1) for o in found["operators"])
    assert found["totals"]["formula_time_s"] == pytest.approx(moved)


def test_gemm_is_one_operator_with_the_tiles_considered(sartor) -> None:
    body = sartor("gemm", 2304, 1600, 4096, "--gpu", "a100", "--dtype", "fp16", "--json").body
    assert set(OPERATOR_KEYS) <= set(body)
    assert len(body["tiles"]) > 1
    assert {"tile_m", "tile_n", "time_s"} <= set(body["tiles"][0])
    times = [tile["time_s"] for tile in body["tiles"]]
    assert times == sorted(times)
    assert times[0] == pytest.approx(body["time_s"], rel=1e-9)


@pytest.mark.parametrize("what", ["gpus", "models", "clusters", "rules", "accelerators"])
def test_catalogues_list_entries_with_their_sources(sartor, what: str) -> None:
    ran = sartor("catalog", what, "--json")
    assert ran.code == 0
    assert len(ran.body["entries"]) > (5 if what == "accelerators" else 20)
    assert sartor("catalog", what).code == 0


USELESS = {
    "decoding with an encoder": (
        ("estimate", "bert-large", "--gpu", "h100", "--phase", "decode"),
        ["decode", "encoder"],
    ),
    "an unknown gpu": (("estimate", "{config}", "--gpu", "h1000"), ["gpu", "h1000", "h100_sxm"]),
    "an unknown model": (("estimate", "llama-3.1-9b", "--gpu", "h100"), ["llama-3.1-9b", "llama-3.1-8b"]),
    "a missing file": (("estimate", "nowhere/config.json", "--gpu", "h100"), ["nowhere/config.json"]),
    "tp that does not divide the devices": (
        ("plan", "{config}", "--num-devices", "40", "--global-batch-size", "40", "--tp", "6"),
        ["tp", "6", "must divide --num-devices=40"],
    ),
    "tp zero": (("estimate", "{config}", "--gpu", "h100", "--tp", "0"), ["tp", "0"]),
    "a phase that is none": (("estimate", "{config}", "--phase", "inference"), ["phase", "inference", "prefill"]),
    "a dtype the device lacks": (("estimate", "{config}", "--gpu", "a100", "--dtype", "fp8"), ["dtype", "fp8", "bf16"]),
    "a field that cannot be set": (("estimate", "{config}", "--set", "hidden=3"), ["hidden", "hidden_size"]),
    "a set without a value": (("estimate", "{config}", "--set", "hidden_size"), ["--set", "hidden_size"]),
    "a set that is no number": (("estimate", "{config}", "--set", "hidden_size=big"), ["hidden_size", "big"]),
    "heads that do not divide": (("estimate", "{config}", "--set", "num_heads=30"), ["num_heads", "30"]),
    "an unknown command": (("advice", "{config}"), ["advice", "advise"]),
    "an unknown option": (("estimate", "{config}", "--gup", "h100"), ["--gup", "--gpu"]),
    "a letter for a number": (("gemm", "big", "64", "64"), ["big"]),
    "a zero size": (("gemm", "0", "64", "64"), ["m", "0"]),
    "an unknown layout": (("gemm", "64", "64", "64", "--layout", "XX"), ["layout", "XX", "TN"]),
    "an unknown fail-on": (("lint", "{config}", "--fail-on", "bad"), ["--fail-on", "bad", "warn"]),
    "an unknown format": (("lint", "{config}", "--format", "xml"), ["--format", "xml", "sarif"]),
    "an unknown rule to allow": (("lint", "{config}", "--allow", "ragged_vocap"), ["ragged_vocap", "ragged_vocab"]),
    "an unknown field to freeze": (("advise", "{config}", "--freeze", "hidden"), ["hidden", "hidden_size"]),
    "a tolerance below zero": (("advise", "{config}", "--params-tolerance", "-1"), ["tolerance"]),
    "an unknown catalogue": (("catalog", "gpu"), ["gpu", "gpus"]),
    "an unknown entry": (("catalog", "gpus", "h1000"), ["h1000", "h100_sxm"]),
}


@pytest.mark.parametrize("case", USELESS)
def test_unusable_input_gets_exit_code_two_and_one_sentence(sartor, config: Path, case: str) -> None:
    words, must_name = USELESS[case]
    ran = sartor(*(word.format(config=config) for word in words))
    assert ran.code == 2
    assert ran.err.count("\n") == 1, ran.err
    assert "Traceback" not in ran.err
    for name in must_name:
        assert name in ran.err
    as_json = sartor(*(word.format(config=config) for word in words), "--json")
    assert as_json.code == 2
    assert as_json.body["error"]["message"] in as_json.err


@pytest.mark.parametrize("words", [(), ("validate",)])
def test_asking_for_nothing_prints_the_help_and_no_complaint(sartor, words: tuple[str, ...]) -> None:
    ran = sartor(*words)
    assert "Commands" in ran.out
    assert ran.err == ""
    assert ran.code == (2 if words else 0)


def test_lint_looks_at_several_models_as_a_pre_commit_hook_names_them(sartor, repo_dir: Path) -> None:
    configs = [repo_dir / "examples" / name / "config.json" for name in ("llama-3-8b", "gpt2")]
    ran = sartor("lint", "--gpu", "a100", "--framework", "torchtitan", "--fail-on", "error", *configs)
    assert ran.code == 1
    assert all(str(config) in ran.out for config in configs)
    assert sartor("lint", "--gpu", "a100", configs[0]).code == 0
    assert sartor("lint", "--json", *configs).code == 2


def test_an_error_of_its_own_exits_70_and_asks_to_be_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sartor import api, cli

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a made one")

    monkeypatch.setattr(api, "gemm", broken)
    monkeypatch.delenv("SARTOR_DEBUG", raising=False)
    assert cli.run(["gemm", "64", "64", "64", "--gpu", "h100", "--json"]) == 70
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["internal"] is True
    assert "please report" in told.err
    assert "Traceback" not in told.err


OF_A_RUN = "--cluster --num-devices --global-batch-size --seq-len --microbatch-size --framework --dtype --price --set"
OPTIONS = {
    "estimate": f"{OF_A_RUN} --gpu --phase --tp --context-len --pp --ep --cp --zero-stage --virtual-stages --recompute",
    "gemm": "--gpu --batch --dtype --layout",
    "lint": f"{OF_A_RUN} --gpu --tp --pp --ep --fail-on --format",
    "advise": f"{OF_A_RUN} --gpu --params-tolerance --freeze --objective --top --html --equal --tokens --write",
    "plan": f"{OF_A_RUN} --fix --write --trace --why-not --headroom --simple --chakra --launch --fit-probability",
    "schedule": "--time-limit --solver",
    "design": "--model --num-devices --global-batch-size --area-mm2 --power-w --hbm-gib --space --objective --study "
    "--executor --against --shapes",
    "diagnose": "--model --gpu --cluster --launch --steps --html",
    "compare": "--threshold",
    "validate training": "--data --group-by --shots --calibration",
    "validate memory": "--data",
    "measure": "--device --suite",
    "deploy": "--gpu --cluster --input-len --output-len --traffic --requests-per-s --users --ttft --tpot --percentile "
    "--max-devices --max-price --engine --dtype --fix --why-not --write",
}
"""Options that the contract names."""


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_takes_every_option_of_the_contract(sartor, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    words = set(re.findall(r"--[a-z][a-z0-9-]*", sartor(*command.split(), "--help").out))
    assert set(f"{OPTIONS[command]} --json --out".split()) - words == set()


DEPLOYED = (
    "layout replicas num_devices prefill decode ttft_s ttft_low_s ttft_high_s tpot_s tpot_low_s tpot_high_s "
    "tokens_per_s slo_probability bound_by kv_tokens kv_bytes usd_per_million_input_tokens "
    "usd_per_million_output_tokens flags"
)
SEVENTY = ("deploy", "llama-3.1-70b", "--gpu", "h100", "--requests-per-s", "5", "--json")


def test_deploy_says_what_the_contract_promises(sartor) -> None:
    body = sartor("deploy", "llama-3.1-8b", "--cluster", "dgx-h100", "--tpot", "20ms", "--no-pools", "--json").body
    assert {"status", "best", "front", "simpler", "evaluated", "rejected"} <= body.keys()
    assert set(DEPLOYED.split()) - body["best"].keys() == set()
    assert body["best"]["gpu"] == "h100_sxm"
    assert sum(body["rejected"].values()) < body["evaluated"]


@pytest.mark.parametrize("limits", [{"ttft": 0.001}, {"ttft": 0.2, "tpot": 0.009}, {"tpot": 0.03, "max-price": 3}])
def test_what_deploy_says_would_meet_an_objective_does_and_a_little_less_does_not(
    sartor, limits: dict[str, float]
) -> None:
    def asked(**changed: float) -> dict:
        words = [f"--{name}={value!r}" for name, value in {**limits, **changed}.items()]
        return sartor(*SEVENTY, *words).body

    flags = {"ttft_s": "ttft", "tpot_s": "tpot", "most_usd_per_hour": "max-price"}
    body = asked()
    assert body["status"] == "infeasible"
    for row in body["would_meet"]:
        name, value = flags[row["field"]], row["value"] * (1 + 1e-9)
        assert asked(**{name: value})["status"] == "feasible"
        assert asked(**{name: 0.97 * value})["status"] == "infeasible"
    assert body["would_meet"]
