"""`sartor design --study` and `sartor study` from the command line: files, words and exit codes."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sartor.cli
from sartor.cli import run
from sartor.engine.schema import StudyWarning
from sartor.engine.store import open_study

SPACE = """
num_tensor_cores = [1, 2, 4]
num_vector_cores = [2, 4]
array_rows = [64, 128]
array_cols = [64]
global_buffer_mib = 8
hbm_gb = [8, 16]
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A small question with a study."""
    space = tmp_path / "space.toml"
    space.write_text(SPACE)
    asked = "design --model bert-large --num-devices 8 --global-batch-size 32 --seq-len 128 --tp 1 --microbatch-size 4"
    return [*asked.split(), "--no-baselines", "--space", str(space), "--study", str(tmp_path / "study.db")]


def ask(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    code = run([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_asked_again_it_answers_the_same_bytes_but_for_the_clock(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, first, _ = ask(words, capsys)
    assert code == 0
    _, again, _ = ask(words, capsys)
    assert {**first, "wall_s": 0} == {**again, "wall_s": 0}
    points = tmp_path / "points.csv"
    code, record, said = ask(["study", str(tmp_path / "study.db"), "--export", str(points)], capsys)
    assert code == 0
    assert record["complete"]
    assert record["evaluated"] == first["evaluated"]
    assert record["objective"] == pytest.approx(first["best"]["objective"])
    assert "points" in said
    with points.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == first["evaluated"]
    assert run(["design", "--study", str(tmp_path / "study.db")]) == 0
    assert "complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--num-devices", "16"], "--num-devices is 8 there and 16 here"),
        (["--objective", "throughput-per-watt"], "objective is throughput there and per_watt here"),
    ],
)
def test_another_question_of_the_same_study_exits_with_2(
    change: list[str], named: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(words, capsys)[0] == 0
    code, body, said = ask([*words, *change], capsys)
    assert code == 2
    assert named in said
    assert body["error"]["field"] == "--study"


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--executor", "ray"], "must be serial, local"),
        (["--executor", "tcp://127.0.0.1:9"], "no scheduler answers"),
        (["--workers", "0"], "must be at least 1"),
        (["--export", "points.xls"], "must end in .csv or .parquet"),
        (["--study", "/nowhere/at/all.db"], "there is no folder"),
    ],
)
def test_what_cannot_be_done_exits_with_2_before_anything_is_computed(
    more: list[str], named: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed", reason="extra cluster is not installed")
    from sartor.engine import executors

    monkeypatch.setattr(executors, "REACH_S", 0.5)
    assert run([*words, *more]) == 2
    assert named in capsys.readouterr().err


def test_an_export_without_a_study_says_what_it_needs(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words[:-2], "--export", "points.csv"]) == 2
    assert "needs a study to export" in capsys.readouterr().err


def test_a_file_that_is_no_study_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes"
    file.write_text("notes")
    assert run(["study", str(file)]) == 2
    assert "not an SQLite file" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["no bytes", "no tables", "no search"])
def test_a_study_stopped_at_its_start_is_empty_and_is_begun_again(
    content: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.db"
    if content == "no search":
        with open_study(study, "serial"):
            pass
    else:
        with closing(sqlite3.connect(study)) as connection:
            connection.execute("PRAGMA journal_mode=WAL" if content == "no tables" else "PRAGMA user_version")
    assert (study.stat().st_size == 0) == (content == "no bytes")
    assert run(["study", str(study)]) == 2
    assert "is empty: it was stopped at its start" in capsys.readouterr().err
    assert ask(words, capsys)[0] == 0


@pytest.mark.parametrize("table", ["sessions", "history", "points", "kept", "bounds"])
def test_a_study_with_every_row_of_a_table_damaged_is_shown_without_them(
    table: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.db"
    assert ask(words, capsys)[0] == 0
    with closing(sqlite3.connect(study, isolation_level=None)) as connection:
        connection.create_function("row_sum", -1, lambda *_: 0)
        connection.execute(f"UPDATE {table} SET row_sum = 7")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StudyWarning)
        assert run(["study", str(study)]) == 0
        assert ("to be continued (unknown)" in capsys.readouterr().out) == (table == "sessions")
        assert ask(["study", str(study)], capsys)[0] == 0


def test_ctrl_c_while_c_code_is_loaded_is_an_interrupt_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def loading(**_: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as pressed:
            raise SystemError("returned a result with an exception set") from pressed

    monkeypatch.setattr(sartor.cli, "_parser", lambda app: loading)
    assert run(["study", "any.db"]) == 130


def test_ctrl_c_exits_with_130_and_the_study_is_kept(words: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from sartor.cli import main; main()", *words, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    study, deadline = tmp_path / "study.db", time.monotonic() + 60
    while not study.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=120)
    assert process.returncode in (0, 130), said
    if process.returncode == 130 and out:
        body = json.loads(out)
        assert body["status"] in (("feasible", "optimal") if body["best"] else ("unknown",))


@pytest.mark.parametrize(
    ("objective", "tokens", "said"),
    [
        ("decode", ("--context-len", "256"), "GPT-2 small (decode, 256 tokens of context) on 8 devices"),
        ("prefill", ("--seq-len", "384"), "GPT-2 small (prefill, prompts of 384 tokens) on 8 devices"),
    ],
)
def test_what_is_served_is_said_with_the_tokens_it_is_priced_with_and_no_batch(
    objective: str, tokens: tuple[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    study = str(tmp_path / "study.db")
    words = ["design", "--model", "gpt2", "--objective", objective, *tokens, "--num-devices", "8", "--tp", "1"]
    words += ["--no-baselines", "--space", str(tmp_path / "space.toml"), "--study", study]
    assert run(words) == 0
    assert f"{said}: design space" in " ".join(capsys.readouterr().out.split())
    assert ask(words, capsys)[1]["question"]["global_batch_size"] is None
    assert run(["study", study]) == 0
    assert f"{said}, space" in " ".join(capsys.readouterr().out.split())
    question = ask(["study", study], capsys)[1]["question"]
    assert question["global_batch_size"] is None
    assert question["models"][0]["phase"] == objective


@pytest.mark.slow
def test_a_study_holds_the_chip_that_a_search_printed_at_its_time_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A space so large that the limit comes before the first point by the order of bounds."""
    study, points = str(tmp_path / "study.db"), tmp_path / "points.csv"
    words = ["design", "--model", "llama-3.1-8b", "--num-devices", "64"]
    words += ["--time-limit", "1", "--no-baselines", "--study"]
    _, design, _ = ask([*words, study], capsys)
    _, record, _ = ask(["study", study, "--export", str(points)], capsys)
    assert design["status"] == "feasible"
    assert record["objective"] == design["best"]["objective"] > 0
    assert record["evaluated"] == design["evaluated"]
    chips = [answer["best"]["architecture"] for answer in (record, design)]
    assert len({(chip["num_tensor_cores"], chip["array_rows"], chip["hbm_bytes"]) for chip in chips}) == 1
    with points.open(newline="") as file:
        assert max(float(row["objective"]) for row in csv.DictReader(file)) == pytest.approx(record["objective"])
