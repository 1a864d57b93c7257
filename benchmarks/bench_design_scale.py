"""Two Dask workers against one, on a question that is large enough: same answer, seconds, ratio.

    python benchmarks/bench_design_scale.py [MODEL] [NUM_DEVICES] [BATCH] [RUNS]

A finer space than the published one (every number of tensor cores, lanes apart from columns), so that bounds and
evaluations outweigh what no worker shares: loading, the order of candidates, and rounds of one task. Scheduler and
workers are processes of this machine, each worker with one thread; run it on a machine with two idle cores, for on a
busy one the clock says little (the load is printed beside it). Runs with one and with two workers alternate, and the
best of each is compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sartor.engine.run import run_design
from sartor.model.zoo import load_model
from sartor.search.accelerator_space import AcceleratorSpace, space_from
from sartor.search.joint_question import DesignModel, DesignQuestion
from sartor.search.joint_result import JointResult

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


def main(model: str = "gpt2-xl", num_devices: str = "256", batch: str = "1024", runs: str = "2") -> None:
    """Print how long one worker takes, how long two do, and whether they agree."""
    asked = DesignModel(name=model, shape=load_model(model), seq_len=1024)
    question = DesignQuestion(models=(asked,), num_devices=int(num_devices), global_batch_size=int(batch))
    space = space_from(FINE)
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


def timed(question: DesignQuestion, space: AcceleratorSpace, workers: int) -> tuple[float, JointResult]:
    """Seconds of the whole search on that many warm workers, and its answer."""
    with cluster(workers) as address:
        run_design(question, space, executor=address, time_limit_s=2.0)
        start = time.perf_counter()
        answer = run_design(question, space, executor=address)
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
    main(*sys.argv[1:])
