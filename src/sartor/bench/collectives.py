"""Collectives among the devices of one host: one process per device, NCCL (RCCL) on accelerators, gloo on CPUs.

Every process runs the same cases in the same order. A call is timed by the host clock until the device has finished
it; the slowest rank's time counts.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from sartor.bench.cases import BenchCase
from sartor.bench.timing import DeviceFacts, DeviceState, Row, Timing, row_of
from sartor.operators import Collective, CollectiveKind

KINDS = tuple(CollectiveKind)
SAMPLES, LAUNCHES = 7, 10


def collective_cases(ranks: int, *, small: bool) -> list[BenchCase]:
    """Every kind of collective at messages from 4 KiB to 1 GiB (4 MiB on CPUs)."""
    powers = range(12, 23, 2) if small else range(12, 31, 2)
    return [
        BenchCase(work=Collective(name=kind.value, kind=kind, group_size=ranks, message_bytes=float(2**power)))
        for kind in KINDS
        for power in powers
    ]


def run_collectives(
    cases: Sequence[BenchCase],
    facts: DeviceFacts,
    ranks: int,
    *,
    date: str,
    suite: str = "collectives",
    threads: int = 1,
) -> list[Row]:
    """Rows of all cases, timed by ``ranks`` processes; cases that the library does not support are left out."""
    import torch.multiprocessing as processes

    with tempfile.TemporaryDirectory() as folder:
        job = _Job(folder=folder, ranks=ranks, on_host=facts.backend == "cpu", threads=threads)
        processes.spawn(_rank, args=(job, [_words(case) for case in cases]), nprocs=ranks, join=True)
        seconds = [np.load(Path(folder) / f"{rank}.npy") for rank in range(ranks)]
    slowest = np.max(seconds, axis=0)
    return [
        _row(case, times, facts, date=date, suite=suite)
        for case, times in zip(cases, slowest, strict=True)
        if np.isfinite(times).all()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    folder: str
    ranks: int
    on_host: bool
    threads: int


def _words(case: BenchCase) -> tuple[str, int]:
    work = case.work
    assert isinstance(work, Collective)
    return work.kind.value, int(work.message_bytes)


def _rank(rank: int, job: _Job, cases: Sequence[tuple[str, int]]) -> None:
    """One process: join the group, time every case and save the times in the job's folder."""
    import torch
    import torch.distributed as group

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(job.threads)
    device = "cpu" if job.on_host else f"cuda:{rank}"
    if not job.on_host:
        torch.cuda.set_device(rank)
    store = f"file://{job.folder}/store"
    group.init_process_group("gloo" if job.on_host else "nccl", init_method=store, rank=rank, world_size=job.ranks)
    try:
        times = [_times(torch, group, kind, size, rank, job, device) for kind, size in cases]
        np.save(Path(job.folder) / f"{rank}.npy", np.asarray(times))
    finally:
        group.destroy_process_group()


def _times(torch: ModuleType, group: object, kind: str, size: int, rank: int, job: _Job, device: str) -> list[float]:
    """Seconds of one call in each sample; NaN where the library does not support this collective."""
    try:
        call = _call(torch, group, kind, size, rank, job.ranks, device)
        for _ in range(3):
            call()
        _wait(torch, device)
        return [_sample(torch, group, call, device) for _ in range(SAMPLES)]
    except (RuntimeError, ValueError, AttributeError, NotImplementedError):
        return [float("nan")] * SAMPLES


def _sample(torch: ModuleType, group: Any, call: Any, device: str) -> float:
    group.barrier()
    _wait(torch, device)
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        call()
    _wait(torch, device)
    return (time.perf_counter() - started) / LAUNCHES


def _wait(torch: ModuleType, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _call(torch: ModuleType, group: Any, kind: str, size: int, rank: int, ranks: int, device: str) -> Any:
    """A call on ``size`` bytes of bf16 per device (the unsharded buffer)."""
    count = max(ranks, size // 2 // ranks * ranks)
    whole = torch.randn(count, device=device).to(torch.bfloat16)
    part = torch.randn(count // ranks, device=device).to(torch.bfloat16)
    gather = getattr(group, "all_gather_single", None) or group.all_gather_into_tensor  # renamed in torch 2.13
    scatter = getattr(group, "reduce_scatter_single", None) or group.reduce_scatter_tensor
    if kind == "all_reduce":
        return lambda: group.all_reduce(whole)
    if kind == "all_gather":
        return lambda: gather(whole, part)
    if kind == "reduce_scatter":
        return lambda: scatter(part, whole)
    if kind == "all_to_all":
        received = torch.zeros_like(whole)
        return lambda: group.all_to_all_single(received, whole)
    if rank == 0:
        return lambda: group.send(whole, 1)
    return (lambda: group.recv(whole, 0)) if rank == 1 else (lambda: None)


def _row(case: BenchCase, times: Any, facts: DeviceFacts, *, date: str, suite: str) -> Row:
    p10, median, p90 = (float(value) for value in np.quantile(times, [0.1, 0.5, 0.9]))
    timing = Timing(
        median_s=median,
        p10_s=p10,
        p90_s=p90,
        samples=SAMPLES,
        launches=LAUNCHES,
        set_aside=0,
        quiet=True,
        reading=DeviceState(),
    )
    row = row_of(case, timing, facts, sets=1, timer="host", suite=suite, date=date)
    return row | {"library": "gloo" if facts.backend == "cpu" else "nccl"}
