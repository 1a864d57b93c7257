"""`sartor schema COMMAND`: a JSON schema that the command's real answers validate against, published under docs/."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from bench.fake_device import FakeDevice
from house.replay_questions import MADE
from records.made_tables import gemm_rows, write_csv
from sartor.answers.commands import COMMANDS, command_schema
from sartor.bench.journey import measure, measured_body
from sartor.cli import GROUPS, run
from sartor.json_types import envelope
from sartor.read.graph_json import graph_body, read_graph
from traces.kineto_made import Made, strength_for, write
from traces.logs_made import torchtitan

REPO = Path(__file__).resolve().parents[2]
MODEL = "llama-3-8b --gpu h100 --num-devices 8 --global-batch-size 8 --seq-len 8192"
SMALL = (
    "design --model small.json --space space.toml --num-devices 8 --global-batch-size 32 --microbatch-size 4 "
    "--executor serial --tp 1 --recompute none --no-baselines"
)
PLAN = "plan gpt2-xl --cluster dgx-a100 --num-devices 8,16 --global-batch-size 64 --fix tp=1"
WRITES_STUDY = f"{SMALL} --pareto area_mm2 --study study.db"
QUESTIONS = f"""
    estimate gpt2-xl --gpu a100
    estimate llama-3.1-8b --gpu h100 --phase decode
    estimate llama-3.1-70b --gpu h100 --phase prefill
    deploy llama-3.1-8b --gpu h100 --users 50 --tpot 0.03
    deploy llama-3.1-8b --gpu a100 --tpot 0.0001 --no-pools
    gemm 2049 5120 1283 --gpu h100
    gemm 4096 4096 512 --gpu tpu_v4
    collective all_reduce 64e6 16 --cluster dgx-a100
    lint gpt2-small --gpu a100 --fail-on never
    advise pythia-2.8b --gpu a100 --top 3
    advise mixtral-8x7b --gpu a100 --gpu h100 --top 2
    advise gpt2-small --gpu a100 --objective train:0.5,decode:0.5 --top 2
    {PLAN} --why-not zero_stage=3 --tokens 300B --top 3
    plan llama-3.1-70b --cluster dgx-a100 --num-devices 8 --global-batch-size 8
    plan --launch dense.sh --cluster dgx-h100
    plan --launch too_big.sh --cluster dgx-h100
    serving llama-3.1-8b --gpu h100 --concurrency 1,64
    serving llama-3.1-8b --gpu h100 --concurrency 8 --prefill-workers 2 --decode-workers 3
    serving llama-3.1-70b --gpu h100
    {WRITES_STUDY}
    {SMALL} --shapes 2
    {SMALL} --shapes all --params-tolerance 0.05
    {SMALL} --hbm-gib 0.001
    {SMALL} --against a100
    study study.db
    place chain.json
    place too_full.json
    schedule diamond.json --solver greedy
    diagnose train.log --model {MODEL}
    diagnose rank0.json --gpu h100
    compare rank0.json rank0.json
    compare train.log train.log
    validate operators --data {REPO}/tests/golden/measured/gemm_lowbit.csv --group-by dtype
    validate training --data training.csv --group-by framework,gpu
    validate inference --data inference.csv --group-by gpu,mode
    operators {REPO}/examples/shapes.csv --gpu h100
    calibrate --plan 4 --gpu h100
    catalog gpus
    catalog gpus h100
    catalog clusters
    catalog clusters dgx-h100
    catalog models
    catalog models llama-3.1-8b
    catalog rules
    catalog rules ragged_vocab
    catalog accelerators
    catalog spaces
    estimate no-such-model --gpu h100
"""
"""Questions; `study` reads the file that a design wrote."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that questions name."""
    folder = tmp_path_factory.mktemp("schema")
    for name, text in MADE.items():
        (folder / name).write_text(text)
    (folder / "train.log").write_text(torchtitan())
    write(Made(fault="host_gaps", strength=strength_for("host_gaps"), seed=1, steps=3), folder / "rank0.json")
    return folder


def answer_of(words: list[str]) -> dict[str, Any]:
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        run([*words, "--json"])
    return dict(json.loads(out.getvalue()))


def faults(body: dict[str, Any], command: str) -> list[str]:
    """What of an answer its schema does not allow, the innermost faults first."""
    validator = Draft202012Validator(command_schema(command))
    inner = [fault for error in validator.iter_errors(body) for fault in (error.context or [error])]
    inner.sort(key=lambda fault: -len(fault.absolute_path))
    return [f"{'.'.join(map(str, fault.absolute_path))}: {fault.message[:200]}" for fault in inner]


@pytest.mark.parametrize("question", [line.strip() for line in QUESTIONS.strip().splitlines()])
def test_real_answers_validate(question: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    words = shlex.split(question)
    if words[0] == "study" and not (folder / words[1]).exists():  # another worker had the question before
        answer_of(shlex.split(WRITES_STUDY))
    assert faults(answer_of(words), words[0]) == []


def test_answers_that_take_a_device_or_torch_validate(tmp_path: Path) -> None:
    def enveloped(command: str, body: dict[str, Any]) -> dict[str, Any]:
        return dict(json.loads(envelope(command, body)))

    graph = graph_body(read_graph(REPO / "tests" / "golden" / "tiny_llama_graph.json"))
    assert faults(enveloped("extract", graph), "extract") == []
    measured = measure(FakeDevice(), "quick", tmp_path / "r.csv", date="2026-11-21", budget_s=1e9)
    assert faults(enveloped("measure", measured_body(measured, None)), "measure") == []
    sizes = [(m, n, k) for m in (16, 128, 512, 2048, 8192) for n in (1024, 4096, 8192) for k in (1024, 4096)]
    records = write_csv(tmp_path / "mine.csv", gemm_rows(1.2, shapes=sizes))
    fitted = answer_of(["calibrate", str(records), "--out", str(tmp_path / "mine.toml")])
    compared = answer_of(["calibrate", str(records), "--compare", str(tmp_path / "mine.toml")])
    assert faults(fitted, "calibrate") == faults(compared, "calibrate") == []


def test_a_key_that_no_table_has_is_a_fault(folder: Path) -> None:
    body = answer_of(["gemm", "64", "64", "64", "--gpu", "h100"])
    assert faults(body, "gemm") == []
    assert faults({**body, "surprise": 1}, "gemm")
    assert faults({key: value for key, value in body.items() if key != "time_s"}, "gemm")


def test_every_command_with_json_has_a_schema_that_is_one() -> None:
    commands = {command for names in GROUPS.values() for command in names}
    assert commands - set(COMMANDS) == {"page", "schema"}
    asked = {line.split()[0] for line in QUESTIONS.strip().splitlines()}
    assert set(COMMANDS) - asked == {"extract", "measure"}  # which a test of their own asks
    for command in COMMANDS:
        Draft202012Validator.check_schema(command_schema(command))


def test_the_command_prints_it_and_refuses_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "plan"]) == 0
    assert json.loads(capsys.readouterr().out) == command_schema("plan")
    assert run(["schema"]) == 0
    assert capsys.readouterr().out.split() == list(COMMANDS)
    assert run(["schema", "plans"]) == 2
    assert "plan" in capsys.readouterr().err


def test_published_schemas_are_those_of_the_tables() -> None:
    tool = run_path(str(REPO / "tools" / "schema_docs.py"))
    have = {path.name: path.read_text() for path in (REPO / "docs" / "schemas").glob("*.json")}
    assert have == tool["pages"](), "run: python tools/schema_docs.py"
