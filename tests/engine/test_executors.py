"""Whoever does the work, and however many die of it, the answer is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

import sartor
from engine_samples import ASKED, SPACE, Scripted, evaluations, facts, run_design, run_search, search
from sartor.designs.candidates import DesignStatus, JointResult, Progress
from sartor.engine.executors import Local, Submitting, make_executor, run_elsewhere, start_pool
from sartor.engine.study import export_study, read_study
from sartor.errors import InputError


@pytest.fixture(scope="module")
def expected() -> JointResult:
    """The answer of one task after another in this process."""
    return run_search(ASKED, SPACE, Scripted(), None)


@pytest.mark.slow
def test_processes_beside_this_one_give_the_same_answer(expected: JointResult) -> None:
    by = Local(workers=2, alone_s=0.0)
    try:
        assert facts(run_search(ASKED, SPACE, by, None)) == facts(expected)
        assert by.beside.executor is not None, "no process was started"
    finally:
        by.close()


def test_any_executor_of_the_standard_library_serves(expected: JointResult) -> None:
    with ThreadPoolExecutor(3) as threads:
        by = Submitting(name="threads", start=lambda: threads)
        assert facts(run_search(ASKED, SPACE, by, None)) == facts(expected)


@pytest.mark.slow
def test_a_small_question_starts_no_process(expected: JointResult) -> None:
    by = Local(workers=2, alone_s=float("inf"))
    assert facts(run_search(ASKED, SPACE, by, None)) == facts(expected)
    assert by.beside.executor is None


@pytest.mark.slow
def test_workers_killed_on_the_way_are_replaced_and_the_answer_is_the_same(
    expected: JointResult, tmp_path: Path
) -> None:
    by, killed = Local(workers=2, alone_s=0.0), []

    def kill(progress: Progress) -> None:
        processes = [p for p in getattr(by.beside.executor, "_processes", None) or () if _alive(p)]
        if processes and not killed:
            os.kill(processes[0], signal.SIGKILL)
            killed.append(processes[0])

    try:
        found = search(tmp_path / "study.db", by, on_progress=kill)
    finally:
        by.close()
    assert killed
    assert facts(found) == facts(expected)
    record = read_study(tmp_path / "study.db")
    assert len(record.points) == expected.evaluated
    assert sum(session.evaluated for session in record.sessions) == evaluations(expected)


def test_workers_that_always_die_are_an_error_in_words() -> None:
    with pytest.raises(InputError, match="died before finishing anything"):
        run_search(ASKED, SPACE, Submitting(name="local", start=partial(Deadly, 1)), None)


class Deadly(ThreadPoolExecutor):
    """Workers that die of every task."""

    def submit(self, *_: Any, **__: Any) -> Any:
        from concurrent.futures.process import BrokenProcessPool

        raise BrokenProcessPool


def test_an_end_leaves_no_process_behind() -> None:
    by = Local(workers=2, alone_s=0.0)

    def stop(progress: Progress) -> None:
        if progress.evaluated == 2:
            raise KeyboardInterrupt

    result = run_search(ASKED, SPACE, by, None, on_progress=stop)
    assert result.interrupted
    by.close()
    deadline = time.monotonic() + 20
    while active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not active_children()


ORPHANS = """
import os, sys, time
from functools import partial
from sartor.engine.executors import start_pool
if __name__ == "__main__":
    pool = start_pool(2)
    print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = list(map(int, parent.stdout.readline().split()))
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 20
    while any(map(_alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers
    assert not any(map(_alive, workers))


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_what_is_not_finished_in_time_is_given_up() -> None:
    by = Local(workers=2, alone_s=0.0)
    try:
        result = run_search(ASKED, SPACE, by, None, time_limit_s=0.01)
        assert result.status is DesignStatus.UNKNOWN
        assert result.evaluated < SPACE.num_points
    finally:
        by.close()


def test_a_word_that_names_no_executor_is_refused() -> None:
    for word, near in (("lokal", "local"), ("http://127.0.0.1:1", "tcp://127.0.0.1:8786")):
        with pytest.raises(InputError, match="executor") as caught:
            make_executor(word)
        assert near in caught.value.nearest
    with pytest.raises(InputError, match=r"^workers="):
        make_executor("local", 0)


def test_a_worker_with_another_sartor_is_refused() -> None:
    from sartor.designs.search import SearchState

    state = SearchState(question=ASKED, space=SPACE, tolerance=0.0, on_progress=None, start=0.0, time_limit_s=1.0)
    with pytest.raises(InputError, match="worker must have sartor"):
        state.bound_boxes(lambda tasks: (run_elsewhere("9.9", ASKED, task) for task in tasks))


# ------------------------------------------------------------------------------------------------------ Dask, really


Processes = list[subprocess.Popen[str]]


@pytest.fixture
def cluster() -> Iterator[tuple[str, Processes]]:
    """The address of a scheduler, and its process and those of two workers."""
    pytest.importorskip("distributed", reason="extra cluster is not installed")
    port = _free_port()
    processes = _cluster(port)
    yield f"tcp://127.0.0.1:{port}", processes
    for process in processes:
        process.kill()
        process.communicate()


def _cluster(port: int) -> Processes:
    scheduler = _dask("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    return [scheduler, *(_worker(f"tcp://127.0.0.1:{port}") for _ in range(2))]


def _worker(address: str) -> subprocess.Popen[str]:
    return _dask("worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")


def _dask(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_dask_workers_give_the_same_answer_though_one_is_killed(
    cluster: tuple[str, Processes], expected: JointResult, tmp_path: Path
) -> None:
    address, (_, worker, _) = cluster
    path = tmp_path / "study.db"

    def kill(progress: Progress) -> None:
        if progress.evaluated == 2 and worker.poll() is None:
            worker.kill()

    found = run_design(ASKED, SPACE, executor=address, study=path, on_progress=kill)
    assert worker.wait(timeout=60) != 0
    assert facts(found) == facts(expected)
    record = read_study(path)
    assert record.sessions[0].executor == address
    assert len(record.points) == expected.evaluated
    assert sum(session.evaluated for session in record.sessions) == evaluations(expected)


@pytest.mark.slow
def test_a_study_outlives_its_scheduler_and_its_table_has_the_bytes_of_one_machine(
    cluster: tuple[str, Processes], expected: JointResult, tmp_path: Path
) -> None:
    address, processes = cluster
    path = tmp_path / "study.db"

    def kill(progress: Progress) -> None:
        if progress.evaluated == 2:
            for process in processes:
                process.kill()

    with pytest.raises(InputError, match="the scheduler went away; finished work is kept in the study"):
        run_design(ASKED, SPACE, executor=address, study=path, on_progress=kill)
    assert len(read_study(path).points) >= 2
    processes += _cluster(int(address.rpartition(":")[2]))
    assert facts(run_design(ASKED, SPACE, executor=address, study=path)) == facts(expected)
    run_design(ASKED, SPACE, executor="serial", study=tmp_path / "alone.db")
    for study in ("study", "alone"):
        export_study(tmp_path / f"{study}.db", tmp_path / f"{study}.csv")
    shared, alone = ((tmp_path / f"{study}.csv").read_bytes() for study in ("study", "alone"))
    assert sorted(shared.splitlines()) == sorted(alone.splitlines())  # in the order of evaluation


@pytest.mark.slow
def test_a_sweep_of_plans_on_workers_answers_as_one_machine_does(cluster: tuple[str, Processes]) -> None:
    from distributed import Client

    jobs = [{"num_devices": count, "global_batch_size": 64} for count in (8, 16, 32)]
    with Client(cluster[0], set_as_default=False) as client:
        answers = client.gather([client.submit(sartor.plan, "gpt2-xl", "dgx-h100", **job) for job in jobs])
    alone = [sartor.plan("gpt2-xl", "dgx-h100", **job) for job in jobs]
    assert [answer.to_dict()["top"] for answer in answers] == [answer.to_dict()["top"] for answer in alone]


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="extra cluster is not installed")
    from sartor.engine import executors

    monkeypatch.setattr(executors, "REACH_S", 0.5)
    with pytest.raises(InputError, match="no scheduler answers there") as caught:
        make_executor(f"tcp://127.0.0.1:{_free_port()}")
    assert caught.value.field == "executor"


def test_without_the_package_its_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install .*\[cluster\]"):
        make_executor("tcp://127.0.0.1:8786")


def test_a_pool_is_a_plain_executor() -> None:
    with start_pool(1) as pool:
        assert isinstance(pool, Executor)
        assert pool.submit(sum, (1, 2)).result() == 3
