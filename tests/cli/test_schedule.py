"""``sartor schedule``: the contract's keys and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

KEYS = {"status", "makespan", "lower_bound", "gap", "operators", "checked", "solve_s"}


@pytest.fixture
def instance(repo_dir: Path) -> Path:
    return repo_dir / "examples" / "schedule" / "decoder_backward.json"


def test_schedule_says_what_the_contract_promises(sartor, instance: Path, tmp_path: Path) -> None:
    ran = sartor("schedule", instance, "--json", "--out", tmp_path / "out.json")
    assert (ran.code, ran.err) == (0, "")
    body = ran.body
    assert list(body)[:2] == ["schema", "version"]
    assert body["schema"] == "sartor/schedule/1"
    assert set(body) >= KEYS
    assert (body["status"], body["checked"], body["gap"]) == ("optimal", True, 0)
    assert body["makespan"] == body["lower_bound"] == max(row["end"] for row in body["operators"])
    timed = [op["id"] for op in json.loads(instance.read_text())["ops"] if op["type"] != "Nop"]
    assert sorted(row["id"] for row in body["operators"]) == sorted(timed)
    assert {row["mode"] for row in body["operators"]} <= {"single", "intra_op"}
    assert json.loads((tmp_path / "out.json").read_text()) == body


def test_a_limit_of_zero_answers_at_once_with_a_gap(sartor, instance: Path) -> None:
    body = sartor("schedule", instance, "--time-limit", 0, "--json").body
    assert (body["status"], body["checked"]) == ("feasible", True)
    assert 0 < body["gap"] < 0.2
    assert body["gap"] == (body["makespan"] - body["lower_bound"]) / body["makespan"]


@pytest.mark.parametrize(
    ("solver", "method"), [("cp_sat", "prefix search"), ("milp", "milp"), ("greedy", "list scheduling")]
)
def test_every_solver_answers_and_says_what_searched(sartor, instance: Path, solver: str, method: str) -> None:
    body = sartor("schedule", instance, "--solver", solver, "--time-limit", 2, "--json").body
    assert (body["solver"], body["method"], body["checked"]) == (solver, method, True)


def test_people_get_a_picture(sartor, instance: Path, tmp_path: Path) -> None:
    ran = sartor("schedule", instance, "--trace", tmp_path / "t.json", "--figure", tmp_path / "f.svg")
    assert ran.code == 0
    assert "proved optimal" in ran.out
    assert "TC 0 |" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert (tmp_path / "f.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--solver", "gurobi"), "--solver=gurobi: must be one of cp_sat, milp, greedy"),
        (("--time-limit", "-1"), "must be a number of seconds"),
        (("--time-limit", "nan"), "must be a number of seconds"),
        (("--figure", "x.bmp"), "must end in"),
    ],
)
def test_bad_words_exit_with_two(sartor, instance: Path, words: tuple[str, ...], said: str) -> None:
    ran = sartor("schedule", instance, *words)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_cycle_exits_with_two_and_its_ids(sartor, tmp_path: Path) -> None:
    ops = [{"id": k, "type": "TC", "latency": 1, "intra_latency": 1} for k in range(3)]
    path = tmp_path / "cycle.json"
    path.write_text(json.dumps({"num_tc": 1, "num_vc": 1, "ops": ops, "edges": [[0, 1], [1, 2], [2, 1]]}))
    ran = sartor("schedule", path, "--json")
    assert ran.code == 2
    assert ran.body["error"]["field"] == "edges"
    assert "1 -> 2 -> 1" in ran.err or "2 -> 1 -> 2" in ran.err
