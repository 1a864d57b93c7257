"""``sartor place``: the contract's keys and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

KEYS = {
    "status",
    "time_per_batch_s",
    "tensor_parallel",
    "data_parallel",
    "num_stages",
    "stages",
    "fixed_strategy_time_per_batch_s",
    "solve_s",
    "checked",
}


@pytest.fixture
def instance(repo_dir: Path) -> Path:
    return repo_dir / "examples" / "placement" / "encoder_decoder.json"


def test_place_says_what_the_contract_promises(sartor, instance: Path) -> None:
    ran = sartor("place", instance, "--json")
    assert (ran.code, ran.err) == (0, "")
    body = ran.body
    assert list(body)[:2] == ["schema", "version"]
    assert body["schema"] == "sartor/place/1"
    assert set(body) >= KEYS
    assert (body["status"], body["checked"]) == ("optimal", True)
    assert body["num_stages"] == len(body["stages"])
    placed = [layer for stage in body["stages"] for layer in stage["layers"]]
    assert sorted(placed) == list(range(26))
    for stage in body["stages"]:
        assert set(stage) == {"layers", "devices", "load_s"}


def test_only_the_seconds_of_the_solver_differ_between_runs(sartor, instance: Path) -> None:
    first, second = sartor("place", instance, "--json").body, sartor("place", instance, "--json").body
    assert {**first, "solve_s": 0} == {**second, "solve_s": 0}


def test_the_table_fits_and_names_every_stage(sartor, instance: Path) -> None:
    ran = sartor("place", instance)
    assert ran.code == 0
    assert all(len(line) <= 100 for line in ran.out.splitlines())
    assert "copies" in ran.out


def test_terms_from_a_file_change_the_price(sartor, instance: Path) -> None:
    terms = instance.with_name("nvlink_nodes.terms.json")
    body = sartor("place", instance, "--terms", terms, "--json").body
    assert body["status"] == "optimal"
    assert body["time_per_batch_s"] != sartor("place", instance, "--json").body["time_per_batch_s"]


def test_nothing_feasible_is_3_with_the_tightest_constraint(sartor, instance: Path, tmp_path: Path) -> None:
    raw = json.loads(instance.read_text())
    raw["maxMemoryPerDevice"] = 5e8
    small = tmp_path / "small.json"
    small.write_text(json.dumps(raw))
    ran = sartor("place", small, "--json")
    assert ran.code == 3
    assert ran.body["status"] == "infeasible"
    assert ran.body["tightest"]["least_memory_bytes"] > 5e8
    assert "bytes" in ran.err
    shown = sartor("place", small)
    assert shown.code == 3
    assert "infeasible" in shown.out


def test_bad_input_is_2_in_one_sentence(sartor, instance: Path, tmp_path: Path) -> None:
    raw = json.loads(instance.read_text())
    raw["bandwidth"] = 0
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(raw))
    ran = sartor("place", bad, "--json")
    assert ran.code == 2
    assert ran.body["error"]["field"] == "bandwidth"
    assert ran.err.count("\n") == 1
