"""Scheduling instances are read; what is none is named in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.read.problems_json import read_schedule_problem, schedule_problem
from sartor.schedules import solve

GOOD: dict[str, Any] = {
    "name": "two",
    "note": "anything else is let through",
    "num_tc": 2,
    "num_vc": 1,
    "ops": [
        {"id": 0, "type": "TC", "latency": 8, "intra_latency": 5, "remark": "x"},
        {"id": "b", "type": "Nop", "latency": 0, "intra_latency": 0},
    ],
    "edges": [[0, "b"]],
}


def test_an_instance_is_read() -> None:
    found = schedule_problem(GOOD)
    assert (found.name, found.num_tc, found.num_vc, found.edges) == ("two", 2, 1, ((0, "b"),))
    assert [(op.id, op.core_type.value, op.latency, op.intra_latency) for op in found.operators] == [
        (0, "TC", 8, 5),
        ("b", "Nop", 0, 0),
    ]


def test_what_all_operators_share_bounds_the_schedule_and_is_free_where_it_is_not_named() -> None:
    shared = schedule_problem(GOOD | {"shared": {"links": 3, "hbm": 11}})
    assert (schedule_problem(GOOD).shared, shared.shared) == ((), (("hbm", 11), ("links", 3)))
    assert [(r.makespan, r.lower_bound, r.held_by) for r in map(solve, (schedule_problem(GOOD), shared))] == [
        (5, 5, ""),
        (11, 11, "hbm"),
    ]
    with pytest.raises(InputError, match=r"shared\.hbm=-1: must be a whole number"):
        schedule_problem(GOOD | {"shared": {"hbm": -1}})


def test_every_reference_instance_is_read(shared_dir: Path) -> None:
    paths = [p for p in (shared_dir / "reference" / "scheduling").glob("*.json") if ".expected" not in p.name]
    assert paths
    assert all(read_schedule_problem(path).operators for path in paths)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_tc": None}, "num_tc=null: must be a whole number"),
        ({"num_vc": "2"}, 'num_vc="2" (a string): must be a whole number'),
        ({"ops": {}}, "ops={}: must be a list"),
        ({"ops": [7]}, "ops[0]=7: must be an object with id, type, latency, intra_latency"),
        ({"ops": [{"id": 0, "type": "TC", "latency": 1}]}, "ops[0].intra_latency=missing: must be given"),
        ({"ops": [{"id": 0, "type": "TC", "latency": 1, "intra_latencey": 1}]}, "nearest: intra_latencey"),
        ({"ops": [{"id": 0, "type": "TC", "latency": 1, "intra_latency": 1, "latncy": 1}]}, "nearest: latency"),
        ({"num_tcs": 1}, "instance=num_tcs: is not a known field"),
        ({"sharde": {"hbm": 9}}, "instance=sharde: is not a known field; remove it or spell it; nearest: shared"),
        ({"ops": [{"id": 0, "type": None, "latency": 1, "intra_latency": 1}]}, "must be one of TC, VC"),
        ({"ops": [{"id": [0], "type": "TC", "latency": 1, "intra_latency": 1}]}, "must be a whole number or a text"),
        ({"edges": [[0]]}, "must be pairs"),
        ({"edges": [0]}, "must be pairs"),
        ({"edges": [[0, None]]}, "is not an operator's id"),
        ({"edges": "0-b"}, "must be a list"),
    ],
)
def test_what_is_no_instance_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        schedule_problem(GOOD | change)
    assert said in str(error.value)


@pytest.mark.parametrize("key", ["num_tc", "num_vc", "ops", "edges"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(InputError, match=f"instance.{key}=missing: must be given"):
        schedule_problem({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    "data", [b"", b"{", json.dumps(GOOD).encode()[:-30], b"[]", b'{"num_tc": NaN}', b"\xff\xfe\x00", b"[" * 100_000]
)
def test_a_broken_file_is_an_input_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(InputError):
        read_schedule_problem(tmp_path / "x.json")


def test_a_file_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match="must be a JSON file"):
            read_schedule_problem(path)
