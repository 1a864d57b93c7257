"""The design view's answer: a study as it is, and whatever else is sent as a sentence."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import sartor
from design_samples import question, small_space
from engine_samples import run_design
from sartor.answers.design import rate
from sartor.designs.question import DesignQuestion
from sartor.engine.schema import KEYS, connect
from sartor.engine.study import read_study
from sartor.errors import InputError
from sartor.hardware.accelerator import ARRAY_FIELDS
from sartor.read.space_file import load_space
from sartor.web.study_view import page_body, question_of, study_body, uploaded_body

SQLITE = {"content-type": "application/octet-stream"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished search of a small space."""
    path = tmp_path_factory.mktemp("study") / "study.db"
    run_design(question(), small_space(), study=path)
    return path


def test_a_study_is_told_with_its_front_its_convergence_and_its_winner(study: Path) -> None:
    record, body = read_study(study), page_body(read_study(study))
    best = record.incumbent
    assert best is not None
    assert body["status"] == "complete"
    assert body["gap"] == pytest.approx(0.0, abs=1e-9)
    assert body["objective"] == best.objective == max(body["pareto"]["objective"])
    assert body["pareto"]["on_front"][0]
    told = study_body(record)["convergence"]
    assert told["incumbent"][-1] == best.objective
    assert told["seconds"] == sorted(told["seconds"])
    assert body["unit"] == "sequences/s"
    assert body["figures"]["cloud"]["title"].startswith(f"The best point reaches {rate(best.objective)} on ")
    detail = body["best"]["detail"]
    assert sum(detail["area"].values()) == pytest.approx(best.area_mm2)
    for told, outcome in zip(detail["models"], best.outcomes, strict=True):
        assert outcome is not None
        assert sum(told["time"].values()) == pytest.approx(outcome.step_s)
        assert told["low_s"] < told["step_s"] < told["high_s"]
    assert len(detail["schedules"]) == 2
    for bars in detail["schedules"]:
        assert all(start < end for start, end in zip(bars["start_s"], bars["end_s"], strict=True))


def test_a_study_is_shown_under_its_objective_by_the_word_that_asks_for_it(study: Path) -> None:
    record = read_study(study)
    body = page_body(replace(record, question={**record.question, "objective": "per_watt"}))
    assert body["question"]["objective"] == "throughput_per_watt"
    assert body["unit"] == "sequences/s per W"


def test_the_question_of_a_study_reads_back_as_it_was_asked(study: Path) -> None:
    assert question_of(read_study(study).question) == question()


@pytest.mark.parametrize(
    "changes", [{"objective": None}, {"models": [{"is": "DesignModel"}]}, {"models": [7]}, {"costs": {"is": "Path"}}]
)
def test_a_question_of_another_make_leaves_the_detail_out_and_keeps_the_rest(
    study: Path, changes: dict[str, Any]
) -> None:
    from dataclasses import replace

    from sartor.web.study_view import winner_body

    record = read_study(study)
    odd = replace(record, question={**record.question, **changes}, fingerprint="another")
    assert record.incumbent is not None
    assert winner_body(odd, record.incumbent) is None


def test_a_study_that_is_sent_is_answered(server: Any, study: Path) -> None:
    reply = httpx.post(f"{server.url}/api/study", content=study.read_bytes(), headers=SQLITE, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["evaluated"] == len(read_study(study).points)


def damaged(study: Path, tmp_path: Path, how: str) -> bytes:
    data = study.read_bytes()
    if how == "another database":
        path = tmp_path / "other.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE points (a)")
        other.close()
        return path.read_bytes()
    return {
        "empty": b"",
        "text": b"no database at all",
        "cut": data[: len(data) // 2],
        "overwritten": data[:2000] + os.urandom(6000) + data[8000:],
        "head alone": data[:100],
        "zeros": data[:100] + bytes(len(data) - 100),
    }[how]


@pytest.mark.parametrize("how", ["empty", "text", "cut", "overwritten", "head alone", "zeros", "another database"])
def test_what_is_no_study_is_a_sentence_that_names_no_path(study: Path, tmp_path: Path, how: str) -> None:
    with pytest.raises(InputError) as caught:
        uploaded_body(sent(tmp_path, damaged(study, tmp_path, how)))
    assert caught.value.field == "study"
    assert "/" not in str(caught.value).replace("CSV/", "")


def sent(folder: Path, data: bytes) -> Path:
    """A file of this request alone."""
    path = folder / "sent"
    path.write_bytes(data)
    return path


def test_a_study_that_is_being_written_is_read_with_its_log_after_it(study: Path, tmp_path: Path) -> None:
    path = tmp_path / "running.db"
    writing = connect(path, for_reading=False)
    assert (path.stat().st_size, path.with_name("running.db-wal").stat().st_size) > (0, 100)
    with closing(writing), closing(connect(study, for_reading=True)) as whole:
        for table in KEYS:
            names = [row[1] for row in whole.execute(f"PRAGMA table_info({table})") if row[1] != "row_sum"]
            insert = f"INSERT INTO {table} ({','.join(names)}) VALUES ({','.join('?' * len(names))})"
            writing.executemany(insert, whole.execute(f"SELECT {','.join(names)} FROM {table}").fetchall())
        data, log = path.read_bytes(), path.with_name("running.db-wal").read_bytes()
    assert uploaded_body(sent(tmp_path, data + log)) == page_body(read_study(study))
    with pytest.raises(InputError, match="-wal"):
        uploaded_body(sent(tmp_path, data))


@pytest.mark.slow
def test_a_study_of_many_megabytes_is_taken(server: Any, study: Path, tmp_path: Path) -> None:
    path = sent(tmp_path, study.read_bytes())
    with closing(connect(path, for_reading=False)) as connection:
        connection.execute("INSERT INTO kept (search, key, value) VALUES (1, 'much', ?)", (f'"{"x" * 30_000_000}"',))
    reply = httpx.post(f"{server.url}/api/study", content=path.read_bytes(), headers=SQLITE, timeout=60)
    assert reply.status_code == 200, reply.text
    assert httpx.post(f"{server.url}/api/study", content=b"x" * (2**26 + 1), headers=SQLITE).status_code == 413


SEARCH = {"model": "gpt2-xl", "num_devices": 1024, "global_batch_size": 4096}


@pytest.mark.slow
def test_a_search_is_started_seen_growing_cancelled_and_its_file_kept(server: Any) -> None:
    begun = server.post("/api/design", SEARCH)
    assert begun.status_code == 200, begun.text
    assert begun.json()["status"] == "running"
    name = begun.json()["id"]
    second = server.post("/api/design", SEARCH)
    assert second.status_code == 422
    assert f"study={name}: of this server is still being searched" in second.json()["error"]["message"]
    assert server.get(f"/api/design/{name}/file").status_code == 422
    end = time.monotonic() + 60
    while server.get(f"/api/design/{name}").json()["objective"] is None:
        assert time.monotonic() < end
        time.sleep(0.2)
    stopped = server.post(f"/api/design/{name}/stop", {}).json()
    assert stopped["status"] in ("interrupted", "complete")
    assert stopped["objective"] > 0
    assert stopped["id"] == name
    again = httpx.post(
        f"{server.url}/api/study", content=server.get(f"/api/design/{name}/file").content, headers=SQLITE
    )
    assert again.json()["objective"] == stopped["objective"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "model"),
        ({"model": "gpt2-xl"}, "num_devices"),
        ({**SEARCH, "num_devices": 0}, "num_devices"),
        ({**SEARCH, "space": "/etc/passwd"}, "space"),
        ({**SEARCH, "also": ["../config.json"]}, "also"),
        ({**SEARCH, "time_limit": 1e9}, "time_limit"),
        ({**SEARCH, "study": "x"}, "study"),
    ],
)
def test_a_search_that_cannot_be_is_refused_at_its_field(server: Any, asked: dict[str, Any], field: str) -> None:
    reply = server.post("/api/design", asked)
    assert reply.status_code == 422, reply.text
    assert reply.json()["error"]["field"] == field


def test_a_study_of_a_server_that_has_ended_is_not_known_any_more(server: Any) -> None:
    reply = server.get("/api/design/another")
    assert reply.status_code == 422
    assert "start the search again" in reply.json()["error"]["message"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
def test_a_search_ends_with_its_server(start: Callable[..., Any]) -> None:
    server = start()
    server.post("/api/design", SEARCH)
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    (search,) = (pid for pid in children if b"study_run" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(server.pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while b"study_run" in _command(search):
        assert time.monotonic() < end
        time.sleep(0.1)


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_what_is_no_study_is_refused_over_http_too(server: Any) -> None:
    reply = httpx.post(f"{server.url}/api/study", content=b"no database", headers=SQLITE)
    assert reply.status_code == 422
    assert server.get("/api/study").status_code == 422
    assert "--study FILE" in server.get("/api/study").json()["error"]["message"]


@pytest.mark.slow
def test_a_study_can_be_watched_while_it_is_written(start: Callable[..., Any], tmp_path: Path) -> None:
    path, watched = tmp_path / "running.db", tmp_path / "watched"
    code = (
        "import pathlib, sys, time; sys.path.insert(0, 'tests')\n"
        "from design_samples import question, small_space\n"
        "from engine_samples import run_design\n"
        "calls = []\n"
        "def wait(_):\n"
        "    calls.append(_)\n"
        f"    while len(calls) > 4 and not pathlib.Path({str(watched)!r}).exists():\n"
        "        time.sleep(0.05)\n"
        f"run_design(question(), small_space(), study={str(path)!r}, on_progress=wait)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[2]) as searching:
        end = time.monotonic() + 60
        while not (path.is_file() and _has_history(path)):
            assert time.monotonic() < end
            time.sleep(0.05)
        server = start("--study", str(path))
        assert server.get("/health").json()["watching"] is True
        assert server.get("/api/study").json()["status"] == "running"
        watched.touch()
        assert searching.wait(timeout=60) == 0
    assert server.get("/api/study").json()["status"] == "complete"


def _has_history(path: Path) -> bool:
    try:
        return bool(read_study(path).history)
    except InputError:
        return False


def test_a_study_that_has_only_begun_has_no_winner(study: Path) -> None:
    body = study_body(replace(read_study(study), points=(), history=(), sessions=()))
    assert body["best"] is None
    assert body["gap"] is None
    assert body["pareto"]["labels"] == []


def test_a_question_is_no_door_to_other_types() -> None:
    with pytest.raises((ValueError, KeyError, AssertionError)):
        question_of({"is": "Popen", "models": []})
    assert question_of({**_plain_question(), "space": {"is": "Popen"}}) == question()


def _plain_question() -> dict[str, Any]:
    from sartor.engine.schema import question_dict

    asked: DesignQuestion = question()
    return dict(question_dict(asked, small_space(), 0.0))


def test_the_recorded_example_is_what_is_priced_today() -> None:
    """Its best chip, alone in a space: an example of an older model would promise what no search finds."""
    example = json.loads((resources.files("sartor.web") / "example-study.json").read_text(encoding="utf-8"))
    chip, modern = example["best"]["architecture"], load_space("modern")
    group = next(group for group in modern.groups if group.memory.value == chip["memory"])
    sizes: dict[str, Any] = {name: np.array([chip[name]]) for name in ARRAY_FIELDS if name in chip}
    alone = replace(modern, groups=(replace(group, **sizes),), num_points=1)
    answer = sartor.design(["gpt2-xl"], num_devices=64, space=alone, baselines=False)
    assert answer.result.best is not None
    assert example["objective"] == pytest.approx(answer.result.best.objective, rel=1e-6)
    assert answer.question.global_batch_size == example["question"]["global_batch_size"]
