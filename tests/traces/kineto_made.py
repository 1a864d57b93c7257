"""Profiler traces made up from a predicted step: what PyTorch's profiler would have written of a run that takes as long
as predicted, with noise, and with one seeded fault.

A trace is Kineto's JSON: ``ProfilerStep#N`` marks, ``cpu_op`` with input dimensions, ``cudaLaunchKernel`` with the
correlation of its kernel, kernels on a compute and a communication stream, NCCL kernels that last until the slowest
rank has come. The job is FSDP on one group of ranks: weights gathered layer by layer ahead of their use, gradients
scattered behind it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sartor import api
from sartor.model.counts import layer_runs
from sartor.operators import Attention, Gemm, Operator, Pass

MODEL, LAYERS, SEQ_LEN, RANKS = "llama-3.1-8b", 8, 4096, 8
GPU, CLUSTER = "h100", "dgx-h100"
LAUNCH_S, HOST_AHEAD_S = 6e-6, 3e-6
"""Host time of one launch, and from a launch to its kernel where the device is idle."""
COMPUTE, COMMUNICATION = 7, 20
"""Streams."""

FAULTS = (
    "slow_link",
    "straggler",
    "prefetch_off",
    "host_gaps",
    "ragged_vocab",
    "recompute",
    "power_cap",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kernel of a step, or a wait of the host."""

    name: str
    op: str
    dims: tuple[tuple[int, ...], ...] = ()
    time_s: float
    kind: str = "compute"
    """``compute``, ``gather``, ``scatter`` or ``host`` (the host waits for the device, then works alone)."""
    layer: int = -1
    """Whose weights it gathers, whose gradients it scatters, or whose weights a compute kernel needs."""
    needs: bool = False
    """The first kernel of a layer: waits for its weights."""
    ends: bool = False
    """The last kernel of a layer's backward: its gradients are complete."""
    message: int = 0
    """Elements."""
    phase: str = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A job to trace, and what is wrong with it."""

    fault: str = ""
    strength: float = 0.0
    """Of the fault; what it multiplies is in ``faulty``."""
    noise: float = 0.01
    """Standard deviation of ln(kernel's time)."""
    drift: float = 0.005
    """The same of a whole run's kernels together: the clock of one device."""
    seed: int = 0
    steps: int = 5
    rank: int = 0
    slow_rank: int = 3


# ----------------------------------------------------------------------------------------------------- a step's work


@cache
def predicted(vocab_size: int = 0) -> Any:
    """The estimate of one device's share."""
    changed = {"num_layers": LAYERS} | ({"vocab_size": vocab_size} if vocab_size else {})
    return api.estimate(
        MODEL,
        gpu=GPU,
        cluster=CLUSTER,
        set=changed,
        seq_len=SEQ_LEN,
        microbatch_size=2,
        num_devices=RANKS,
        global_batch_size=2 * RANKS,
        zero_stage=3,
        framework="torchtitan",
        recompute="none",
    )


@cache
def _collective_s(kind: str, message_bytes: float) -> float:
    return float(api.collective(kind, message_bytes, RANKS, cluster=CLUSTER).cost.time_s)


@cache
def healthy() -> tuple[Work, ...]:
    """The kernels of one step in the order in which the host launches them."""
    answer = predicted()
    shape = answer.question.reading.shape
    params = int(layer_runs(shape.main)[0][1])
    head = int(shape.vocab_size * shape.hidden_size)
    ops = list(zip(answer.graph.operators, (float(cost.time_s) for cost in answer.microbatch.costs), strict=True))
    forward, backward = (
        {
            block: [
                w for op, t in ops if op.block == block and (op.pass_ is Pass.FORWARD) is first for w in _kernels(op, t)
            ]
            for block in (0, 1, 2)
        }
        for first in (True, False)
    )
    work: list[Work] = [_gather(layer=0, params=params), *forward[0]]
    for layer in range(LAYERS):
        work += [_gather(layer=layer + 1, params=params if layer + 1 < LAYERS else head), *_of(forward[1], layer)]
    work += [*_of(forward[2], LAYERS), *_of(backward[2], LAYERS, "backward", ends=True), _scatter(LAYERS, head)]
    work.append(_gather(layer=LAYERS - 1, params=params, phase="backward"))
    for layer in reversed(range(LAYERS)):
        if layer:
            work.append(_gather(layer=layer - 1, params=params, phase="backward"))
        work += [*_of(backward[1], layer, "backward", ends=True), _scatter(layer, params)]
    work += [replace(each, phase="backward") for each in backward[0]]
    update = float(answer.priced.step.parts["optimizer_s"]) if answer.priced else 1e-3
    count = 8
    work += [
        Work(name=OPTIMIZER, op="aten::_fused_adamw_", dims=((params,),), time_s=update / count, phase="optimizer")
        for _ in range(count)
    ]
    return tuple(work)


OPTIMIZER = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >"
)
POINTWISE = {
    "norm": ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "aten::mul"),
    "activation": ("triton_poi_fused_mul_silu_1", "aten::mul"),
    "residual": ("triton_poi_fused_add_2", "aten::add"),
    "loss": ("triton_red_fused__log_softmax_nll_loss_3", "aten::_log_softmax"),
    "rotary": ("triton_poi_fused_cat_mul_neg_4", "aten::mul"),
    "embedding": ("void at::native::indexSelectLargeIndex<c10::BFloat16, long>", "aten::embedding"),
    "grad_accumulation": ("triton_poi_fused__to_copy_5", "aten::copy_"),
}  # fmt: skip


def _kernels(op: Operator, time_s: float) -> Iterator[Work]:
    """The kernels of one operator of one layer."""
    count = max(round(int(op.count) / (LAYERS if op.block == 1 else 1)), 1)
    for _ in range(count):
        if isinstance(op, Gemm):
            m, n, k = int(op.m), int(op.n), int(op.k)
            yield Work(
                name="nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", op="aten::mm", dims=((m, k), (k, n)), time_s=time_s
            )
        elif isinstance(op, Attention):
            heads = (int(op.batch), int(op.num_heads), int(op.seq_q), int(op.head_dim))
            keys = (int(op.batch), int(op.num_kv_heads), int(op.seq_kv), int(op.head_dim))
            back = op.pass_ is not Pass.FORWARD
            name = "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel" if back else "flash_fwd_kernel"
            aten = "aten::_scaled_dot_product_flash_attention" + ("_backward" if back else "")
            dims = (heads, heads, keys, keys) if back else (heads, keys, keys)
            yield Work(
                name=f"void pytorch_flash::{name}<Flash_fwd_kernel_traits<128, 128, 64, 4> >",
                op=aten,
                dims=dims,
                time_s=time_s,
            )
        else:
            name, aten = POINTWISE.get(op.role.value, ("triton_poi_fused_add_6", "aten::add"))
            dims = ((int(getattr(op, "rows", SEQ_LEN)), int(getattr(op, "cols", 4096))),)
            yield Work(name=name, op=aten, dims=dims, time_s=time_s)


def _of(kernels: list[Work], layer: int, phase: str = "forward", *, ends: bool = False) -> list[Work]:
    """Kernels of one layer: the first waits for its weights, the last ends its gradients."""
    last = len(kernels) - 1
    return [
        replace(each, layer=layer, needs=i == 0, ends=ends and i == last, phase=phase) for i, each in enumerate(kernels)
    ]


def _gather(*, layer: int, params: int, phase: str = "forward") -> Work:
    return Work(
        name="ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        op="_allgather_base",
        time_s=_collective_s("all_gather", 2.0 * params),
        kind="gather",
        layer=layer,
        message=params,
        phase=phase,
    )


def _scatter(layer: int, params: int) -> Work:
    return Work(
        name="ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        op="_reduce_scatter_base",
        time_s=_collective_s("reduce_scatter", 4.0 * params),
        kind="scatter",
        layer=layer,
        message=params,
        phase="backward",
    )


# ------------------------------------------------------------------------------------------------------------- faults


def faulty(fault: str, strength: float) -> tuple[Work, ...]:
    """The step's work with a fault of some strength: what it multiplies, or how much is done again."""
    work = healthy()
    if fault == "slow_link":
        return tuple(
            replace(w, time_s=w.time_s * (1 + strength)) if w.kind in ("gather", "scatter") else w for w in work
        )
    if fault == "power_cap":
        return tuple(
            replace(w, time_s=w.time_s * (1 + strength)) if w.op == "aten::mm" or "flash" in w.name else w for w in work
        )
    if fault == "ragged_vocab":
        vocab = max(each for w in work for dim in w.dims for each in dim if w.op == "aten::mm")
        return tuple(_ragged(w, vocab, strength) for w in work)
    if fault == "recompute":
        return tuple(_recomputed(work, strength))
    if fault == "host_gaps":
        return tuple(_waiting(work, strength))
    return work  # straggler and prefetch_off are of ranks and of order


def _ragged(w: Work, vocab: int, strength: float) -> Work:
    """The output head with a vocabulary that no tile divides, and its time."""
    if w.op != "aten::mm" or not any(vocab in dim for dim in w.dims):
        return w
    dims = tuple(tuple(vocab + 1 if each == vocab else each for each in dim) for dim in w.dims)
    return replace(w, dims=dims, time_s=w.time_s * (1 + strength))


def _recomputed(work: tuple[Work, ...], strength: float) -> Iterator[Work]:
    """The first layers' forward again before their backward; ``strength`` is the share of layers."""
    again = {
        layer: [w for w in work if w.layer == layer and w.phase == "forward" and w.kind == "compute"]
        for layer in range(math.ceil(strength * LAYERS - 1e-9))
    }
    for w in work:
        if w.needs and w.phase == "backward" and w.layer in again:
            yield from (replace(each, phase="backward") for each in again[w.layer])
            yield replace(w, needs=False)
        else:
            yield w


def _waiting(work: tuple[Work, ...], strength: float) -> Iterator[Work]:
    """The host reads a value from the device after each layer's backward and works alone for ``strength`` seconds."""
    for w in work:
        yield w
        if w.ends:
            yield Work(name="", op="aten::item", time_s=strength, kind="host", phase="backward")


# ----------------------------------------------------------------------------------------------------------- the clock


@dataclass(slots=True)
class _Ranks:
    """When each rank's host and streams are free, and what was recorded."""

    host: np.ndarray
    compute: np.ndarray
    comms: np.ndarray
    gathered: dict[int, np.ndarray] = field(default_factory=dict)
    rows: list[tuple[Work, np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    """Work with, by rank, when the host launched it, when it began and when it ended."""


def run_step(ranks: _Ranks, work: tuple[Work, ...], factors: np.ndarray, *, prefetch: bool) -> None:
    """One step of all ranks: ``factors`` multiply the compute times, by rank and kernel."""
    ranks.gathered.clear()
    before: dict[int, int] = {}
    for i, w in enumerate(work):
        launched = ranks.host.copy()
        ranks.host = ranks.host + LAUNCH_S
        if w.kind == "host":
            ranks.host = np.maximum(ranks.host, ranks.compute) + w.time_s
            ranks.rows.append((w, launched, launched, ranks.host.copy()))
            continue
        if w.kind == "compute":
            begin = np.maximum(ranks.compute, launched + HOST_AHEAD_S)
            if w.needs and w.layer in ranks.gathered:
                begin = np.maximum(begin, ranks.gathered[w.layer])
            end = ranks.compute = begin + w.time_s * factors[:, i]
        else:
            begin = np.maximum(ranks.comms, launched + HOST_AHEAD_S)
            if (
                w.kind == "scatter" or not prefetch
            ):  # gradients must be complete; without prefetch, the layer before too
                begin = np.maximum(begin, ranks.compute)
            end = np.full_like(begin, begin.max() + w.time_s * factors[0, i])  # when the slowest rank has come
            ranks.comms = end
            if w.kind == "gather":
                ranks.gathered[w.layer] = end
        before[w.layer] = i
        ranks.rows.append((w, launched, begin, end))
    done = np.maximum(ranks.compute, ranks.comms)
    ranks.host = ranks.compute = ranks.comms = np.maximum(ranks.host, done)  # the loss is read at the end of a step


def simulate(made: Made) -> list[tuple[_Ranks, np.ndarray]]:
    """Every step of the run: what was recorded, and when the step began on each rank."""
    rng = np.random.default_rng(made.seed)
    work = tuple(_in_order(faulty(made.fault, made.strength), prefetch=made.fault != "prefetch_off"))
    own = np.exp(rng.normal(0.0, made.drift, RANKS)) if made.drift else np.ones(RANKS)
    if made.fault == "straggler":
        own[made.slow_rank] *= 1 + made.strength
    zero = np.zeros(RANKS)
    ranks, steps = _Ranks(host=zero, compute=zero, comms=zero), []
    for _ in range(made.steps):
        began = ranks.host.copy()
        ranks.rows = []
        factors = own[:, None] * np.exp(rng.normal(0.0, made.noise, (RANKS, len(work))))
        run_step(ranks, work, factors, prefetch=made.fault != "prefetch_off")
        steps.append((replace_rows(ranks), began))
    return steps


def replace_rows(ranks: _Ranks) -> _Ranks:
    return _Ranks(host=ranks.host.copy(), compute=ranks.compute, comms=ranks.comms, rows=list(ranks.rows))


def _in_order(work: tuple[Work, ...], *, prefetch: bool) -> Iterator[Work]:
    """Without prefetch a layer's weights are gathered when it is their turn, not one layer ahead."""
    waiting: dict[tuple[int, str], Work] = {}
    for w in work:
        if not prefetch and w.kind == "gather":
            waiting[(w.layer, w.phase)] = w
            continue
        if w.needs and (w.layer, w.phase) in waiting:
            yield waiting.pop((w.layer, w.phase))
        yield w
    yield from waiting.values()


def step_s(made: Made) -> float:
    """Mean seconds of a step after the first."""
    steps = simulate(made)
    return float((steps[-1][0].host.max() - steps[0][0].host.max()) / (made.steps - 1))


@cache
def strength_for(fault: str, loss: float = 0.05) -> float:
    """The strength at which a fault costs a share of the healthy step; for those that have none, 0."""
    quiet = Made(noise=0.0, drift=0.0, steps=2)
    goal = step_s(quiet) * (1 + loss)
    if fault in ("", "prefetch_off"):
        return 0.0
    low, high = 0.0, 0.05 if fault == "host_gaps" else 1.0 if fault == "recompute" else 8.0
    for _ in range(30):
        middle = (low + high) / 2
        if step_s(replace(quiet, fault=fault, strength=middle)) < goal:
            low = middle
        else:
            high = middle
    return high


# ---------------------------------------------------------------------------------------------------------- the events


@lru_cache(maxsize=2)
def _all_ranks(made: Made) -> list[tuple[_Ranks, np.ndarray]]:
    """The run that each rank's trace is a view of."""
    return simulate(made)


def trace(made: Made) -> dict[str, Any]:
    """The trace of one rank as Kineto writes it."""
    events: list[dict[str, Any]] = []
    number, rank = 1, made.rank
    for index, (recorded, began) in enumerate(_all_ranks(replace(made, rank=0))):
        ts = _us(began[rank])
        events.append(
            _event(
                "user_annotation",
                f"ProfilerStep#{index}",
                1,
                ts,
                _us(recorded.host[rank]) - ts,
                {"External id": number},
            )
        )
        for w, launched, begin, end in recorded.rows:
            number += 1
            events += _events(w, number, rank, float(launched[rank]), float(begin[rank]), float(end[rank]))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017755648, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS},
        "traceEvents": events,
        "traceName": f"rank{rank}.json",
    }


def _us(seconds: float) -> float:
    return round(1e6 * seconds + 1e9, 3)


def _event(cat: str, name: str, tid: int, ts: float, dur: float, args: dict[str, Any]) -> dict[str, Any]:
    pid = 0 if cat == "kernel" else 100
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": round(dur, 3), "args": args}


def _events(w: Work, number: int, rank: int, launched: float, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """The host's side and the device's of one kernel."""
    thread = 2 if w.phase == "backward" else 1
    at = _us(launched)
    if w.kind == "host":
        yield _event("cpu_op", "aten::item", thread, at, _us(end) - at, {"External id": number, "Input Dims": [[]]})
        wait = {"External id": number, "correlation": number}
        yield _event("cuda_runtime", "cudaStreamSynchronize", thread, at, max(_us(end - w.time_s) - at, 1.0), wait)
        return
    dims = [list(dim) for dim in w.dims]
    if w.kind == "compute":
        said = {"External id": number, "Input Dims": dims, "Input type": ["c10::BFloat16"] * len(dims)}
        if w.phase == "optimizer":
            name = "Optimizer.step#AdamW.step"
            yield _event("user_annotation", name, thread, at, 1e6 * LAUNCH_S, {"External id": number})
        yield _event("cpu_op", w.op, thread, at, 1e6 * LAUNCH_S, said)
    else:
        total, part = w.message, w.message // RANKS
        given, got = (part, total) if w.kind == "gather" else (total, part)
        said = {
            "External id": number,
            "Collective name": w.op,
            "In msg nelems": given,
            "Out msg nelems": got,
            "Group size": RANKS,
            "dtype": "BFloat16" if w.kind == "gather" else "Float",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(RANKS))),
            "Input Dims": [[given]],
        }
        yield _event("cpu_op", "record_param_comms", thread, at, 1e6 * LAUNCH_S, said)
    call = {"External id": number, "correlation": number, "cbid": 211}
    yield _event("cuda_runtime", "cudaLaunchKernel", thread, at + 1.0, 1e6 * LAUNCH_S - 2.0, call)
    stream = COMPUTE if w.kind == "compute" else COMMUNICATION
    ran = {"External id": number, "device": 0, "context": 1, "stream": stream, "correlation": number}
    if w.kind != "compute":
        ran |= {name: value for name, value in said.items() if name not in ("External id", "Input Dims")}
    yield _event("kernel", w.name, stream, _us(begin), _us(end) - _us(begin), ran)


def write(made: Made, path: Path) -> Path:
    """The trace of one rank as a file, gzipped where its name says so."""
    data = json.dumps(trace(made)).encode()
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
    return path


def write_ranks(made: Made, folder: Path) -> Path:
    """The traces of all ranks in one folder."""
    folder.mkdir(exist_ok=True)
    for rank in range(RANKS):
        write(replace(made, rank=rank), folder / f"rank{rank}.json")
    return folder
