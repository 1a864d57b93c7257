"""A study remembers: whatever ends a search, the next one goes on, evaluates nothing twice and answers the same."""

from __future__ import annotations

import csv
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from design_samples import question, small_space
from effort import times
from engine_samples import ASKED, SPACE, CutError, Scripted, digest, evaluations, facts, run_design, search
from sartor.designs.candidates import DesignStatus, JointResult, Progress
from sartor.engine.schema import StudyWarning, connect, from_text, to_text
from sartor.engine.store import open_study
from sartor.engine.study import export_study, read_study
from sartor.errors import InputError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JointResult, int]:
    """The study of an uninterrupted search, its result, and how many tasks it took."""
    path, by = tmp_path_factory.mktemp("whole") / "study.db", Scripted()
    result = search(path, by)
    assert result.status is DesignStatus.OPTIMAL
    assert result.evaluated > 5
    return path, result, len(by.done)


@pytest.mark.slow
@settings(max_examples=times(8, 25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_search_cut_anywhere_any_number_of_times_answers_as_if_it_had_not_been(
    data: st.DataObject, whole: tuple[Path, JointResult, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _, uncut, tasks = whole
    path = tmp_path_factory.mktemp("cut") / "study.db"
    done: list[str] = []
    for lives in data.draw(st.lists(st.integers(0, tasks), max_size=3)):
        by = Scripted(lives)
        with suppress(CutError):
            search(path, by)
        done += by.done
    last = Scripted()
    assert facts(search(path, last)) == facts(uncut)
    done += last.done
    assert sorted(done) == sorted(set(done)), "something was computed twice"
    assert len(done) == tasks


def test_a_finished_study_answers_without_computing_anything(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path, result, _ = whole
    path = shutil.copy(path, tmp_path / "study.db")
    by = Scripted(lives=0)
    again = search(path, by)
    assert facts(again) == facts(result)
    assert again.trajectory == result.trajectory, "steps keep the seconds they had"
    assert again.seconds >= result.seconds


def test_a_study_gives_the_answer_of_a_search_without_one(whole: tuple[Path, JointResult, int]) -> None:
    _, result, _ = whole
    from engine_samples import run_search

    assert facts(run_search(ASKED, SPACE, Scripted(), None)) == facts(result)


def test_the_record_holds_the_question_the_points_and_how_the_proof_closed(
    whole: tuple[Path, JointResult, int],
) -> None:
    path, result, _ = whole
    record = read_study(path)
    assert record.complete
    assert record.scopes == ("main",)
    assert record.question["num_devices"] == ASKED.num_devices
    assert [model["name"] for model in record.question["models"]] == ["wide", "deep"]
    assert len(record.points) == result.evaluated
    assert record.incumbent is not None
    assert result.best is not None
    assert record.incumbent.objective == result.best.objective
    assert record.incumbent.candidate == result.best.evaluation.point.index
    assert record.bound == pytest.approx(result.upper_bound)
    assert [step.incumbent for step in record.history] == [p.incumbent for p in result.trajectory]
    best = record.incumbent.outcomes[0]
    assert best is not None
    assert best.step_s == result.best.evaluation.outcomes[0].step_s  # type: ignore[union-attr]


def test_outcomes_survive_the_file_to_the_last_bit(whole: tuple[Path, JointResult, int]) -> None:
    for ranked in whole[1].ranked:
        for outcome in ranked.evaluation.outcomes:
            assert from_text(to_text(outcome)) == outcome


def test_a_study_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    path, seen = tmp_path / "study.db", []

    def look(progress: Progress) -> None:
        seen.append(len(read_study(path).points))

    search(path, Scripted(), on_progress=look)
    assert seen == sorted(seen)
    assert seen[-1] > 0


def test_only_one_process_writes_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with open_study(path, "here"), pytest.raises(InputError, match=f"process {os.getpid()}"):  # noqa: SIM117
        with open_study(path, "there"):
            pass
    with open_study(path, "afterwards"):
        pass
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".lock"] == []


def test_another_question_is_refused_with_the_field_and_both_values(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path = shutil.copy(whole[0], tmp_path / "study.db")
    changes = [
        ({"num_devices": 16}, "num_devices is 8 there and 16 here"),
        ({"global_batch_size": 64}, "global_batch_size is 32 there and 64 here"),
    ]
    with open_study(path, "test") as store:
        for asked, words in changes:
            with pytest.raises(InputError, match=words):
                store.scoped(question(**{"models": ASKED.models, "microbatch_sizes": (4,), **asked}), SPACE, 0.0)
        with pytest.raises(InputError, match=r"tolerance is 0\.0 there and 0\.01 here"):
            store.scoped(ASKED, SPACE, 0.01)
        with pytest.raises(InputError, match=r"array_cols\.values is \[16, 32, 48\] there and \[32\] here"):
            store.scoped(ASKED, small_space(), 0.0)


def test_a_refused_question_leaves_a_finished_study_as_it_was(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path = Path(shutil.copy(whole[0], tmp_path / "study.db"))
    before = path.read_bytes()
    with pytest.raises(InputError, match="num_devices is 8 there and 16 here"):
        run_design(question(models=ASKED.models, microbatch_sizes=(4,), num_devices=16), SPACE, study=path)
    assert path.read_bytes() == before
    assert read_study(path).complete


def test_a_session_runs_while_its_process_lives_and_is_interrupted_once_it_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with open_study(path, "test") as store:
        store.scoped(ASKED, SPACE, 0.0)
        assert read_study(path).sessions[-1].ending == "running"
        for name in ("study.db", "study.db-wal"):
            shutil.copy(tmp_path / name, tmp_path / name.replace("study", "killed"))
    (tmp_path / "killed.db.lock").write_text("process 1")
    assert read_study(tmp_path / "killed.db").sessions[-1].ending == "interrupted"


def test_a_study_may_hold_further_questions_beside_its_own(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path, other = shutil.copy(whole[0], tmp_path / "study.db"), question(num_devices=4)
    first = run_design(other, small_space(), study=path, scope=None)
    assert facts(run_design(other, small_space(), study=path, scope=None)) == facts(first)
    record = read_study(path)
    assert len(record.scopes) == 2
    assert len(record.points) == whole[1].evaluated, "the main search is as it was"
    assert read_study(path, record.scopes[1]).question["num_devices"] == 4
    with pytest.raises(InputError, match="is not a search of this study"):
        read_study(path, "mine")


def test_a_study_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with open_study(path, "test") as store:
        store.connection.execute("UPDATE meta SET value='0.0.9' WHERE key='version'")
    with pytest.raises(InputError, match=r"made by sartor 0\.0\.9"), open_study(path, "test"):
        pass


def test_what_is_no_study_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "other.db"
    text.write_text("my notes")
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    before = other.read_bytes()
    cases = (
        (text, "not an SQLite"),
        (other, "another program"),
        (tmp_path, "folder"),
        (tmp_path / "a" / "b", "no folder"),
    )
    for path, words in cases:
        with pytest.raises(InputError, match=words) as caught, open_study(path, "test"):
            pass
        assert caught.value.field == "study"
    assert text.read_text() == "my notes"
    assert other.read_bytes() == before
    for path in (text, other, tmp_path / "absent.db"):
        with pytest.raises(InputError):
            read_study(path)


@pytest.mark.parametrize("where", [0.02, 0.3, 0.6, 0.9])
def test_a_damaged_study_is_named(where: float, whole: tuple[Path, JointResult, int], tmp_path: Path) -> None:
    content = bytearray(whole[0].read_bytes())
    at = int(len(content) * where) // 4096 * 4096
    content[max(at, 100) : at + 4096] = os.urandom(at + 4096 - max(at, 100))
    path = tmp_path / "study.db"
    path.write_bytes(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StudyWarning)
            result = search(path, Scripted())
    except InputError as error:
        assert "damaged" in str(error)  # noqa: PT017
    else:
        assert facts(result) == facts(whole[1]), "what was hit held nothing"


def flipped(source: Path, target: Path, bit: int) -> Path:
    content = bytearray(source.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    target.write_bytes(content)
    return target


def test_a_row_with_a_flipped_bit_is_named_and_the_rest_is_used(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    at = whole[0].read_bytes().rindex(b'"dataflow":') * 8  # the question, which comes first, has one as well
    path = flipped(whole[0], tmp_path / "study.db", at + 8 * 14)
    with pytest.warns(StudyWarning, match=r"study\.db: a damaged row is left out \(points \d+\)"):
        record = read_study(path)
    assert len(record.points) == whole[1].evaluated - 1
    by = Scripted()
    with pytest.warns(StudyWarning, match=r"points \d+"):
        assert facts(search(path, by)) == facts(whole[1])
    assert len(by.done) == 1, "what was lost is computed again, and nothing else"
    assert len(read_study(path).points) == whole[1].evaluated, "and kept"


@pytest.mark.slow
@pytest.mark.parametrize("flips", [times(15, 1000)])
def test_any_flipped_bit_is_a_sentence_or_changes_nothing(
    flips: int, whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    by, path, sound = random.Random(flips), tmp_path / "study.db", read_study(whole[0])
    for bit in (by.randrange(whole[0].stat().st_size * 8) for _ in range(flips)):
        flipped(whole[0], path, bit)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                record = read_study(path)
                assert record.question == sound.question
                for name in ("points", "history", "sessions", "stored"):
                    there, before = getattr(record, name), getattr(sound, name)
                    assert [each for each in before if each in there] == list(there), (bit, name)
                    assert len(there) == len(before) or "left out" in str(said[0].message)
            except InputError as error:
                assert "study=" in str(error)  # noqa: PT017
            try:
                assert facts(search(path, Scripted())) == facts(whole[1]), bit
            except InputError as error:
                assert "study=" in str(error)  # noqa: PT017
        for beside in tmp_path.iterdir():
            beside.unlink()


def test_a_truncated_study_is_named(whole: tuple[Path, JointResult, int], tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    path.write_bytes(whole[0].read_bytes()[:20_000])
    with pytest.raises(InputError, match="damaged"):
        search(path, Scripted())


@pytest.mark.slow
def test_a_full_disk_ends_the_search_in_words_and_loses_nothing(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path, first = tmp_path / "study.db", Scripted()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (165_000, hard))
        with pytest.raises(InputError, match="the disk is full or a limit is reached"):
            search(path, first)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    record = read_study(path)
    assert len(record.points) > 0
    assert record.sessions[-1].ending == "disk"
    last = Scripted()
    assert facts(search(path, last)) == facts(whole[1])
    twice = set(first.done) & set(last.done)
    assert len(twice) <= 1, "only what could not be written is done again"


def test_ctrl_c_keeps_the_study_and_answers_with_the_best_so_far(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path = tmp_path / "study.db"

    def stop(progress: Progress) -> None:
        if progress.evaluated == 3:
            raise KeyboardInterrupt

    result = search(path, Scripted(), on_progress=stop)
    assert result.interrupted
    assert result.best is not None
    assert result.upper_bound >= whole[1].upper_bound * (1 - 1e-9)
    assert read_study(path).sessions[-1].ending == "interrupted"
    assert facts(search(path, Scripted())) == facts(whole[1])


def test_a_time_limit_answers_with_a_gap_and_the_next_session_goes_on(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    path = tmp_path / "study.db"
    result = search(path, Scripted(), time_limit_s=0.0)
    assert result.status is DesignStatus.UNKNOWN
    assert read_study(path).sessions[-1].ending == "time"
    assert facts(search(path, Scripted())) == facts(whole[1])


def test_progress_tells_bound_incumbent_evaluated_pruned_and_time_left(whole: tuple[Path, JointResult, int]) -> None:
    steps = whole[1].trajectory
    assert all(a.pruned <= b.pruned for a, b in pairwise(steps))
    assert steps[-1].waiting == 0
    assert steps[-1].pruned + steps[-1].evaluated == whole[1].pruned + whole[1].evaluated
    searched = [step for step in steps if step.phase == "search"]
    assert steps[0].left_s is None
    assert all(step.left_s is not None and step.left_s >= 0 for step in searched[1:])


def test_points_export_to_csv_and_parquet_alike(whole: tuple[Path, JointResult, int], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="extra data is not installed")
    path, result, _ = whole
    for name in ("points.csv", "points.parquet"):
        assert export_study(path, tmp_path / name) == result.evaluated
    with (tmp_path / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "points.parquet").to_pylist()
    assert list(rows[0]) == list(table[0])
    for text, row in zip(rows, table, strict=True):
        assert float(text["objective"]) == row["objective"]
        assert float(text["model1_step_s"] or 0) == (row["model1_step_s"] or 0)
    assert max(row["objective"] for row in table) == result.best.objective  # type: ignore[union-attr]


def test_an_export_that_is_no_table_is_refused_and_a_missing_folder_is_made_as_for_every_output(
    whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="must end in"):
        export_study(whole[0], tmp_path / "points.xlsx")
    export_study(whole[0], tmp_path / "absent" / "points.csv")
    with (tmp_path / "absent" / "points.csv").open(newline="") as file:
        words = {row["model1_recompute"] for row in csv.DictReader(file)}
    assert words <= {"none", "full", ""}, "the words of the JSON"


CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from engine_samples import Scripted, digest, search
from sartor.engine.executors import make_executor
print("begins", flush=True)
print(digest(search(Path(sys.argv[1]), make_executor("serial"))))
"""
"""A process of its own, so that it can be killed."""


def child(path: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(path), str(Path(__file__).parents[1])]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_ctrl_c_while_work_is_done_keeps_the_study(tmp_path: Path) -> None:
    path = tmp_path / "study.db"

    def press(progress: Progress) -> None:
        if progress.evaluated == 2:
            signal.raise_signal(signal.SIGINT)

    result = run_design(ASKED, SPACE, study=path, on_progress=press)
    assert result.interrupted
    assert 0 < len(read_study(path).points) == len(result.ranked)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(1, 10)))
def test_killed_five_times_at_random_it_answers_the_same_and_evaluates_nothing_twice(
    seed: int, whole: tuple[Path, JointResult, int], tmp_path: Path
) -> None:
    by, path = random.Random(seed), tmp_path / "study.db"
    for _ in range(5):
        process = child(path)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=by.uniform(0.0, 3.0))
        process.kill()
        process.communicate()
    answer, _ = child(path).communicate(timeout=600)
    assert answer.strip() == digest(whole[1])
    record = read_study(path)
    assert len(record.points) == whole[1].evaluated
    assert sum(session.evaluated for session in record.sessions) == evaluations(whole[1])


@pytest.mark.parametrize("for_reading", [True, False])
@pytest.mark.parametrize("what", ["another program's", "cut short"])
def test_a_file_that_is_no_study_is_not_held_open(
    what: str, for_reading: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened, real = tmp_path / "other.db", [], sqlite3.connect
    with closing(real(path)) as other:
        other.execute("CREATE TABLE mine (x)")
        other.commit()
    if what == "cut short":
        path.write_bytes(path.read_bytes()[:200])
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: opened.append(real(*a, **k)) or opened[-1])
    with pytest.raises(InputError):
        connect(path, for_reading=for_reading)
    assert opened
    for each in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            each.execute("SELECT 1")
