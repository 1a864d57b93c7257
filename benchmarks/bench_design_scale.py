"""Two Dask workers against one on a large question: whether the answers agree, seconds, ratio.

    python benchmarks/bench_design_scale.py [MODEL] [NUM_DEVICES] [BATCH] [RUNS]
    python benchmarks/bench_design_scale.py --replay [MODEL] [NUM_DEVICES] [BATCH]

The space is finer than the published one (every number of tensor cores, lanes independent of columns), so that bounds
and evaluations outweigh the serial parts: loading, ordering the candidates, and rounds with a single task. Scheduler
and workers are processes of this machine, one thread per worker; it needs two idle cores, since times on a busy machine
mean little (the load is printed too). Runs with one and with two workers alternate, and the best of each is compared.
``--replay`` needs no idle machine: every task runs once here, and its CPU time is scheduled on 1, 2, 4 and 8 simulated
workers that receive tasks when the search submits them. That is the speedup without communication cost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from sartor.designs.candidates import JointResult
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.space import AcceleratorSpace, space_from
from sartor.designs.tasks import Result, Task, run_task
from sartor.engine.run import Beside, run_whole
from sartor.model.zoo import load_model

FINE = {
    "name": "fine",
    "num_tensor_cores": {"from": 1, "to": 16, "step": 1},
    "num_vector_cores": [1, 2, 4, 8, 16],
    "array_rows": {"from": 32, "to": 256, "step": 32},
    "array_cols": {"from": 32, "to": 256, "step": 32},
    "vector_lanes": [32, 64, 128, 256],
    "global_buffer_mib": [4, 8, 16, 32],
    "hbm_gb": [32, 64, 80],
    "area_limit_mm2": 400,
}
PORT = 18786


def main(model: str = "megatron-gpt2-72", num_devices: str = "1024", batch: str = "4096", runs: str = "1") -> None:
    """Print how long one worker takes, how long two do, and whether they agree."""
    question, space = asked(model, num_devices, batch), space_from(FINE)
    took: dict[int, list[float]] = {1: [], 2: []}
    answers: list[JointResult] = []
    for i in range(int(runs)):
        for workers in (1, 2) if i % 2 == 0 else (2, 1):
            seconds, answer = timed(question, space, workers)
            took[workers].append(seconds)
            answers.append(answer)
            load = os.getloadavg()[0]
            print(
                f"  {workers} worker{'s' if workers > 1 else ' '}  {seconds:7.1f} s  (load average {load:.1f})",
                flush=True,
            )
    one, two = min(took[1]), min(took[2])
    first = answers[0]
    assert all(answer.best == first.best and answer.ranked == first.ranked for answer in answers)
    print(
        f"{model}, {space.num_points:,} architectures: {first.status}, {first.evaluated} evaluated, the same each time"
    )
    print(f"  one worker {one:.1f} s, two workers {two:.1f} s: {one / two:.2f} times as fast")


def asked(model: str, num_devices: str, batch: str) -> DesignQuestion:
    """The question, sequences of 1,024 tokens."""
    one = DesignModel(name=model, shape=load_model(model), seq_len=1024)
    return DesignQuestion(models=(one,), num_devices=int(num_devices), global_batch_size=int(batch))


def replay(model: str = "gpt2-xl", num_devices: str = "256", batch: str = "1024") -> None:
    """Print how long several numbers of workers would take, from the CPU time of every task."""
    by = Replay((1, 2, 4, 8))
    answer = search_design(asked(model, num_devices, batch), space_from(FINE), run=by)
    by.pass_()
    print(f"{model}: {answer.status}, {answer.evaluated} evaluated, {by.here_s:.1f} s of what no worker shares")
    for workers, seconds in by.now_s.items():
        print(f"  {workers} workers {seconds:6.1f} s: {by.now_s[1] / seconds:.2f} times as fast")


class Replay:
    """Runs the tasks and simulates the clock of each number of workers."""

    def __init__(self, workers: Sequence[int]) -> None:
        self.now_s, self.free_s = dict.fromkeys(workers, 0.0), {count: [0.0] * count for count in workers}
        self.here_s, self.since = 0.0, time.process_time()

    def __call__(self, question: DesignQuestion, tasks: Sequence[Task]) -> Iterator[Result]:
        """Results in the order of the tasks; each task goes to the first free worker."""
        done: list[tuple[dict[int, float], Result]] = []
        given = 0
        while given < len(tasks):
            self.pass_()
            for task in tasks[len(done) :]:
                start = time.process_time()
                result = run_task(question, task)
                done.append((self._ends(time.process_time() - start), result))
            self.since = time.process_time()
            ends, result = done[given]
            self.now_s = {count: max(now, ends[count]) for count, now in self.now_s.items()}
            given += 1
            yield result
        self.pass_()

    def _ends(self, took_s: float) -> dict[int, float]:
        out = {}
        for count, free in self.free_s.items():
            first = min(range(count), key=free.__getitem__)
            free[first] = max(free[first], self.now_s[count]) + took_s
            out[count] = free[first]
        return out

    def pass_(self) -> None:
        """Add this process's own time since the last call, during which all workers wait."""
        passed = time.process_time() - self.since
        self.since += passed
        self.here_s += passed
        self.now_s = {count: now + passed for count, now in self.now_s.items()}


def timed(question: DesignQuestion, space: AcceleratorSpace, workers: int) -> tuple[float, JointResult]:
    """Seconds of the whole search on warm workers, and its result."""
    with cluster(workers) as address:
        run_whole(question, space, Beside(), executor=address, time_limit_s=2.0)
        start = time.perf_counter()
        answer = run_whole(question, space, Beside(), executor=address).result
        return time.perf_counter() - start, answer


@contextmanager
def cluster(workers: int) -> Iterator[str]:
    """A scheduler and its workers, as processes of this machine."""
    address = f"tcp://127.0.0.1:{PORT}"
    words = [["scheduler", "--host", "127.0.0.1", "--port", str(PORT), "--no-dashboard"]]
    words += [["worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]] * workers
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen([sys.executable, "-m", "dask", *each], **quiet) for each in words]  # type: ignore[call-overload]
    try:
        time.sleep(5.0)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    replay(*sys.argv[2:]) if sys.argv[1:2] == ["--replay"] else main(*sys.argv[1:])
