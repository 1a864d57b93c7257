"""A study keeps everything of a run, other ways to choose, fronts and shapes: wherever it is cut, nothing is lost."""

from __future__ import annotations

import csv
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from design_samples import question, small_shape, small_space
from effort import times
from engine_samples import CutError
from sartor.designs import baselines as joint_baselines
from sartor.designs.baselines import known_chips
from sartor.designs.candidates import Progress
from sartor.designs.point import ModelOutcome
from sartor.designs.question import DesignModel
from sartor.designs.shape_bounds import ShapeAxes
from sartor.designs.shapes import ShapeVariant, search_design_shapes
from sartor.designs.shapes_proved import search_with_shapes
from sartor.engine.run import Beside, Whole, run_whole
from sartor.engine.schema import from_text, to_text
from sartor.engine.store import SearchStore
from sartor.engine.study import export_study, read_study
from sartor.errors import InputError
from sartor.model.training import Recompute

MODEL = DesignModel(name="small", shape=small_shape(), seq_len=128, widths=(1,))
ASKED = question(models=(MODEL,), microbatch_sizes=(4,), recomputes=(Recompute.NONE,))
SPACE = small_space(hbm_gb=[0.2], num_vector_cores=[2])
VARIANTS = (
    ShapeVariant(shape=small_shape(), changed=()),
    ShapeVariant(shape=small_shape(16, 128), changed=(("num_layers", 4, 16), ("hidden_size", 256, 128))),
)


def by_shape(search: Any, keep: Any) -> Any:
    return search_design_shapes(ASKED, SPACE, VARIANTS, search=search, keep=keep)


ALL = Beside(baselines=True, axes=("area_mm2", "power_w"), shapes=by_shape)


def ask(path: Path | None, beside: Beside = ALL, **words: Any) -> Whole:
    return run_whole(ASKED, SPACE, beside, study=path, **words)


def facts(found: Whole) -> str:
    """All of an answer but the clock."""
    result, front, shapes = found.result, found.front, found.shapes
    assert front is not None
    assert shapes is not None
    ways = [replace(way, seconds=0.0) for way in result.baselines]
    matrix = [array.tolist() for array in (shapes.rates, shapes.reached, shapes.best_rate)]
    same = [result.best, result.gap, result.ranked, result.reasons, ways, front.points, front.proved, shapes.chips]
    return repr([*same, matrix])


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One known chip."""
    few_samples(monkeypatch.setattr)


def few_samples(put: Callable[[Any, str, Any], None]) -> None:
    put(joint_baselines, "known_chips", lambda *asked: [next(iter(known_chips(*asked)))])


@pytest.fixture(scope="module")
def uncut() -> Any:
    """What a run answers that nothing interrupts, without a study."""
    with pytest.MonkeyPatch.context() as patch:
        few_samples(patch.setattr)
        return ask(None)


class Counting:
    """`SearchStore.keep` that dies before the work after ``lives``; ``done`` has what was worked out, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lives, self.done, keep = 10**9, list[str](), SearchStore.keep

        def counted(store: SearchStore, key: str, make: Callable[[], Any]) -> Any:
            def worked() -> Any:
                if self.lives <= 0:
                    raise CutError
                self.lives -= 1
                value = make()
                self.done.append(key)
                return value

            return keep(store, key, worked)

        patch.setattr(SearchStore, "keep", counted)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(times(1, 2)))
def test_cut_anywhere_it_ends_as_if_it_had_not_been_and_does_nothing_twice(
    seed: int, uncut: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, by, path = Counting(monkeypatch), random.Random(seed), tmp_path / "study.db"
    for _ in range(4):
        counting.lives = by.randint(0, 12)
        with suppress(CutError):
            ask(path)
    counting.lives = 10**9
    assert facts(ask(path)) == facts(uncut)
    assert sorted(counting.done) == sorted(set(counting.done)), "something was worked out twice"
    kept = {key for key, _ in read_study(path).stored}
    assert kept == set(counting.done)
    counting.done.clear()
    assert facts(ask(path)) == facts(uncut)
    assert counting.done == []
    record = read_study(path)
    assert record.sessions[-1].evaluated == 0
    assert [session.ending for session in record.sessions[-2:]] == ["complete", "complete"]


@pytest.mark.slow
def test_the_record_and_the_export_have_what_stands_beside_the_search(uncut: Whole, tmp_path: Path) -> None:
    found = ask(tmp_path / "study.db")
    record = read_study(tmp_path / "study.db")
    assert [way.name for way in record.ways] == [way.name for way in uncut.result.baselines]
    assert [scope.partition(" #")[0] for scope in record.scopes] == [
        "main",
        "shape 1: as it is",
        "shape 2: num_layers=16, hidden_size=128",
        "all shapes together",
    ]
    count = export_study(record.path, tmp_path / "points.csv")
    with (tmp_path / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    of = {part: [row for row in rows if row["part"] == part] for part in {row["part"] for row in rows}}
    assert len(of["main"]) == found.result.evaluated
    assert found.front is not None
    assert len(of["front"]) >= len(found.front.points)
    for way in found.result.baselines:
        assert way.ranked is not None
        (row,) = of[way.name]
        assert float(row["objective"]) == way.ranked.objective
        assert row["candidate"] == ""


def test_records_survive_the_file_to_the_last_bit(uncut: Whole) -> None:
    for value in (uncut.result.best, *uncut.result.baselines, None, 0.1, (float("inf"), -3, "word")):
        assert from_text(to_text(value)) == value


@pytest.mark.slow
def test_ctrl_c_in_any_part_answers_with_what_there_is_and_the_next_run_goes_on(uncut: Whole, tmp_path: Path) -> None:
    for phase in ("baselines: TPUv4-like, searched placement", "front", "shapes"):

        def stop(progress: Progress, phase: str = phase) -> None:
            if progress.phase == phase:
                raise KeyboardInterrupt

        found = ask(tmp_path / "study.db", on_progress=stop)
        assert found.result.interrupted
        assert found.result.best == uncut.result.best
        assert read_study(tmp_path / "study.db").sessions[-1].ending == "interrupted"
    assert facts(ask(tmp_path / "study.db")) == facts(uncut)


@pytest.mark.slow
def test_a_full_disk_beside_the_search_is_said_and_loses_nothing(
    uncut: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from sartor.engine import store

    path, written, to_text_ = tmp_path / "study.db", list[str](), store.to_text

    def full(value: Any) -> str:
        if isinstance(value, tuple) and all(isinstance(each, ModelOutcome | None) for each in value):
            return to_text_(value)  # outcomes of a point: the search itself has room
        if len(written) == 5:
            raise sqlite3.OperationalError("database or disk is full")
        written.append(to_text_(value))
        return written[-1]

    with monkeypatch.context() as patch:
        patch.setattr(store, "to_text", full)
        with pytest.raises(InputError, match="cannot grow, the disk is full"):
            ask(path)
    assert len(read_study(path).stored) == 5
    assert facts(ask(path)) == facts(uncut)


def test_a_study_of_all_shapes_keeps_bounds_and_points_and_does_nothing_twice(tmp_path: Path) -> None:
    variants = (*VARIANTS, ShapeVariant(shape=small_shape(2, 256), changed=(("num_layers", 4, 2),)))
    axes = ShapeAxes(variants=variants, num_shapes=3, tolerance=1.0)
    beside = Beside(every_shape=partial(search_with_shapes, ASKED, SPACE, axes))
    alone, first, again = (ask(path, beside) for path in (None, tmp_path / "study.db", tmp_path / "study.db"))
    assert alone.joint is not None
    assert alone.joint.searched > 1
    for found in (first, again):
        assert (found.result.best, found.result.gap) == (alone.result.best, alone.result.gap)
    sessions = read_study(tmp_path / "study.db").sessions
    assert sessions[0].evaluated > 0
    assert sessions[1].evaluated == 0


CHILD = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
import test_whole
test_whole.few_samples(setattr)
print("begins", flush=True)
print(test_whole.facts(test_whole.ask(Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_killed_again_and_again_at_random_it_answers_the_same(uncut: Whole, tmp_path: Path) -> None:
    by, path, here = random.Random(7), tmp_path / "study.db", Path(__file__).parent
    words = [sys.executable, "-c", CHILD, str(path), str(here), str(here.parent)]
    for _ in range(times(5, 50)):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=by.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert answer.splitlines()[-1] == facts(uncut)
