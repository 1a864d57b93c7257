"""Findings as text, JSON, SARIF 2.1.0 and GitHub annotations."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sartor.answers.advice import FINDING, worst_grade_of
from sartor.answers.field import to_json
from sartor.hardware.catalog import load_gpu
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.report import lint_formats
from sartor.rules.lint import run_rules
from sartor.rules.rule import Context, Finding, Grade

CONFIG = """{
  "model_type": "gpt2",
  "n_embd": 768,
  "n_head": 12,
  "n_layer": 12,
  "vocab_size": 50257
}
"""


@pytest.fixture(scope="module")
def findings() -> tuple[Finding, ...]:
    """An error with a fix, one that cannot run, and remarks."""
    a100 = load_gpu("a100_sxm")
    gpt2 = Workload(shape=load_model("gpt2-small"), microbatch_size=4, seq_len=1024)
    falcon = Workload(shape=load_model("falcon-7b"), seq_len=2048, microbatch_size=4)
    return (*run_rules(Context.of(falcon, a100, ParallelDims(tp=8))), *run_rules(Context.of(gpt2, a100)))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(CONFIG)
    return path


def made_up(message: str, field: str = "vocab_size") -> Finding:
    return Finding(
        rule="ragged_vocab",
        code="R1",
        grade=Grade.WARN,
        message=message,
        operator="logits",
        field=field,
        value=50257,
        gain_s=0.01,
        gain_fraction=0.05,
        fix={"vocab_size": 50304},
    )


# Text.


def test_text_fits_a_terminal_and_counts_what_it_shows(findings: tuple[Finding, ...]) -> None:
    lines = str(lint_formats.FindingsText(findings)).splitlines()
    assert max(map(len, lines)) < 100
    assert lines[0].startswith("error  R7  unsplit_heads")
    assert "cannot run" in lines[0]
    assert any(re.fullmatch(r"\d+ errors?(, \d+ warnings?)?(, \d+ notes?)?", line) for line in lines)
    assert any(line.strip() == "fix: vocab_size=50304" for line in lines)


def test_rich_text_says_what_plain_text_says(findings: tuple[Finding, ...]) -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(lint_formats.FindingsText(findings))
    assert console.file.getvalue().rstrip() == str(lint_formats.FindingsText(findings))  # type: ignore[attr-defined]


def test_nothing_found_is_said() -> None:
    assert str(lint_formats.FindingsText(())) == "No rule finds waste in this shape."
    unread = "moe_latent_size=1024 is not read: the parameter count is unknown"
    lines = str(lint_formats.FindingsText((), unread))
    assert lines.startswith("No verdict: no rule finds waste in the sizes that were read, but moe_latent_size=1024")
    assert "Clean" not in lines


def test_text_cannot_move_a_terminals_cursor() -> None:
    assert "\x1b" not in str(lint_formats.FindingsText([made_up("evil \x1b[2J gpu")]))


# JSON.


def test_json_has_the_contracts_keys(findings: tuple[Finding, ...]) -> None:
    bodies = [to_json(each, FINDING) for each in findings]
    assert worst_grade_of(findings) == "error"
    keys = {"rule", "grade", "message", "operator", "field", "value", "gain_s", "gain_fraction", "fix"}
    assert all(each.keys() >= keys for each in bodies)
    assert json.loads(json.dumps(bodies, allow_nan=False)) == bodies


def test_nothing_found_has_no_worst_grade() -> None:
    assert worst_grade_of(()) is None


# SARIF: the parts that the 2.1.0 schema requires, with the types and enumerations it gives them.


def check_sarif(log: dict[str, Any]) -> None:
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    assert isinstance(log["runs"], list)
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        assert driver["name"]
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(ids) == len(set(ids))
        for rule in driver["rules"]:
            assert rule["shortDescription"]["text"]
            assert rule["fullDescription"]["text"]
            assert rule["help"]["text"]
            assert rule["defaultConfiguration"]["level"] in ("none", "note", "warning", "error")
        for result in run["results"]:
            assert result["message"]["text"]
            assert result["level"] in ("none", "note", "warning", "error")
            assert ids[result["ruleIndex"]] == result["ruleId"]
            for location in result["locations"]:
                check_location(location)


def check_location(location: dict[str, Any]) -> None:
    assert location.keys() <= {"physicalLocation", "logicalLocations"}
    if "physicalLocation" in location:
        place = location["physicalLocation"]
        assert re.fullmatch(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+", place["artifactLocation"]["uri"])
        assert place.get("region", {"startLine": 1})["startLine"] >= 1


def test_sarif_has_what_its_schema_requires(findings: tuple[Finding, ...], config: Path) -> None:
    for given in (findings, ()):
        log = json.loads(lint_formats.sarif(given, path=config))
        check_sarif(log)
        assert sum(len(run["results"]) for run in log["runs"]) == len(given)


def test_sarif_levels_follow_grades(findings: tuple[Finding, ...], config: Path) -> None:
    results = json.loads(lint_formats.sarif(findings, path=config))["runs"][0]["results"]
    expected = {Grade.ERROR: "error", Grade.WARN: "warning", Grade.INFO: "note"}
    assert [result["level"] for result in results] == [expected[f.grade] for f in findings]


def test_sarif_points_at_the_line_of_the_field(findings: tuple[Finding, ...], config: Path) -> None:
    results = json.loads(lint_formats.sarif(findings, path=config.parent))["runs"][0]["results"]
    lines = {
        r["ruleId"]: r["locations"][0]["physicalLocation"].get("region", {}).get("startLine")
        for r in results
        if r["properties"]["field"] in ("vocab_size", "num_heads")
    }
    assert lines["ragged_vocab"] == 6
    assert lines["unsplit_heads"] == 4


def test_sarif_names_a_model_that_is_no_file(findings: tuple[Finding, ...]) -> None:
    log = json.loads(lint_formats.sarif(findings, path="gpt2-small"))
    check_sarif(log)
    assert log["runs"][0]["results"][0]["locations"][0]["logicalLocations"][0]["name"] == "gpt2-small"


def test_sarif_escapes_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "my models #1"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    log = json.loads(lint_formats.sarif([made_up("ragged")], path=folder))
    check_sarif(log)
    uri = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert "my%20models%20%231/config.json" in uri


# GitHub annotations.


def test_annotations_are_workflow_commands(findings: tuple[Finding, ...], config: Path) -> None:
    lines = lint_formats.github(findings, path=config).splitlines()
    assert len(lines) == len(findings)
    for line, finding in zip(lines, findings, strict=True):
        command = {"error": "error", "warn": "warning", "info": "notice"}[finding.grade.value]
        assert re.fullmatch(rf"::{command} file=[^,:]+(,line=\d+)?,title=[^,:]+::.+", line)


def test_annotations_escape_what_would_end_them(config: Path) -> None:
    line = lint_formats.github([made_up("50% lost:\r\nsee, there")], path=config)
    head, _, message = line.removeprefix("::").partition("::")
    assert message.startswith("50%25 lost:%0D%0Asee, there")
    assert "\n" not in line
    assert "\r" not in line
    assert "title=R1 ragged_vocab%3A 5.0%25 of the step" in head


def test_annotations_of_a_model_that_is_no_file_have_no_place() -> None:
    assert lint_formats.github([made_up("ragged")], path="gpt2-small").startswith("::warning title=")


def test_the_hook_definition_runs_lint_on_configs(repo_dir: Path) -> None:
    text = (repo_dir / ".pre-commit-hooks.yaml").read_text()
    assert "id: sartor-lint" in text
    assert "entry: sartor lint" in text
    pattern = re.search(r"files: (\S+)", text)
    assert pattern is not None
    assert re.search(pattern.group(1), "configs/llama/config.json")
    assert re.search(pattern.group(1), "config.json")
    assert not re.search(pattern.group(1), "configs/generation_config.json")
