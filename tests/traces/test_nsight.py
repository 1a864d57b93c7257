"""Exports of Nsight Systems are read as the profiler's own traces are, and steps are told without marks."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import Ran
from sartor import api
from sartor.answers.diagnosis import TraceDiagnosis
from sartor.errors import InputError
from traces.kineto_made import Made, strength_for, trace, write
from traces.nsight_made import export

RAGGED = Made(fault="ragged_vocab", strength=strength_for("ragged_vocab"), seed=3, steps=4)
BEFORE_BF16 = ("nvjet_hsh", "nvjet_tst")
"""Nsight has no types: only a kernel's name tells them, and the made ones are called as those of fp16."""


def bf16(made: Made) -> dict[str, object]:
    made_trace = trace(made)
    for event in made_trace["traceEvents"]:
        event["name"] = event["name"].replace(*BEFORE_BF16).replace("pytorch_flash::", "pytorch_flash::bf16_")
    return made_trace


def found(path: Path) -> TraceDiagnosis:
    answer = api.diagnose(path)
    assert isinstance(answer, TraceDiagnosis)
    return answer


def test_an_export_of_nsight_systems_tells_what_the_profilers_trace_tells(tmp_path: Path) -> None:
    kineto, nsight = found(write(RAGGED, tmp_path / "t.json")), found(export([bf16(RAGGED)], tmp_path / "t.sqlite"))
    assert nsight.gpu == kineto.gpu
    assert nsight.num_steps == kineto.num_steps
    assert nsight.step_s == pytest.approx(kineto.step_s, rel=1e-4)
    assert nsight.mfu == pytest.approx(kineto.mfu, rel=1e-3)
    assert [each.kind for each in nsight.losses] == [each.kind for each in kineto.losses]
    assert sum(part.seconds for part in nsight.parts) == pytest.approx(nsight.step_s)


def test_processes_of_one_export_are_ranks(tmp_path: Path) -> None:
    made = Made(fault="straggler", strength=strength_for("straggler"), seed=4, steps=3)
    path = export((trace(replace(made, rank=rank)) for rank in range(8)), tmp_path / "t.sqlite")
    answer = found(path)
    assert (answer.num_ranks, answer.world_size) == (8, 8)
    assert "straggler" in [each.kind.value for each in answer.losses]


def test_steps_that_nothing_marks_are_told_by_the_optimizer(tmp_path: Path) -> None:
    marked = found(export([bf16(RAGGED)], tmp_path / "m.sqlite"))
    unmarked = found(export([bf16(RAGGED)], tmp_path / "u.sqlite", marked=False))
    assert unmarked.num_steps >= 2
    assert unmarked.step_s == pytest.approx(marked.step_s, rel=0.01)
    assert any("optimizer's runs" in line for line in unmarked.warnings)


def test_two_exports_are_compared(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    one, other = (export([bf16(replace(RAGGED, seed=seed))], tmp_path / f"{seed}.sqlite") for seed in (1, 2))
    assert sartor("compare", one, other).code == 0


def test_what_is_no_whole_export_is_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = export([trace(RAGGED)], tmp_path / "w.sqlite").read_bytes()
    cut, empty, report = tmp_path / "cut.sqlite", tmp_path / "e.sqlite", tmp_path / "run.nsys-rep"
    cut.write_bytes(whole[: len(whole) // 3])
    with closing(sqlite3.connect(empty)) as database:
        database.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    report.write_bytes(b"\x01\x02")
    for path, sentence in ((cut, "whole export"), (empty, "holds no GPU kernel"), (report, "nsys export --type")):
        with pytest.raises(InputError, match=sentence):
            api.diagnose(path)


ODD = (
    None,
    -1,
    0,
    2**63 - 1,
    -(2**63),
    1.5,
    float("inf"),
    "",
    "x",
    "aten::mm, seq = 1, sizes = [[" + "9" * 40 + "]]",
    b"\xff",
)
CELLS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start",
        "end",
        "deviceId",
        "streamId",
        "correlationId",
        "globalPid",
        "demangledName",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "NVTX_EVENTS": ("start", "end", "text", "textId", "globalTid"),
    "StringIds": ("value",),
    "TARGET_INFO_GPU": ("id", "name"),
}


@pytest.mark.slow
def test_an_export_with_odd_values_is_answered_or_refused(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    whole = export([bf16(replace(RAGGED, steps=2))], tmp_path / "w.sqlite").read_bytes()
    rng = random.Random(7)
    for case in range(60):
        path = tmp_path / "case.sqlite"
        path.write_bytes(whole)
        with closing(sqlite3.connect(path)) as database:
            for _ in range(rng.choice((1, 2, 5))):
                table = rng.choice(sorted(CELLS))
                rows = "" if rng.random() < 0.2 else f" WHERE rowid % {rng.choice((2, 7, 50))} = 1"
                with contextlib.suppress(sqlite3.IntegrityError):  # StringIds' values are never NULL
                    database.execute(f"UPDATE {table} SET {rng.choice(CELLS[table])} = ?{rows}", (rng.choice(ODD),))
            database.commit()
        done = sartor("diagnose", path, "--json")
        assert done.code in (0, 2), (case, done.out[-500:])
        assert "NaN" not in done.out
        assert "Infinity" not in done.out


@pytest.mark.parametrize(
    ("kind", "memory", "words"), [(1, 0, "pinned memory"), (1, 1, "stream of its own"), (8, 2, "")]
)
def test_copies_of_an_export_have_their_direction_and_memory(
    kind: int, memory: int, words: str, tmp_path: Path
) -> None:
    path = export([bf16(RAGGED)], tmp_path / "t.sqlite")
    with closing(sqlite3.connect(path)) as database:
        columns = "deviceId INT, streamId INT, correlationId INT, globalPid INT, copyKind INT, srcKind INT, dstKind INT"
        database.execute(f'CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, "end" INT, {columns})')
        (end,) = database.execute('SELECT max("end") FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
        row = (end - 1_000, end + 20_000_000, 0, 7, -1, 1000 << 24, kind, memory, 2)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.execute('UPDATE NVTX_EVENTS SET "end" = ? WHERE text LIKE "iteration%" AND "end" > ?', (end + 1, end))
        database.commit()
    copies = next((each for each in found(path).losses if each.kind.value == "copies"), None)
    assert words in copies.fix if copies else not words
